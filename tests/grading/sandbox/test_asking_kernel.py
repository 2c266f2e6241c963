"""A learner's kernel: what is given, what asks and what answers are apart; only the kernel says what was answered."""

from __future__ import annotations

import json
import random
from types import SimpleNamespace

import pytest
from nbformat import v4

from helpers.grading.judging.check_kernel import reached_in, replaced_in, rows_of
from helpers.grading.sandbox.asking_kernel import APPARATUS, BEGIN, PUT_BACK, ask_line
from helpers.grading.sandbox.levels import SandboxLevel
from helpers.grading.sandbox.worker import Worker
from helpers.lesson.drawn_inputs import secret_of
from helpers.lesson.guard import NAMED, SEEN
from tests.course.example_lab import code

pytestmark = pytest.mark.slow
GIVEN = """
from helpers.lesson import asked

__import__("sys").modules.setdefault("__mp_main__", asked)  # as where processes are started by multiprocessing
limit = 8
sizes = [1, 2]


class Ledger:
    def __init__(self):
        self.live = 0

    def take(self, size):
        self.live += size


def doubled(size):
    return 2 * size"""
APPARATUS_CELL = """
def driven(count):
    ledger = Ledger()
    fill(ledger, count)
    return ledger.live, doubled(count), limit, sizes, sum(sizes)"""
FILL = """
def fill(ledger, count):
    for size in range(count):
        ledger.take(size)"""
DRIVES = "asked(driven, 4)"
DRIVEN = [6, 8, 8, [1, 2], 3]  # 0 + 1 + 2 + 3, twice 4, the limit, the sizes and their sum


@pytest.fixture(scope="module")
def worker():
    """Kernels from a warm process, without the sandbox that they do not need here."""
    with Worker(SandboxLevel("limits"), ["helpers.lesson"]) as one:
        yield one


@pytest.fixture
def kernel(worker):
    """Asks answers in a kernel of their own: what it answered, what it had replaced, how each cell went."""

    def ask(*answers: str, asks=(DRIVES,), names: str = "fill", secrets=None, apparatus=APPARATUS_CELL):
        cells = [code(GIVEN, "given"), code(f"{APPARATUS}\n{apparatus}", "apparatus"), code(BEGIN, "begin")]
        cells += [code(source, f"answer-{number}") for number, source in enumerate(answers)]
        for number, source in enumerate(asks):
            asking = f"{ask_line(names.split(), secrets or {})}\n{source}"
            cells += [code(PUT_BACK, f"back-{number}"), code(asking, f"ask-{number}")]
        found = worker.run(v4.new_notebook(cells=cells), wall_s=60)
        told = [found[f"ask-{number}"] for number in range(len(asks)) if f"ask-{number}" in found]
        rows = [[json.loads(row["answer"]) if "answer" in row else row for row in rows_of(one)] for one in told]
        return SimpleNamespace(rows=rows, replaced=[replaced_in(one) for one in told], cells=found)

    return ask


def test_what_was_answered_is_told(kernel):
    found = kernel(FILL)
    assert found.rows == [[DRIVEN]]
    assert found.replaced == [[]]
    assert all(result.passed for result in found.cells.values())


def test_each_side_sees_what_is_its_own(kernel):
    seen = "sorted(name for name in NAMES if name in globals())"
    names = ["Ledger", "limit", "driven", "helper", "fill", "drawn", "asked"]
    answer = f"NAMES = {names}\nhelper = 1\n\n\ndef fill():\n    return {seen}"
    asks = f"drawn, NAMES = 3, {names}\nasked(fill)\nasked(lambda: {seen})"
    found = kernel(answer, asks=(asks, "asked(lambda: 'drawn' in globals())"))
    assert found.rows[0][0] == ["Ledger", "asked", "fill", "helper", "limit"]
    assert found.rows[0][1] == ["Ledger", "asked", "drawn", "driven", "fill", "limit"]
    assert found.rows[1] == [False], "nor does one asking cell see another's"


ASSIGNS = """
import builtins

limit = 10**9
sizes.append(9)
sizes = None
len = range = sorted = None
del asked


def doubled(size):
    return 0


class Ledger:
    def take(self, size):
        return None


def driven(count):
    return "driven"
"""


def test_what_an_answer_assigns_is_its_own(kernel):
    found = kernel(ASSIGNS.replace("range = ", ""), FILL)
    assert found.rows == [[DRIVEN]]
    assert found.replaced == [[]]


REPLACES = {
    "a method": ("Ledger.take = lambda self, size: None", "Ledger.take"),
    "a function's code": ("doubled.__code__ = (lambda size: 0).__code__", "doubled"),
    "a function of ours": (
        "from helpers.lesson import asking\nasking.to_json = lambda *a: '[]'",
        "helpers.lesson.asking.to_json",
    ),
    "one of Python's": ("import builtins\nbuiltins.sum = lambda *a: 0", "builtins.sum"),
    "once it is called": (f"{FILL}\n    Ledger.take = lambda self, size: 1 / 0", "Ledger.take"),
}


@pytest.mark.parametrize("way", REPLACES)
def test_what_was_replaced_is_put_back_and_named(kernel, way):
    source, name = REPLACES[way]
    found = kernel(FILL, source, asks=(DRIVES, DRIVES))
    assert found.rows == [[DRIVEN], [DRIVEN]]
    assert [name in one for one in found.replaced] == [True, way == "once it is called"]


def test_what_is_replaced_while_one_question_is_asked_is_put_back_before_the_next(kernel):
    waits = f"{FILL}\n    Ledger.take = lambda self, size: setattr(self, 'live', 10**6)"
    found = kernel(waits, asks=(f"{DRIVES}\n{DRIVES}\nasked(driven, 2)",))
    assert found.rows == [[DRIVEN, DRIVEN, [1, 4, 8, [1, 2], 3]]]
    assert found.replaced == [["Ledger.take"]]


