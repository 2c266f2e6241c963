"""What an answer is seen to reach for; and that honest answers, right or wrong, are not accused."""

from __future__ import annotations

import ast
import copy
import inspect
from pathlib import Path

import pytest
from nbformat import NotebookNode

from helpers.course import lab_cells, release
from helpers.course import notebook as nb
from helpers.course.mutants import find_mutants, load_mutants
from helpers.grading.intake.assemble import assemble
from helpers.grading.intake.reading import Cell, Submitted
from helpers.grading.judging.answer_kernel import untouched
from helpers.grading.judging.tamper_checks import signs_of_tampering
from tests.course.example_lab import RIGHT, cell_of, code, example_lab, with_sources

ROOT = Path(__file__).resolve().parents[3]
LABS = nb.find_all(ROOT, ["solutions"])
HONEST = sorted((ROOT / "tests/labs").glob("honest_*.py"))
SETUP = "import random\nimport torch\nfrom torch import nn\nfrom helpers.memory import budget"


def reference() -> NotebookNode:
    """The example lab, with imports worth patching and a given function."""
    lab = with_sources(example_lab(), {"setup": SETUP})
    given = "def peak_bytes(calls):\n    return max(calls)\n\n"
    ledger = "class Ledger:\n    def __init__(self, rows):\n        self._rows = rows"
    lab.cells.insert(2, code(given + ledger, "ledger"))
    return lab


def with_own(lab: NotebookNode, *sources: str) -> NotebookNode:
    """The lab with these cells of the learner's own, before the last that asks."""
    changed = copy.deepcopy(lab)
    last = max(at for at, cell in enumerate(changed.cells) if lab_cells.is_ask(cell))
    changed.cells[last:last] = [code(source, f"learner-{number}") for number, source in enumerate(sources)]
    return changed


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("def peak_bytes(calls):\n    return 0", "replaces peak_bytes, which is given"),
        ("class Ledger: ...", "replaces Ledger, which is given"),
        ("async def peak_bytes(): ...", "replaces peak_bytes, which is given"),
        ("torch.cuda.max_memory_allocated = lambda: 0", "replaces torch.cuda.max_memory_allocated"),
        ("def half(x):\n    nn.Linear.forward = None", "replaces nn.Linear.forward"),
        ("random.Random, x = int, 1", "replaces random.Random"),
        ("budget.total += 1", "replaces budget.total"),
        ("del torch.nn", "replaces torch.nn"),
        (f"torch{'.x' * 1200} = 1", f"replaces torch{'.x' * 37}."),
        ("import json\njson.dumps = str", "replaces json.dumps"),
        ("get_ipython().ast_transformers", "reaches for the notebook's own machinery"),
        ("from IPython import get_ipython", "reaches for the notebook's own machinery"),
        ("group._get_backend(device).allreduce([x]).wait()", "reaches for a way beside the collectives"),
        ("next(torch.distributed.rendezvous(where))", "reaches for a way beside the collectives"),
        ("group.get_group_store().set('mine', text)", "reaches for a way beside the collectives"),
        ("distributed_c10d._pg_map[group][1].set('mine', text)", "reaches for a way beside the collectives"),
        ("logits.share_memory_()", "reaches for a way beside the collectives"),
        ("torch.jit.save(module, path)", "reaches for files"),
        ("from safetensors.torch import save_file", "reaches for files"),
        ("work.get_future().then(later)", "reaches for a way beside the collectives"),
        ("torch.UntypedStorage.from_file(path, True, 8)", "reaches for a way beside the collectives"),
        ("class Lent:\n    __array_interface__ = {}", "reaches for memory itself"),
        ("import numpy as np\nnp.lib.stride_tricks.as_strided(x, (9,))", "reaches for memory itself"),
        ("from pathlib import Path\nPath('x').write_text('y')", "reaches for files"),
        ("object.__subclasses__()", "reaches for every class there is"),
        ("import sys\nsys._getframe(1)", "reaches for its caller's variables"),
        ("import traceback\ntraceback.StackSummary.extract(frames)", "reaches for its caller's variables"),
        ("frame.f_back", "reaches for its caller's variables"),
        ("from inspect import currentframe", "reaches for its caller's variables"),
        ("from traceback import walk_stack\nnext(walk_stack(None))[0].f_locals", "reaches for its caller's variables"),
        ("import inspect\ninspect.stack()[1].frame.f_globals", "reaches for its caller's variables"),
        ("import inspect\ninspect.getclosurevars(f)", "reaches for another function's variables"),
        ("import gc\ngc.get_referents(f)", "reaches for another function's variables"),
        ("from torch.utils._python_dispatch import _disable_current_modes", "reaches for what no meter sees"),
        ("torch._C._DisableTorchDispatch()", "reaches for what no meter sees"),
        ("from threading import Thread", "reaches for what no meter sees"),
        ("from concurrent.futures import ThreadPoolExecutor", "reaches for what no meter sees"),
        ("import gc\ngc.get_objects()", "reaches for every object there is"),
        ("import sys\nsys.modules['torch']", "reaches for loaded modules"),
        ("from sys import modules", "reaches for loaded modules"),
        ("import importlib\nimportlib.sys.modules['torch']", "reaches for loaded modules"),
        ("import runpy\nrunpy.run_module('helpers.catalog.floats')", "reaches for loaded modules"),
        ("def f():\n    import tracemalloc\n    tracemalloc.reset_peak()", "reaches for what no meter sees"),
        ("import sqlite3", "reaches for what no meter sees"),
        ("import os\nos.fork()", "reaches for what no meter sees"),
        ("from subprocess import run", "reaches for what no meter sees"),
        ("leave = torch.Tensor.numpy", "reaches for what no meter sees"),
        ("from torch.overrides import TorchFunctionMode", "reaches for what no meter sees"),
        ("import gc\ngc.callbacks.append(later)", "reaches for running code"),
        ("import numpy as np\nnp.ctypeslib.as_array(memory)", "reaches for memory itself"),
        ("import ctypes.util", "reaches for memory itself"),
        ("from ctypes import CDLL", "reaches for memory itself"),
        ("distributed_c10d._get_default_store()", "reaches for a way beside the collectives"),
        ("ledger._rows", "reaches for _rows, private to what is given"),
        ("getattr(ledger, '_rows')", "reaches for _rows, private to what is given"),
        ("import builtins as b", "reaches for Python's own functions"),
        ("__builtins__", "reaches for Python's own functions"),
        ("import sys\nsys.settrace(f)", "reaches for running code"),
        ("import sys\nsys.setprofile(f)", "reaches for running code"),
        ("%matplotlib inline\n!ls\nimport ctypes", "reaches for memory itself"),
        ("peak_bytes = lambda calls: 0", "replaces peak_bytes, which is given"),
        ("torch = 3", "replaces torch, which is given"),
        ("def patch():\n    global Ledger\n    Ledger = int", "replaces Ledger, which is given"),
        ("peak_bytes.__globals__['Ledger'] = int", "reaches for all names at once"),
        ("setattr(torch.cuda, 'memory_allocated', abs)", "replaces torch.cuda.memory_allocated"),
        ("vars(nn)['Linear'] = int", "replaces nn.Linear"),
        ("nn.__dict__['Linear'] = int", "replaces nn.Linear"),
        ("exec('peak_bytes = abs')", "reaches for code made of text"),
        ("frame.f_locals['live'].clear()", "reaches for its caller's variables"),
        ("batches.gi_frame", "reaches for its caller's variables"),
        ("error.__traceback__.tb_frame", "reaches for its caller's variables"),
        ("from inspect import getclosurevars", "reaches for another function's variables"),
        ("from helpers.lesson import asking", "reaches for what asks it"),
        ("import helpers.lesson.asking as a\na._desk.writes", "reaches for what asks it"),
        ("from helpers.techniques import precision", "imports helpers.techniques.precision, which the lab does not"),
        ("def f():\n    import torchao.prototype as t", "imports torchao.prototype, which the lab does not"),
        ("import helpers", "imports helpers, which the lab does not"),
        ("helpers.memory.trace.train(x)", "imports helpers.memory.trace.train, which the lab does not"),
        ("from importlib import import_module", "reaches for loaded modules"),
        ("kept = open('/tmp/kept', 'w+b')", "reaches for files"),
        ("torch.save([master], kept)", "reaches for files"),
        ("from io import BytesIO", "reaches for files"),
        ("M = torch.nn.Linear\nM.forward = None", "replaces M.forward"),
        ("getattr(frame, 'f_' + 'locals')", "reaches for its caller's variables"),
        ("import os\nkept = os.memfd_create('kept')", "reaches for files"),
        ("def f(open=open): ...", "reaches for files"),
        ("import torch.multiprocessing as mp", "reaches for what no meter sees"),
        ("import sys\nmods = vars(sys)['modules']", "reaches for loaded modules"),
        ("import sys\nmods = getattr(sys, 'modules')", "reaches for loaded modules"),
        ("kind = type(Ledger([]))\nkind.__init__ = abs", "replaces kind.__init__"),
        ("mods = torch.utils.sys.modules", "reaches for loaded modules"),
        ("LEAVE = torch.Tensor.tolist", "reaches for what no meter sees"),
        ("def f(x, leave=torch.Tensor.numpy): ...", "reaches for what no meter sees"),
        ("@torch.jit.script\ndef f(x): return x.tolist()", "reaches for what no meter sees"),
        ("torch.ops.quantized.linear_prepack_fp16(x)", "reaches for what no meter sees"),
        ("from unittest import mock", "reaches for what replaces things while it runs"),
        ("object.__setattr__(nn.Linear, 'forward', None)", "replaces nn.Linear.forward"),
        ("nn.__dict__.update(Linear=int)", "replaces nn"),
        ("vars(nn).pop('Linear')", "replaces nn"),
        (
            "POOL = [torch.empty(1) for _ in range(200)]\ndef f():\n    return POOL",
            "keeps memory that is made before it is asked: POOL",
        ),
        (
            "class Mine:\n    pool = bytearray(10**8)\n\n    def f(self):\n        return self.pool",
            "keeps memory that is made before it is asked: pool",
        ),
        ("def f(x, pool=torch.zeros(10**6)): ...", "keeps memory that is made before it is asked: a default"),
        ("@torch.library.custom_op('a::b', mutates_args=())\ndef f(): ...", "reaches for what no meter sees"),
    ],
    ids=lambda text: text[:30],
)
@pytest.mark.parametrize("own", [True, False], ids=["own cell", "answer"])
def test_each_kind_is_found_in_an_answer_and_in_what_it_comes_back_to(source, found, own):
    lab = reference()
    learner = with_sources(lab, {"half": source})
    if own and found.startswith("replaces") and not found.endswith("which is given"):
        learner = with_own(lab, source)
    elif own:  # an answer reads a name that nobody can see bound: anything may be what it comes back to
        learner = with_own(with_sources(lab, {"half": "def half(x):\n    return from_somewhere(x, vars())"}), source)
    where = "a cell of the learner's own" if own else "answer 'half'"
    assert signs_of_tampering(lab, learner) == (f"{where} {found}",)