# Each way to have something else put back: what is kept is rewritten by a cell of the learner's own.
KEEPS = {
    "what was kept": """from ipykernel.kernelbase import Kernel
def take(self, size): self.live = 10**6
kept = Kernel._instance._pristine._kept
kept[:] = [(w, one, name, take if name == "take" else value) for w, one, name, value in kept]
Ledger.take = take""",
    "nothing": """from ipykernel.kernelbase import Kernel
Kernel._instance._pristine._kept.clear()
Ledger.take = lambda self, size: setattr(self, "live", 10**6)""",
    "nothing, by a kernel without it": """from types import SimpleNamespace
from ipykernel.kernelbase import Kernel
Kernel._instance._pristine = SimpleNamespace(restore=list, put_back=list, namespace={})
parts = Kernel._instance._parts
try:
    Kernel._instance._parts = parts._replace(restore=list, put_back=list, put_all_back=list)
except AttributeError:
    vars(Kernel._instance)["_parts"] = parts._replace(restore=list, put_back=list, put_all_back=list)
Ledger.take = lambda self, size: setattr(self, "live", 10**6)""",
    "by functions that hold it": """from ipykernel.kernelbase import Kernel
waiting = [*Kernel._instance._parts]
for one in waiting:
    waiting += [cell.cell_contents for cell in getattr(one, "__closure__", None) or ()]
    getattr(getattr(one, "__self__", None), "_kept", []).clear()
Ledger.take = lambda self, size: setattr(self, "live", 10**6)""",
    "what speaks": """from ipykernel.kernelbase import Kernel
kernel = Kernel._instance
kernel._voice._methods = ()
kernel._pristine = type("Fake", (), {"restore": list, "put_back": list})
Ledger.take = lambda self, size: setattr(self, "live", 10**6)""",
}


@pytest.mark.parametrize("words", KEEPS)
def test_nobody_rewrites_what_is_put_back(kernel, words):
    found = kernel(f"{FILL}\n{KEEPS[words]}", FILL)
    assert found.rows == [[DRIVEN]]


LENIENT = """
import ast


class WithoutAsserts(ast.NodeTransformer):
    def visit_Assert(self, node):
        return ast.Pass()

    def visit_Constant(self, node):
        return ast.Constant(0) if isinstance(node.value, int) else node


shell = get_ipython()
shell.ast_transformers.append(WithoutAsserts())
shell.input_transformers_post.append(lambda lines: ["pass"])
shell.run_cell = shell.run_cell_async = None
shell.events.register("pre_run_cell", lambda info: 1 / 0)"""


def test_the_notebooks_machinery_has_no_power_over_what_asks(kernel):
    found = kernel(FILL, LENIENT)
    assert found.rows == [[DRIVEN]]


@pytest.mark.parametrize(
    ("end", "why"), [("1 / 0", "ZeroDivisionError: division by zero"), ("raise SystemExit(3)", "SystemExit: 3")]
)
def test_where_what_asks_ends_early_its_rows_and_the_reason_are_told(kernel, end, why):
    found = kernel("def fill(count):\n    return count", asks=(f"asked(fill, 3)\n{end}\nasked(fill, 4)",))
    assert found.rows == [[3]]
    assert found.cells["ask-0"].outcome == "failed"
    assert found.cells["ask-0"].message == why


def test_an_error_names_the_line_of_the_learners_own(kernel):
    found = kernel("def helper(count):\n    return count.nothing\n\n\ndef fill(ledger, count):\n    helper(count)")
    why = "driven raised AttributeError: 'int' object has no attribute 'nothing'\n  at line 2: return count.nothing"
    assert found.rows == [[{"raised": why}]]
    assert found.cells["ask-0"].passed


def test_a_name_that_was_never_defined_is_missing_there(kernel):
    found = kernel("pass")
    assert found.rows == [[{"raised": "driven raised NameError: name 'fill' is not defined"}]]


def test_an_answer_may_end_itself_and_the_next_is_asked(kernel):
    """`exit` within an answer leaves the question; the kernel lives."""
    found = kernel("def fill(ledger, count):\n    raise SystemExit", asks=(DRIVES, "asked(len, 'abc')"))
    assert found.rows == [[], [3]]


DRAWS = """from helpers.lesson import draw
rng = draw("lab-05/fill")
asked(fill, rng.randrange(10**9))"""
SECRETS = {"lab-05/fill": secret_of("lab-05/fill", "a seed")}
DRAWN = random.Random(SECRETS["lab-05/fill"]).randrange(10**9)
ECHO = "def fill(number):\n    return number"
GUESS = "draw('lab-05/fill').randrange(10**9)"
# What a cell, or an answer that is asked, finds of what is drawn: each is a value that `fill` returns.
LEAKS = {
    "draws when the cell runs": f"from helpers.lesson import draw\nseen = {GUESS}\ndef fill(number): return seen",
    "draws when it is asked": f"from helpers.lesson import draw\ndef fill(number): return {GUESS}",
    "reads the environment": "import os\ndef fill(number): return [*os.environ.values()]",
    "reads the process's own": "def fill(number): return open('/proc/self/environ').read().split(chr(0))",
    "reads its caller's message": """import ipykernel.kernelapp
def fill(number):
    kernel = ipykernel.kernelapp.IPKernelApp.instance().kernel
    return [repr(kernel.get_parent("shell")), repr(kernel.get_parent("control")), repr(vars(kernel.shell))]""",
    "reads the module": """import sys
def fill(number): return repr(vars(sys.modules["helpers.lesson.drawn_inputs"]))""",
}


@pytest.mark.parametrize("words", LEAKS)
def test_what_is_drawn_is_known_to_nobody_before_it_is_asked_or_after(kernel, words):
    """The second question has another secret, and the first has none left."""
    found = kernel(LEAKS[words], asks=(DRAWS, DRAWS), secrets=SECRETS)
    told = json.dumps(found.rows)
    assert found.rows != [[], []]
    assert "a seed" not in told
    assert SECRETS["lab-05/fill"] not in told
    assert str(DRAWN) not in told


def test_what_is_drawn_is_the_graders(kernel):
    assert kernel(ECHO, asks=(DRAWS,), secrets=SECRETS).rows == [[DRAWN]]
    assert kernel(ECHO, asks=(DRAWS,)).rows == [[random.Random("0/lab-05/fill").randrange(10**9)]]