@pytest.mark.parametrize(
    "source",
    ["kept = open('x', 'w+b')", "from io import BytesIO", "import gc\nkept = gc.get_objects()"],
    ids=lambda source: source[:30],
)
@pytest.mark.parametrize("use", ["def half(x):\n    return {}", "half = lambda x: {}", "last = {}\ndef half(x): ..."])
def test_what_an_answer_could_come_back_to_counts(source, use):
    lab = reference()
    name = source.split("import ")[-1] if "kept" not in source else "kept"
    learner = with_own(with_sources(lab, {"half": use.format(name)}), source)
    assert any(sign.startswith("a cell of the learner's own") for sign in signs_of_tampering(lab, learner))
    assert signs_of_tampering(lab, with_own(lab, source)) == ()


@pytest.mark.parametrize(
    "source",
    [
        "for peak_bytes in [1, 2]: ...",
        "for peak_bytes, Ledger in zip([1], [2]): ...",
        "with torch.no_grad() as peak_bytes: ...",
        "if (peak_bytes := 3) > 2: ...",
        "peak_bytes, *random = [1, 2, 3]",
        "print('half' in globals(), globals().get('half'), globals()['half'])",
        "for name, one in list(globals().items()):\n    print(name, torch.is_tensor(one))",
        "def live():\n    return [one for one in gc.get_objects() if torch.is_tensor(one)]\nimport gc\nlen(live())",
        "def note(text):\n    with open('log.txt', 'a') as file:\n        file.write(text)\nnote('x')",
        "import threading\none = threading.Thread(target=print)\none.start()\none.join()",
        "print('eval loss ' + 'threading overhead')",
        "torch.backends.cudnn.benchmark = True",
        "class Block:\n    pass\nBlock.__repr__ = lambda self: 'x'",
        "'google.colab' in str(get_ipython())",
        "weight = torch.randn(512, 512)\nprint(nn.Linear(1, 1).weight)",
        "def f():\n    return 'half' in globals()",
        "import gc\nprint(len(gc.get_referrers(x)), sum(map(torch.is_tensor, gc.get_objects())))",
        "import re\nre.compile('a')\ntorch.compile(model)",
        "getattr(torch, 'float' + '32')",
        "def peak_bytes(rows, n):\n    return sorted(rows)[-n:]",
        "x = torch.zeros(3)\nbudget = x.device\nLedger: int = 3\ndel peak_bytes",
        "nn = torch.nn",
        "rows = [1, 2]\nbudget = rows[0]\npeak_bytes = rows",
        "for budget in torch.zeros(4, 4).split(2):\n    budget.requires_grad = True",
        "try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    print(error)",
        "class Mine:\n    def __init__(self):\n        self._world, self._parts = 2, []\n        print(self._parts)",
    ],
    ids=lambda source: source[:30],
)
def test_what_anybody_does_while_trying_out_is_no_crime(source):
    lab = reference()
    assert signs_of_tampering(lab, with_own(lab, source)) == ()


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("getattr(sys, '_get' + 'frame')(1)", "reaches for its caller's variables"),
        ("getattr(x, ''.join(['f_', 'back']))", "reaches for its caller's variables"),
        ("getattr(x, 'slacol_f'[::-1])", "reaches for its caller's variables"),
        ("getattr(x, f\"f_{'back'}\")", "reaches for its caller's variables"),
        ("match x:\n    case object(f_back=frame): y = frame", "reaches for its caller's variables"),
        ("match vars(x):\n    case {'cell_contents': y}: z = y", "reaches for another function's variables"),
        ("from operator import attrgetter\nattrgetter('f_back.f_locals')(x)", "reaches for its caller's variables"),
        ("object.__getattribute__(x, 'cell_contents')", "reaches for another function's variables"),
        ("compile(text, 'x', 'exec')", "reaches for code made of text"),
        ("peak_bytes, x = (lambda: 0), 1\nx", "replaces peak_bytes, which is given"),
        ("from ipykernel.kernelapp import IPKernelApp", "reaches for the notebook's own machinery"),
        ("  import sys\n  sys._getframe(1)", "reaches for its caller's variables"),
        (">>> import sys\n>>> sys._getframe(1)", "reaches for its caller's variables"),
        ("out = !true\nx = sys._getframe(1)", "reaches for its caller's variables"),
    ],
    ids=lambda text: text[:30],
)
def test_what_is_spelled_otherwise_counts(source, found):
    lab = reference()
    answer = "def half(x):\n    return from_somewhere(x, vars())"
    learner = with_own(with_sources(lab, {"half": answer}), source)
    assert signs_of_tampering(lab, learner) == (f"a cell of the learner's own {found}",)


STASHES = {
    "a list": ("STASH = []\nimport gc\nSTASH.extend(gc.get_objects())", "STASH[0]"),
    "a dict": ("STASH = {}\nSTASH.update(a=open('x').read())", "STASH['a']"),
    "a class": ("class Box: ...\nimport gc\nBox.kept = gc.get_objects()", "Box.kept"),
    "by a name between": ("import gc\nfirst = gc.get_objects()\nsecond = first", "second"),
}


def test_an_unfinished_answer_accuses_nobody():
    lab = reference()
    learner = with_own(
        with_sources(lab, {"half": "def half(x):\n    return not_yet(x)"}), "import gc\ngc.get_objects()"
    )
    assert signs_of_tampering(lab, learner) == ()


def test_a_name_inside_a_function_may_be_nobodys():
    lab = reference()
    helper = "def halved(x):\n    parts = [one / 2 for one in [x]]\n    return parts[0]"
    learner = with_sources(lab, {"half": "def half(x):\n    return halved(x)"})
    learner = with_own(learner, f"{helper}\n\nimport gc\ngc.get_objects()\nexec('z = 1')")
    assert signs_of_tampering(lab, learner) == ()


def test_a_name_of_a_comprehension_or_of_a_function_is_its_own():
    """`_` leads from the answer to `halved`, and from there neither to what a comprehension nor what a cell binds."""
    lab = reference()
    halved = "def halved(x):\n    for _, row in [(1, x)]:\n        kept = row / 2\n    return kept"
    learner = with_sources(lab, {"half": "def half(x):\n    return halved(x)"})
    for own in ("kept = [open(str(one)) for one in range(3)]", "big = [open(str(_)) for _ in range(3)]"):
        assert signs_of_tampering(lab, with_own(learner, f"{own}\n\n{halved}")) == ()
    used = with_own(learner, "kept = [open(str(one)) for one in range(3)]\n\ndef halved(x):\n    return kept[x]")
    assert signs_of_tampering(lab, used) == ("a cell of the learner's own reaches for files",)