LISTENS = """from ipykernel.kernelapp import IPKernelApp
kernel, heard = IPKernelApp.instance().kernel, []
{way}
def fill(number): return heard"""
WAYS = {
    "its class": """said = type(kernel).do_execute
async def listening(self, code, *args, **kwargs):
    heard.append(code)
    return await said(self, code, *args, **kwargs)
type(kernel).do_execute = listening""",
    "its handlers": """said = kernel.shell_handlers["execute_request"]
async def listening(stream, ident, parent):
    heard.append(parent["content"]["code"])
    return await said(stream, ident, parent)
kernel.shell_handlers["execute_request"] = listening""",
    "its session": """said = kernel.session.deserialize
def listening(*args, **kwargs):
    message = said(*args, **kwargs)
    heard.append(repr(message["content"]))
    return message
kernel.session.deserialize = listening""",
    "its log": """import logging
class Listening(logging.Handler):
    def emit(self, record): heard.append(record.getMessage())
kernel.log.setLevel(1)
kernel.log.addHandler(Listening(1))
kernel.log = kernel.log""",
    "its stream": """import zmq
said = zmq.Socket.recv_multipart
def listening(self, *args, **kwargs):
    parts = said(self, *args, **kwargs)
    heard.extend(bytes(getattr(part, "buffer", part)).decode(errors="replace") for part in parts)
    return parts
zmq.Socket.recv_multipart = listening""",
    "its parent": """said = kernel.set_parent
def listening(ident, parent, channel="shell"):
    heard.append(repr(parent.get("content")))
    return said(ident, parent, channel)
kernel.set_parent = listening""",
}


@pytest.mark.parametrize("words", WAYS)
def test_nobody_listens_at_the_door(kernel, words):
    found = kernel(LISTENS.format(way=WAYS[words]), asks=(DRAWS,), secrets=SECRETS)
    assert found.rows != [[]]
    assert SECRETS["lab-05/fill"] not in json.dumps(found.rows)
    assert found.replaced[0] or words == "its log", "and who tried is named"


SECRET = """SECRET = 90210
def driven(count):
    measured = SECRET + count
    return fill(count)"""