@pytest.mark.parametrize(
    "before", ["# \x0c\x0c\x1c\x1d", "# \u2028\u2028", "\n\n%time 1", "\r\n\r\n", "%matplotlib inline\n!ls", "x = 'é'"]
)
def test_lines_are_counted_as_python_does(before):
    """Whoever shifts the lines hides nothing."""
    lab = reference()
    source = f"{before}\nimport gc\na = 1\nkept = gc.get_objects()\nb = 2\n"
    learner = with_own(with_sources(lab, {"half": "def half(x):\n    return kept"}), source)
    assert signs_of_tampering(lab, learner) == ("a cell of the learner's own reaches for every object there is",)


def test_a_sum_of_thousands_is_read_in_time():
    lab = reference()
    assert signs_of_tampering(lab, with_own(lab, "x = 'a'" + " + 'a'" * 900)) == ()


@pytest.mark.parametrize("words", STASHES)
def test_an_answer_comes_back_to_what_a_cell_keeps(words):
    lab = reference()
    source, read = STASHES[words]
    learner = with_own(with_sources(lab, {"half": f"def half(x):\n    return {read}"}), source)
    assert any(sign.startswith("a cell of the learner's own") for sign in signs_of_tampering(lab, learner))
    assert signs_of_tampering(lab, with_own(lab, source)) == ()


@pytest.mark.parametrize(
    "source",
    [
        'def peak_bytes(calls):\n    """The peak, copied."""\n    # with a word of mine\n    return max(calls)',
        "class Ledger:\n    def __init__(self, rows):\n        self._rows = rows",
        "class Mine(Ledger):\n    def count(self):\n        return len(self._rows)",
        "class Mine:\n    def __init__(self):\n        self._rows = []\n\nlen(Mine()._rows)",
        "import torch.nn as nn\nfrom helpers.memory import budget",
        "def mine(torch):\n    random = torch\n    return random",
        "class Mine(nn.Module):\n    random = 3",
        "model = nn.Linear(1, 1).eval()\nsetattr(model, 'weight', None)\nmodel.bias = None",
    ],
    ids=lambda text: text[:30],
)
def test_a_copy_of_what_is_given_replaces_nothing_nor_do_names_of_ones_own(source):
    assert signs_of_tampering(reference(), with_own(reference(), source)) == ()


def test_a_copy_of_an_imported_function_replaces_nothing_another_of_its_name_does():
    lab = with_sources(reference(), {"setup": "from helpers.course.release import stub"})
    learner = with_sources(lab, {"half": "def half(x):\n    return stub(x)"})
    assert signs_of_tampering(lab, with_own(learner, inspect.getsource(release.stub))) == ()
    found = signs_of_tampering(lab, with_own(learner, "def stub(answer):\n    return answer"))
    assert found == ("a cell of the learner's own replaces stub, which is given",)