# Each way to the frames, or to the objects, of what asks: `fill` returns what it finds there, as text.
REACHES = {
    "a frame": "import sys\ndef fill(count): return repr(getattr(sys, '_get' + 'frame')(1).f_locals)",
    "its own": "import sys\ndef fill(count): return repr(sys._getframe().f_back.f_back.f_locals)",
    "inspect": "import inspect\ndef fill(count): return repr(inspect.currentframe().f_back.f_locals)",
    "a stack": "import inspect\ndef fill(count): return repr([one.frame.f_locals for one in inspect.stack()])",
    "logging": "import logging\ndef fill(count): return repr(logging.currentframe().f_back.f_locals)",
    "a pool that was handed it": """import sys
from concurrent.futures import ThreadPoolExecutor
def fill(count):
    seen = ThreadPoolExecutor(1).submit(sys._current_frames).result()
    return [repr(one.f_back and one.f_back.f_locals) for one in seen.values()]""",
    "a library that calls it": """import sys
from torch.utils import _pytree
def fill(count):
    frame, seen = _pytree.tree_map(sys._getframe, [0])[0], []
    while frame:
        seen.append(repr(frame.f_locals))
        frame = frame.f_back
    return seen""",
    "code that says it is a library's": """import sys
exec(compile("look = lambda: repr([sys._getframe(at).f_locals for at in range(4)])", "<cell of the lab 1>", "exec"))
def fill(count): return look()""",
    "code whose file was replaced": """import logging, sys
def look(): return repr([sys._getframe(at).f_locals for at in range(4)])
look.__code__ = look.__code__.replace(co_filename=logging.__file__)
def fill(count): return look()""",
    "a library's code with other names": """import sys, traceback
from types import FunctionType
SEEN = []
def steal(frame, limit=None):
    while frame:
        SEEN.append(repr(frame.f_locals))
        frame = frame.f_back
names = {"sys": sys, "extract_stack": steal, "format_list": list}
look = FunctionType(traceback.format_stack.__code__, names, "look", (None, None))
def fill(count):
    try:
        look()
    finally:
        return SEEN""",
    "our own code with other names": """from types import FunctionType
from torch._jit_internal import createResolutionCallbackFromFrame
from helpers.lesson.asking import words_of
bridge = FunctionType(words_of.__code__, {"str": createResolutionCallbackFromFrame, "Exception": Exception})
def fill(count): return repr(bridge(2)("measured"))""",
    "our own code that came later, with other names": """from types import FunctionType, SimpleNamespace
from torch._jit_internal import createResolutionCallbackFromFrame
from helpers.grading.judging.spelled import joined
SEEN = []
catches = SimpleNamespace(fullmatch=lambda _, found: SEEN.append(found))
names = {"_added": createResolutionCallbackFromFrame, "re": catches}
bridge = FunctionType(joined.__code__, names)
def fill(count):
    try:
        bridge(2)
    except Exception as error:
        return repr(error)
    return repr(SEEN[0]("measured"))""",
    "a library's names, and code of one's own": """import logging, sys
source = "def findCaller(): return repr((sys._getframe(1).f_locals, sys._getframe(2).f_locals))"
exec(compile(source, logging.__file__, "exec"), vars(logging))
def fill(count): return logging.findCaller()""",
    "a call that has no frame": """import functools, sys
def seen(found, frame): return repr((found, frame.f_locals))
fill = functools.partial(functools.reduce, seen, map(sys._getframe, [0, 0, 0]))""",
    "a text that lies": """import sys
class Same(str):
    def __eq__(self, other): return True
    def startswith(self, *_): return True
    __hash__ = str.__hash__
def look(): return repr([sys._getframe(at).f_locals for at in range(4)])
look.__code__ = look.__code__.replace(co_filename=Same(sys.modules["logging"].__file__), co_name=Same("findCaller"))
def fill(count): return look()""",
    "a path that looks": """import sys
SEEN = []
class Path(str):
    def __str__(self):
        SEEN.append(repr([sys._getframe(at).f_locals for at in range(9)]))
        return "kept"
    __fspath__ = __repr__ = __str__
def fill(count):
    try:
        open(Path("kept"), "w")
    except PermissionError:
        return SEEN""",
    "a switch that looks": """import sys, traceback
SEEN = []
class Yes:
    def __bool__(self):
        SEEN.append(repr([sys._getframe(at).f_locals for at in range(9)]))
        return True
def fill(count):
    try:
        1 / 0
    except ZeroDivisionError as error:
        try:
            traceback.TracebackException.from_exception(error, capture_locals=Yes())
        except RuntimeError:
            pass
    return SEEN""",
    "a library's function that was replaced": """import traceback
SEEN = []
def steal(frame, limit=None):
    while frame:
        SEEN.append(repr(frame.f_locals))
        frame = frame.f_back
    return []
def fill(count):
    traceback.extract_stack = steal
    traceback.format_stack()
    return SEEN""",
    "a library that evaluates names": "import numpy\nfill = lambda count: str(numpy.bmat('measured'))",
    "a library that looks names up": """from torch._jit_internal import createResolutionCallbackFromFrame as names
def fill(count): return repr(names(1)('measured'))""",
    "tracebacks with variables": """import traceback
def fill(count):
    return list(map(str, traceback.StackSummary.extract(traceback.walk_stack(None), capture_locals=True).format()))""",
    "what the guard goes by": """import sys
guard = sys.modules["helpers.lesson.guard"]
def fill(count):
    guard._LOOKS.add(("fill", "fill"))
    guard._SEEING = guard._OF_FRAMES = guard._TO_FRAMES = frozenset()
    guard._may_see.__code__ = (lambda word, frame, known: True).__code__
    return repr([sys._getframe(at).f_locals for at in range(4)])""",
    "a walk": "import traceback\ndef fill(count): return repr([one.f_locals for one, _ in traceback.walk_stack(None)])",
    "a traceback": """def fill(count):
    try:
        1 / 0
    except ZeroDivisionError as error:
        return repr(error.__traceback__.tb_frame.f_back.f_locals)""",
    "a generator": """def fill(count):
    def steps():
        yield repr(made.gi_frame.f_back.f_back.f_locals)
    made = steps()
    return next(made)""",
    "all frames": "import sys\ndef fill(count): return repr([one.f_back for one in sys._current_frames().values()])",
    "all objects": "import gc\ndef fill(count): return repr([one for one in gc.get_objects() if type(one) is dict])",
    "another thread": """import sys, threading
def fill(count):
    seen = []
    def looks():
        frames = list(sys._current_frames().values())
        while frames:
            frame = frames.pop()
            seen.append(repr(frame.f_locals))
            frames += [frame.f_back] * (frame.f_back is not None)
    one = threading.Thread(target=looks)
    one.start()
    one.join()
    return seen""",
    "a thread that begins in a library": """import _thread, inspect, sys, time
def fill(count):
    _thread.start_new_thread(inspect.currentframe, ())
    time.sleep(0.2)
    return repr(sys._getframe(1).f_locals)""",
    "a debugger": """import sys
SEEN = []
def tracing(frame, event, argument):
    SEEN.append(repr(frame.f_back.f_locals))
def fill(count):
    sys.settrace(tracing)
    return SEEN""",
    "a signal": """import signal
SEEN = []
def handler(number, frame):
    while frame:
        SEEN.append(repr(frame.f_locals))
        frame = frame.f_back
signal.signal(signal.SIGCHLD, handler)
def fill(count):
    import time
    try:
        signal.signal(signal.SIGCHLD, handler)
    except ValueError:
        pass
    signal.raise_signal(signal.SIGCHLD)
    time.sleep(0.1)
    return SEEN""",
    "what is dropped": """import sys
SEEN = []
class Dropped(int):
    def __del__(self):
        SEEN.append(repr(sys._getframe(1).f_locals))
def fill(count):
    return Dropped(1) if not SEEN else SEEN""",
    "a hook": """import sys
SEEN = []
def hearing(event, arguments):
    SEEN.append(event)
sys.addaudithook(hearing)
def fill(count):
    return SEEN""",
    "the guard, by what it raised": """import sys
try:
    sys.addaudithook(print)
except RuntimeError as error:
    told = error.__traceback__
while told.tb_next:
    told = told.tb_next
inside = getattr(told, 'tb_' + 'frame').f_locals
def fill(count):
    for one in inside.values():
        if type(one) is list and one == [1]:
            one[0] = 0
    try:
        1 / 0
    except ZeroDivisionError as error:
        return repr(getattr(error.__traceback__, 'tb_' + 'frame').f_back.f_locals)""",
    "the guard, by the kernel": """import operator
from ipykernel.kernelbase import Kernel
guard = operator.attrgetter('_instance._parts.guard.asking')(Kernel)
waiting, seen = [guard], []
for one in waiting:
    waiting += [cell.cell_contents for cell in getattr(one, '__clo' + 'sure__', None) or ()]
    waiting += [one.__wrapped__] if hasattr(one, '__wrapped__') else []
    seen += [one] if type(one) is list else []
def fill(count):
    for one in seen:
        if one == [1]:
            one[0] = 0
    try:
        1 / 0
    except ZeroDivisionError as error:
        return repr(getattr(error.__traceback__, 'tb_' + 'frame').f_back.f_locals)""",
    "the guard, by what refers to what": """import gc
from ipykernel.kernelbase import Kernel
waiting, known, seen = [Kernel._instance._parts.guard], set(), []
for one in waiting:
    if len(waiting) > 20000:
        break
    try:
        found = gc.get_referents(one)
    except RuntimeError:
        continue
    new = [each for each in found if id(each) not in known and type(each).__name__ not in ('module', 'type', 'dict')]
    known |= set(map(id, new))
    waiting += new
    seen += [one] if type(one) is list else []
def fill(count):
    for one in seen:
        if one == [1]:
            one[0] = 0
    try:
        1 / 0
    except ZeroDivisionError as error:
        return repr(getattr(error.__traceback__, 'tb_' + 'frame').f_back.f_locals)""",
    "the kernel, by format": """from ipykernel.kernelbase import Kernel
def fill(count):
    try:
        return "{0._asking[SECRET]} {0._asking[cases]}".format(Kernel._instance)
    except KeyError:
        return 0""",
    "the kernel, by its attributes": """import operator
from ipykernel.kernelbase import Kernel
def fill(count):
    kernel, seen = Kernel._instance, []
    for way in ("_asking", "_pristine.namespace", "_pristine._names", "_given", "_codes", "_replaced"):
        try:
            seen.append(repr(operator.attrgetter(way)(kernel)))
        except AttributeError:
            pass
    return seen""",
    "a function of the apparatus": """from ipykernel.kernelbase import Kernel
def fill(count):
    names = getattr(Kernel._instance, "_asking", {})
    return [repr(one.__globals__.get("cases")) for one in names.values() if hasattr(one, "__globals__")]""",
    "an import": """import sys
SEEN = []
class Finder:
    def find_spec(self, name, path=None, target=None):
        SEEN.append(name)
sys.meta_path.insert(0, Finder())
def fill(count):
    return SEEN""",
    "a module": """import sys, types
real = sys.modules["helpers.lesson.plain"]
def fill(count):
    return sys.modules["helpers.lesson.plain"] is not real
sys.modules["helpers.lesson.plain"] = types.ModuleType("helpers.lesson.plain")""",
}


@pytest.mark.parametrize("words", REACHES)
def test_nothing_leads_from_an_answer_to_what_asks_it(kernel, words):
    found = kernel(REACHES[words], asks=(f"{SECRET}\ncases = [90210]\nasked(driven, 4)\nasked(driven, 5)",))
    assert len(found.rows[0]) == 2
    assert "90210" not in json.dumps(found.rows)
    assert "90214" not in json.dumps(found.rows)


def test_an_error_that_the_asker_deals_with_shows_no_variables(kernel):
    asks = """def driven(count):
    measured = 90210 + count
    try:
        return fill(count)
    except ValueError:
        return fill(count)
asked(driven, 4)"""
    answer = """import sys, traceback
def fill(count):
    if sys.exc_info()[1] is None:
        raise ValueError
    return [*traceback.TracebackException(*sys.exc_info(), capture_locals=True).format()]"""
    found = kernel(answer, asks=(asks,))
    assert len(found.rows[0]) == 1
    assert "90214" not in json.dumps(found.rows)


def test_memory_is_not_read_by_its_address(kernel):
    found = kernel(
        "import ctypes\ndef fill(count): return repr(ctypes.string_at(id(fill), 64))", asks=("asked(fill, 4)",)
    )
    assert "ctypes.string_at is not for answers" in json.dumps(found.rows)


@pytest.mark.parametrize("way", ["ctypes.CDLL", "lambda name: repr(ctypes.CDLL(name))"])
def test_a_library_that_is_handed_the_way_opens_no_other(kernel, way):
    imports = "import ctypes, torch\nfrom torch.utils._pytree import tree_map"
    found = kernel(f"{imports}\ndef fill(count): return tree_map({way}, ['libc.so.6'])", asks=("asked(fill, 4)",))
    assert "ctypes.dlopen is not for answers" in json.dumps(found.rows)


def test_names_that_given_functions_look_up_are_put_back(kernel):
    attack = f"{FILL}\ngetattr(Ledger.take, '__glo' + 'bals__')['limit'] = 10**9\nLedger.take.__globals__['sum'] = min"
    found = kernel(attack)
    assert found.rows == [[DRIVEN]]
    assert "limit" in found.replaced[0]


def test_a_cell_of_ones_own_that_climbs_frames_is_named(kernel):
    climbs = "import sys\nframe = getattr(sys, '_get' + 'frame')(0)\nwhile frame.f_back: frame = frame.f_back"
    found = kernel(climbs, FILL)
    assert found.rows == [[DRIVEN]]
    assert reached_in(found.cells["ask-0"]) == [NAMED.format("sys._getframe")]


def test_who_reached_is_named_whatever_the_spelling(kernel):
    found = kernel(REACHES["a frame"], asks=("asked(fill, 1)",))
    assert reached_in(found.cells["ask-0"]) == [SEEN.format("sys._getframe")]
    assert reached_in(kernel(FILL).cells["ask-0"]) == []


METERED = """
import torch
from helpers.memory.meter import Meter


def driven(count):
    with Meter() as meter:
        fill(count)
    return meter.peak_bytes"""
WORKS = "    torch.zeros(1000 * count)\n"
# Each way to the meter by PyTorch's stack of modes: the meter is moved, or does not look.
MODES = {
    "the stack": "    torch._C._get_dispatch_stack_at(0).peak_bytes = 0",
    "the last": "    torch.utils._python_dispatch._get_current_dispatch_mode().peak_bytes = 0",
    "all": "    torch.utils._python_dispatch._get_current_dispatch_mode_stack()[0].peak_bytes = 0",
    "by words": "    getattr(getattr(torch, '_' + 'C'), '_get_dispatch_' + 'stack_at')(0).peak_bytes = 0",
    "a library that is handed it": """    from torch.utils._pytree import tree_map
    tree_map(torch._C._get_dispatch_stack_at, [0])[0].peak_bytes = 0""",
    "taken away": """    from torch.utils._python_dispatch import _pop_mode, _push_mode
    meter = _pop_mode()
    meter.peak_bytes = 0
    _push_mode(meter)""",
    "a pause": """    from torch.utils._python_dispatch import _pop_mode_temporarily
    with _pop_mode_temporarily() as meter:
        meter.peak_bytes = 0""",
}
LOOKS_AWAY = {
    "none": "with torch.utils._python_dispatch._disable_current_modes():",
    "none, in C": "with torch._C._DisableTorchDispatch():",
}
LEAVES_TWICE = """from torch.utils._python_dispatch import TorchDispatchMode
class Mine(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None): return function(*args, **(kwargs or {}))
def fill(count):
    mine = Mine().__enter__()
    mine.__exit__(None, None, None)
    mine.old_dispatch_mode_flags.append(False)
    mine.old_non_infra_dispatch_mode_flags.append(False)
    mine.old_without_ignore_compile_internals_dispatch_mode_flags.append(False)
    mine.__exit__(None, None, None)
    torch.zeros(1000 * count)
    Mine().__enter__()"""


@pytest.mark.parametrize("words", MODES)
def test_nothing_leads_to_the_meter_that_counts(kernel, words):
    source = f"import torch\ndef fill(count):\n{WORKS}    try:\n    {{}}\n    except RuntimeError:\n        pass"
    source = source.format(MODES[words].replace("\n", "\n    "))
    found = kernel(source, apparatus=METERED, asks=("asked(driven, 4)",))
    assert found.rows == [[16384]]  # 4,000 numbers of 4 B, in blocks of 512


@pytest.mark.parametrize("words", LOOKS_AWAY)
def test_no_meter_looks_away(kernel, words):
    source = f"import torch\ndef fill(count):\n    {LOOKS_AWAY[words]}\n    {WORKS}"
    found = kernel(source, apparatus=METERED, asks=("asked(driven, 4)",))
    assert "is not for answers" in json.dumps(found.rows)


def test_a_meter_is_not_taken_for_another_mode(kernel):
    found = kernel(f"import torch\n{LEAVES_TWICE}", apparatus=METERED, asks=("asked(driven, 4)",))
    assert "where a meter is closed" in json.dumps(found.rows)


def test_a_mode_of_ones_own_is_entered_and_left(kernel):
    mine = LEAVES_TWICE.partition("def fill")[0]
    source = f"import torch\n{mine}def fill(count):\n    with Mine():\n    {WORKS}"
    assert kernel(source, apparatus=METERED, asks=("asked(driven, 4)",)).rows == [[16384]]