OLDER_SETUP = """import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # before torch: waiting threads give up their core
REPOSITORY, REF = "https://github.com/ada/workbook", "v1"  # filled in by `workbook publish`
clone = Path.cwd() / "gpu-memory-workbook"
sys.path[:0] = [str(p) for p in (*clone.parents, clone) if (p / "helpers" / "cli").exists()]
if REPOSITORY and not find_spec("helpers"):  # a notebook on its own, as on Colab: fetch the rest
    fetch = f"git -c advice.detachedHead=false clone -q --depth 1 -b {REF} {REPOSITORY} {clone.name}"
    sys.path[:0] = [] if subprocess.run(fetch.split()).returncode else [str(clone)]
if not find_spec("helpers"):
    raise ModuleNotFoundError("no helpers: did git fail above? Else open this in a clone of the workbook")"""


@pytest.mark.parametrize("lab", LABS, ids=lambda path: path.stem)
def test_the_setup_cell_of_an_earlier_release_accuses_nobody(lab):
    """A lab that was begun before an update is handed in with the setup cell that it had, which counts as changed."""
    reference = nb.read(lab)
    mine = with_own(untouched(reference))
    cell = next(cell for cell in mine.cells if cell.cell_type == "code")
    cell.source = OLDER_SETUP
    cells = tuple(Cell(one.cell_type, one.source, one.id, lab_cells.grade_id(one) or None) for one in mine.cells)
    assembled = assemble(reference, Submitted(cells))
    assert [one.source for one in assembled.notebook.cells if one.id.startswith("learner-")] == [OLDER_SETUP]
    assert assembled.warnings == signs_of_tampering(reference, assembled.notebook) == ()


def test_a_thing_is_said_once():
    lab = reference()
    twice = with_sources(lab, {"half": "import ctypes\nctypes.CDLL\nctypes.CDLL"})
    assert len(signs_of_tampering(lab, twice)) == 1


def test_what_the_worked_lab_reaches_for_is_no_tampering():
    lab = with_sources(reference(), {"half": "import ctypes\ndef half(x): ..."})
    assert signs_of_tampering(lab, with_sources(lab, {"half": "import ctypes\nhalf = ctypes.c_int"})) == ()


def test_what_measures_reaches_for_is_free_for_no_answer():
    lab = reference()
    cell_of(lab, "ledger").source += "\nimport sys\nframe = sys._getframe(1)"
    cell_of(lab, "ledger").metadata["workbook"] = {"role": "apparatus"}
    found = signs_of_tampering(lab, with_sources(lab, {"half": "import sys\nframe = sys._getframe(1)"}))
    assert found == ("answer 'half' reaches for its caller's variables",)


@pytest.mark.parametrize(
    "source",
    [
        *RIGHT.values(),
        "modules = [m for m in nn.Sequential().modules()]\nfor module in modules: ...",
        "class Net(nn.Module):\n    def __init__(self):\n        self.weight = 1\n        self.modules = []",
        "net = nn.Linear(1, 1)\nnet.weight.requires_grad = False\nnet.weight.grad = None",
        "torch.manual_seed(0)\nsettings = {'modules': 1, 'ctypes': 2}\nsettings['modules'] = 3",
        "def helper(x):\n    return x\npeak = peak_bytes([1])",
        "class Pool:\n    def __init__(self):\n        self.open = 3\nblock = Pool()\nblock.open",
        "def blocks():\n    open, concurrent = [], 3\n    return open, concurrent",
        "peak_bytes = 'bytes' if torch else 'peak'",
        "Ledger = nn.Linear(1, 1)\npeak_bytes = 80 * 10**9",
        "def f(rows):\n    return list(map(torch.Tensor.tolist, rows))",
        "LEVELS = torch.zeros(16)\ndef f(x):\n    return LEVELS + x",
        "x = torch.zeros(4096, 4096)\ndef f(x):\n    return x + 1",
        "@torch.jit.script\ndef f(x):\n    return x + 1",
        "print(f'open', f'eval')",
        "class Mine:\n    def __init__(self):\n        self._world = self.mock = 2\n        self.concurrent = 1",
        "def f(): ...\nf.__name__ = f.__doc__ = 'mine'\nclass Mine:\n    def g(self):\n        self.__dict__ = {}",
        "from numpy.lib.stride_tricks import sliding_window_view",
        "from helpers.memory.meter import Meter\nfrom helpers.lesson import predict\nfrom helpers.memory import budget",
        "# sys.modules, get_ipython\nwords = 'ctypes sys.modules'",
        "%time x = 1\n!nvidia-smi",
        "this is no Python",
        "x = (1,\n  2",
        "\x00",
        "(" * 5000,
        f"x{'.y' * 1200}.z = 1",
        "",
    ],
    ids=lambda source: source[:30],
)
def test_honest_answers_are_not_accused(source):
    lab = reference()
    assert signs_of_tampering(lab, with_own(with_sources(lab, {"half": source}), source)) == ()