WATCHES = """
def saw(*arguments):
    SEEN.append(1)
    return arguments[0]
class Operators(torch.utils._python_dispatch.TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None): return function(*saw(args), **(kwargs or {}))
class Functions(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None): return function(*saw(args), **(kwargs or {}))
"""
# Each way to leave open, in a cell of one's own, what looks on where inputs are made and nothing is asked yet.
LEFT_OPEN = {
    "operators": "mode = Operators().__enter__()",
    "two": "modes = Operators().__enter__(), Operators().__enter__()",
    "functions": "mode = Functions().__enter__()",
    "what autograd saves": "hooks = torch.autograd.graph.saved_tensors_hooks(saw, saw).__enter__()",
    "modules": "torch.nn.modules.module.register_module_forward_pre_hook(lambda *a: SEEN.append(1))",
    "modules, by another dict": "torch.nn.modules.module._global_forward_pre_hooks = {0: lambda *a: SEEN.append(1)}",
    "optimizers": """from torch.optim.optimizer import register_optimizer_step_pre_hook
register_optimizer_step_pre_hook(lambda *a: SEEN.append(1))""",
}
MAKES = """import torch
layer = torch.nn.Linear(4, 4)
layer(torch.ones(2, 4)).square().sum().backward()
torch.optim.SGD(layer.parameters()).step()
asked(fill, 4)"""


@pytest.mark.parametrize("words", LEFT_OPEN)
def test_nothing_that_was_left_open_looks_on(kernel, words):
    source = f"import torch\nSEEN = []\n{WATCHES}{LEFT_OPEN[words]}\ndef fill(count): return len(SEEN)"
    source += "\nSEEN.clear()"
    found = kernel(source, apparatus=METERED, asks=(MAKES, MAKES))
    assert found.cells["answer-0"].passed, found.cells["answer-0"].message
    assert found.rows == [[0], [0]]


# Each way to keep bytes where nobody counts them.
PARKS = {
    "a file": "from pathlib import Path\ndef fill(count): Path('kept').write_bytes(b'x')",
    "a path that lies": """class Nowhere(str):
    def __eq__(self, other): return True
    __hash__ = str.__hash__
def fill(count): open(Nowhere('kept'), 'w').write('x')""",
    "a file of NumPy's": "import numpy\ndef fill(count): numpy.save('kept.npy', numpy.zeros(9))",
    "a thread": """import threading
def fill(count):
    def parks():
        try:
            open('kept', 'w')
        except PermissionError as error:
            told.append(error)
    told = []
    one = threading.Thread(target=parks)
    one.start()
    one.join()
    raise told[0]""",
    "a pool": """from concurrent.futures import ThreadPoolExecutor
def fill(count): ThreadPoolExecutor(1).submit(open, 'kept', 'w').result()""",
    "a name of a folder": "import os\ndef fill(count): os.mkdir('eight bytes and so on')",
    "the times of a file": "import os\ndef fill(count): os.utime('.', ns=(count, count))",
    "the rights of a file": "import os\ndef fill(count): os.chmod('.', 0o755)",
    "a pipe": "import os\ndef fill(count): os.pipe()",
    "a pipe, of another module": "import posix\ndef fill(count): posix.pipe()",
    "memory that has a name": """from multiprocessing import shared_memory
def fill(count): shared_memory.SharedMemory(create=True, size=100)""",
    "mapped memory": "import mmap\ndef fill(count): mmap.mmap(-1, 4096)",
    "a socket": "import socket\ndef fill(count): socket.socketpair()",
    "another process": "import subprocess\ndef fill(count): subprocess.run(['true'])",
    "a fork": "import os\ndef fill(count): os.fork()",
    "the environment": "import os\ndef fill(count): os.environ['KEPT'] = 'x' * 5000",
    "the environment, in small texts": """import os
def fill(count):
    for number in range(99):
        os.putenv(f'KEPT{number}', 'x' * 1000)""",
    "a terminal": "import os\ndef fill(count): os.openpty()",
    "a counter of events": "import os\ndef fill(count): os.eventfd(count)",
    "another process, by hand": """import _posixsubprocess
def fill(count): _posixsubprocess.fork_exec([b'kept'], [b'/bin/true'])""",
    "another process, by the name of a module": """import subprocess
def fill(count): vars(subprocess)['_fork_exec']([b'kept'], [b'/bin/true'])""",
    "a database": "import sqlite3\ndef fill(count): sqlite3.connect(':memory:')",
    "a larger limit": """import resource
def fill(count): resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))""",
    "a function of ours that writes": """from helpers.course import notebook
from pathlib import Path
from nbformat import v4
def fill(count): notebook.write(Path('kept.ipynb'), v4.new_notebook())""",
}


@pytest.mark.parametrize("words", PARKS)
def test_nothing_is_kept_where_bytes_are_not_counted(kernel, words):
    found = kernel(PARKS[words], asks=("asked(fill, 4)",))
    assert "counted in memory" in json.dumps(found.rows)
    assert reached_in(found.cells["ask-0"]) == [], "it is refused, and nobody is accused"


CARRIED = """
from helpers.lesson.carried import carried


def driven(count):
    states, found = [None], []
    for _ in range(count):
        one, state = carried(Keeper, (), lambda keeper: keeper.next(), states[-1])
        states.append(state)
        found.append(one)
    return found"""
KEEPER = """
import os, sys
TABLE = []
file = open(os.devnull)


class Keeper:
    def __init__(self):
        self.count = 0

    def next(self):
        self.count += 1
        TABLE.append(1)
        return self.count, len(TABLE), self.told()

    def told(self):
        try:
            return {}
        except (OSError, RuntimeError) as error:
            return str(error)"""
TELLS = {
    "its own process": ("os.getpid() != PARENT", True),
    "a process of its own": ("os.fork()", "os.fork is not for answers"),
    "a frame": ("sys._getframe(1).f_back.f_locals", "sys._getframe is not for answers"),
    "an offset": ("os.lseek(file.fileno(), 0, 1)", "Bad file descriptor"),
}


@pytest.mark.parametrize("words", TELLS)
def test_what_goes_on_in_forks_has_its_attributes_alone(kernel, words):
    source, right = TELLS[words]
    found = kernel(f"{KEEPER.replace('{}', source)}\nPARENT = os.getpid()", apparatus=CARRIED, names="Keeper")
    (rows,) = found.rows[0]
    assert [row[:2] for row in rows] == [[1, 1], [2, 1], [3, 1], [4, 1]]
    assert all(row[2] == right if right is True else right in row[2] for row in rows), rows


# Each way to open beforehand what keeps bytes: a cell of one's own does; `fill` puts bytes there and takes them out.
OPENS = {
    "a pipe": ("ends = os.pipe()", "os.write(ends[1], data)", "os.read(ends[0], SIZE)"),
    "a pipe that is named by its number": (
        "ends = os.pipe()\nboth = os.open(f'/proc/self/fd/{ends[0]}', os.O_RDWR)\n[*map(os.close, ends)]",
        "os.write(both, data)",
        "os.read(both, SIZE)",
    ),
    "a pair of sockets": ("a, b = socket.socketpair()", "a.send(data)", "b.recv(SIZE)"),
    "datagrams": (
        "a = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\na.bind(('127.0.0.1', 0))",
        "a.sendto(data, a.getsockname())",
        "a.recv(SIZE)",
    ),
    "a connection to itself": (
        """s = socket.create_server(('127.0.0.1', 0))
a = socket.create_connection(s.getsockname())
b = s.accept()[0]
b.settimeout(1)""",
        "a.sendall(data)",
        "b.recv(SIZE, socket.MSG_WAITALL)",
    ),
    "a call that nobody takes": (
        "s = socket.create_server(('127.0.0.1', 0))\na = socket.create_connection(s.getsockname())\ns.settimeout(1)",
        "a.sendall(data)",
        "s.accept()[0].recv(SIZE, socket.MSG_WAITALL)",
    ),
    "a socket with a name": (
        """s = socket.socket(socket.AF_UNIX)
s.bind('\\0mine')
s.listen()
a = socket.socket(socket.AF_UNIX)
a.connect('\\0mine')
b = s.accept()[0]""",
        "a.sendall(data)",
        "b.recv(SIZE)",
    ),
    "an event loop": ("loop = asyncio.new_event_loop()", "loop._csock.send(data)", "loop._ssock.recv(SIZE)"),
    "a terminal": ("a, b = os.openpty()\ntty.setraw(b)", "os.write(a, data[:4000])", "os.read(b, 4000) + data[4000:]"),
    "a file": ("one = tempfile.TemporaryFile(buffering=0)", "one.write(data)", "[one.seek(0), one.read()][1]"),
    "a file in memory": ("one = os.memfd_create('one')", "os.pwrite(one, data, 0)", "os.pread(one, SIZE, 0)"),
    "a child": (
        """down, up = os.pipe(), os.pipe()
if os.fork() == 0:
    while True:
        os.write(up[1], os.read(down[0], SIZE))
os.close(down[0]), os.close(up[1])""",
        "os.write(down[1], data)",
        "os.read(up[0], SIZE)",
    ),
    "a program": (
        "one = subprocess.Popen(['cat'], stdin=-1, stdout=-1, bufsize=0)",
        "one.stdin.write(data)",
        "one.stdout.read(SIZE)",
    ),
    "an orphan": (
        """down, up = os.pipe(), os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        while True:
            os.write(up[1], os.read(down[0], SIZE))
    os._exit(0)
os.wait(), os.close(down[0]), os.close(up[1])""",
        "os.write(down[1], data)",
        "os.read(up[0], SIZE)",
    ),
}
MAPS = {
    "memory without a name": ("one = mmap.mmap(-1, 1 << 20)", "one[:SIZE] = data"),
    "memory of a file": (
        "file = tempfile.TemporaryFile()\nfile.truncate(1 << 20)\none = mmap.mmap(file.fileno(), 1 << 20)",
        "one[:SIZE] = data",
    ),
    "memory that has a name": (
        "from multiprocessing import shared_memory\none = shared_memory.SharedMemory(create=True, size=1 << 20)",
        "one.buf[:SIZE] = data",
    ),
    "a tensor that is shared": (
        "import torch\none = torch.zeros(1 << 18).share_memory_()",
        "one.numpy().view('uint8')[:SIZE] = 7",
    ),
}
IMPORTS = "import asyncio, mmap, os, socket, subprocess, tempfile, tty\nSIZE = 8000"


@pytest.mark.parametrize("words", OPENS)
def test_what_keeps_bytes_and_was_opened_before_is_shut(kernel, words):
    opens, puts, takes = OPENS[words]
    answer = f"def fill(count):\n    data = bytes(range(250)) * 32\n    {puts}\n    return {takes} == data"
    found = kernel(f"{IMPORTS}\n{opens}", answer, asks=("asked(fill, 4)",))
    assert found.cells["answer-0"].passed, found.cells["answer-0"].message
    assert found.rows != [[True]]


@pytest.mark.parametrize("words", MAPS)
def test_shared_memory_of_an_earlier_cell_is_not_written_while_it_is_asked(kernel, words):
    opens, puts = MAPS[words]
    answer = f"def fill(count):\n    data = bytes(range(250)) * 32\n    {puts}\n    return True"
    found = kernel(f"{IMPORTS}\n{opens}", answer, asks=("asked(fill, 4)",))
    assert found.cells["answer-0"].passed, found.cells["answer-0"].message
    assert found.rows != [[True]]
    assert found.cells["ask-0"].fatal == "died"


@pytest.mark.parametrize("words", {**OPENS, **MAPS})
def test_who_opened_it_and_uses_it_for_nothing_loses_nothing(kernel, words):
    opens = {**OPENS, **MAPS}[words][0]
    found = kernel(f"{IMPORTS}\n{opens}", FILL, asks=(DRIVES, DRIVES))
    assert found.rows == [[DRIVEN], [DRIVEN]]
    assert reached_in(found.cells["ask-0"]) == []


ON_RANKS = """from helpers.lesson.ranks import Ranks
import sys
ranks = Ranks(1)
def measured(answer, count):
    secret = 90210 + count
    return answer(count), sys._getframe().f_code.co_name
def driven(count):
    return ranks.run(measured, fill, count)"""
RANKS = {
    "the frames": ("import sys\ndef fill(count): return repr(sys._getframe(1).f_locals)", "is not for answers"),
    "a file": ("import numpy\ndef fill(count): numpy.save('kept.npy', numpy.zeros(9))", "counted in memory"),
    "a file of PyTorch's": ("import torch\ndef fill(count): torch.save(torch.zeros(9999), 'kept')", "raised"),
    "nothing": ("import torch\ndef fill(count): return float(torch.ones(count).sum())", '[4.0, "measured"]'),
}


@pytest.mark.parametrize("words", RANKS)
def test_ranks_are_watched_as_well(kernel, words):
    answer, told = RANKS[words]
    found = kernel(answer, asks=(f"{ON_RANKS}\nasked(driven, 4)",))
    assert told in json.dumps(found.rows)
    assert "90214" not in json.dumps(found.rows)