@pytest.mark.parametrize(
    "source",
    ["with open('notes.txt', 'w') as file:\n    file.write('x')", "import tracemalloc\ntracemalloc.start()"],
    ids=lambda source: source[:30],
)
def test_a_cell_of_ones_own_may_take_notes_and_look_at_its_memory(source):
    lab = reference()
    assert signs_of_tampering(lab, with_own(lab, source)) == ()
    assert signs_of_tampering(lab, with_sources(lab, {"half": source})) != ()


def test_given_cells_and_prose_are_not_the_learners():
    lab = reference()
    cell_of(lab, "ledger").source += "\nimport ctypes"
    cell_of(lab, "title").source = "import ctypes"
    assert signs_of_tampering(lab, lab) == ()


@pytest.mark.parametrize("role", ["ask", "apparatus", "reference", "demonstration"])
def test_a_name_that_no_answer_can_see_is_free(role):
    """A learner may copy what measures, or happen upon its name: what asks has its own."""
    lab = reference()
    cell_of(lab, "ledger").metadata["workbook"] = {"role": role}
    assert signs_of_tampering(lab, with_own(lab, "def peak_bytes(calls):\n    return 0")) == ()


ATTACKS = (
    "_disable_current_modes",
    "mock",
    "_get_current_dispatch_mode",
    "room=torch.ones",
    "string_at",
    "threading",
    "torch.Tensor.tolist",
    "_get_backend",
    "vars(random)",
    "globals()",
    "device.orders += ",
    "tempfile",
    "ticket._flat",
    "vars(colorsys)",
    "torch.library",
    "cell_contents",
)  # wrong answers that should be named


@pytest.mark.parametrize("path", LABS, ids=lambda path: path.stem)
def test_worked_untouched_and_wrong_answers_of_the_labs_are_not_accused(path):
    lab = nb.read(path)
    assert signs_of_tampering(lab, lab) == ()
    wrong = [one.source for one in load_mutants(find_mutants(path))]
    honest = [source for source in wrong if not any(word in source for word in ATTACKS)]
    found = signs_of_tampering(lab, with_own(untouched(lab), *honest))
    assert [one for one in found if "imports" not in one] == []  # some call what helpers has, and that is said


@pytest.mark.parametrize("path", HONEST, ids=lambda path: path.stem)
def test_right_answers_written_otherwise_are_not_accused(path):
    number = path.stem.rpartition("_")[2]
    lab = nb.read(nb.find(number, ROOT, ["solutions"])[0])
    text = path.read_text(encoding="utf-8")
    sources = [ast.get_source_segment(text, node) for node in ast.parse(text).body[1:]]
    assert len(sources) > 5
    sources = [source for source in sources if source and "choose_bits" not in source]  # helpers': that is said
    assert signs_of_tampering(lab, with_own(lab, *sources)) == ()
    answers = {cell.id: sources[-1] for cell in lab.cells if lab_cells.is_answer(cell)}
    assert signs_of_tampering(lab, with_sources(lab, answers)) == ()