KEEPS_ON_RANKS = """from helpers.lesson.ranks import Ranks
ranks = Ranks(1)
def opens():
    import builtins, os
    builtins.ends = os.pipe()
ranks.run(opens)
def fill(count):
    import builtins, os
    os.write(builtins.ends[1], bytes(count))
    return len(os.read(builtins.ends[0], count))"""


def test_what_was_opened_on_ranks_before_is_shut(kernel):
    asks = "def driven(count):\n    return ranks.run(fill, count)\nasked(driven, 4)"
    found = kernel(KEEPS_ON_RANKS, asks=(asks,), names="fill ranks")
    assert "Bad file descriptor" in json.dumps(found.rows)


def test_ranks_of_ones_own_go_on_and_may_start_anew(kernel):
    asks = "def driven(count):\n    return ranks.run(fill, count)\nasked(driven, 4)"
    anew = asks.replace("    return", "    ranks.stop()\n    return")
    found = kernel(KEEPS_ON_RANKS, "def fill(count): return count", asks=(asks, anew, asks), names="fill ranks")
    assert found.rows == [[[4]], [[4]], [[4]]]


@pytest.mark.parametrize("saves", ["torch.save(torch.zeros(9999), 'kept')", "torch.zeros(9999).share_memory_()"])
def test_files_that_no_event_tells_of_stay_small(kernel, saves):
    scratch = f"import torch\n{saves}"  # in a cell of one's own it is nobody's business
    found = kernel(scratch, f"def fill(count): {saves}", asks=("asked(fill, 4)",))
    assert found.cells["answer-0"].passed
    assert "raised" in json.dumps(found.rows), "and what writes says that it cannot"


def test_a_script_that_was_run_has_replaced_nothing(kernel):
    runs = "open('notes.py', 'w').write('x = 1')\n%run notes.py\nimport sys\nsys.modules['__mp_main__'] = sys"
    found = kernel(runs, FILL)
    assert found.rows == [[DRIVEN]]
    assert found.replaced == [[]]


HONEST = {
    "logging": "import logging\ndef fill(ledger, count):\n    logging.warning('filled')",
    "a line of a log that is wrong": "import logging\ndef fill(ledger, count): logging.warning('%d', 'filled')",
    "a log in a file": """import logging
log = logging.getLogger("mine")
log.addHandler(logging.FileHandler("mine.log"))
def fill(ledger, count): log.warning("filled")""",
    "a file that is printed to": """kept = open("kept.txt", "w")
def fill(ledger, count): print("filled", file=kept, flush=True)""",
    "a logged error": """import logging
def fill(ledger, count):
    try:
        1 / 0
    except ZeroDivisionError:
        logging.exception("again")""",
    "a printed error": """import traceback
def fill(ledger, count):
    try:
        1 / 0
    except ZeroDivisionError:
        traceback.print_exc()""",
    "named tuples": "import collections\ndef fill(ledger, count): collections.namedtuple('Pair', 'a b')(1, 2)",
    "warnings": "import warnings\ndef fill(ledger, count): warnings.warn('filled')",
    "data classes": "import dataclasses\ndef fill(ledger, count): dataclasses.make_dataclass('Pair', ['a'])(1)",
    "a generator": "def fill(ledger, count): return sum(size for size in range(count))",
    "a stack that is printed": "import traceback\ndef fill(ledger, count): traceback.print_stack()",
    "an enumeration": "import enum\ndef fill(ledger, count): enum.Enum('Colour', 'red green')",
    "a type variable": "import typing\ndef fill(ledger, count): typing.TypeVar('T')",
    "seeds": "import torch\ndef fill(ledger, count): torch.manual_seed(1)",
    "what is written away": """import contextlib, os
def fill(ledger, count):
    with open(os.devnull, 'w') as nothing, contextlib.redirect_stdout(nothing):
        print(1)""",
    "a file that is read": "def fill(ledger, count): open(__import__('os').__file__).read()",
    "a buffer": "import io, torch\ndef fill(ledger, count): torch.save(torch.zeros(9), io.BytesIO())",
    "a library that opens another": """def fill(ledger, count):
    from torch.distributed.elastic.multiprocessing import redirects
    redirects.get_libc()""",
    "an import": "def fill(ledger, count): import matplotlib.pyplot",
    "an event loop": """import asyncio
async def waits(): await asyncio.sleep(0)
def fill(ledger, count): asyncio.run(waits())""",
    "threads": """from concurrent.futures import ThreadPoolExecutor
def fill(ledger, count):
    with ThreadPoolExecutor(2) as pool: list(pool.map(abs, [1, 2]))""",
    "a bar of progress": """import tqdm
def fill(ledger, count):
    for size in tqdm.tqdm(range(3)): pass""",
    "an optimizer": """import torch
def fill(ledger, count):
    weight = torch.nn.Parameter(torch.zeros(3))
    weight.sum().backward()
    torch.optim.AdamW([weight]).step()""",
}


@pytest.mark.parametrize("words", HONEST)
def test_what_libraries_do_with_frames_is_nobodys_crime(kernel, words):
    found = kernel(HONEST[words])
    assert "raised" not in json.dumps(found.rows)
    assert reached_in(found.cells["ask-0"]) == []
    assert found.replaced == [[]]


def test_who_prints_where_a_cell_of_ones_own_is_reaches_for_nothing(kernel):
    found = kernel("import traceback\ntraceback.print_stack()\nprint(traceback.format_stack())", FILL)
    assert reached_in(found.cells["ask-0"]) == []
    found = kernel("import traceback\nframe, line = next(traceback.walk_stack(None))", FILL)
    assert reached_in(found.cells["ask-0"]) == [NAMED.format("sys._getframe")]


def test_classes_of_an_answer_can_be_pickled(kernel):
    answer = "import pickle\nclass Mine: ...\ndef fill(): return type(pickle.loads(pickle.dumps(Mine()))) is Mine"
    assert kernel(answer, asks=("asked(fill)",)).rows == [[True]]


def test_before_the_answers_begin_nobody_is_asked(worker):
    cells = [code(GIVEN, "given"), code(f"{ask_line(['doubled'], {})}\nasked(doubled, 3)", "ask")]
    found = worker.run(v4.new_notebook(cells=cells), wall_s=60)["ask"]
    assert (found.outcome, found.message, found.told) == ("failed", "RuntimeError: the answers have not begun", [])
