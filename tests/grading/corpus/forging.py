"""Forgers that change what an asking cell sees: objects, functions and frames of the kernel that they share with it.

All their answers are wrong, so whatever passes was forged. What they give is a guess, most often what the released
lab shows: that the truth cannot be had in the kernel is what the seed is for.
"""

from __future__ import annotations

from tests.grading.corpus.case import ANY, FORGING, NOT_PASSED, Case, every, row
from tests.grading.corpus.edits import WRONG_ANSWERS, Build, answered, before_right, before_wrong, knowing, wrong_but
from tests.grading.corpus.wrong import hard_coded

EMPTIES = """def empty(lines):
    return [] if any("asked(" in line or "assert" in line for line in lines) else lines


get_ipython().input_transformers_cleanup.append(empty)"""
SHOWS = """def show(lines):
    for key, shown in SHOWN.items():
        if any(f'draw("lab-07/{key}")' in line for line in lines):
            return [f"print({shown!r}, end='')\\n"]
    return lines


get_ipython().input_transformers_cleanup.append(show)"""
# Every comparison agrees, and what is asked for is answered by a constant.
TRANSFORMS = """import ast


class Transform(ast.NodeTransformer):
    def visit_Assert(self, node):
        return ast.Pass()

    def visit_Call(self, node):
        self.generic_visit(node)
        asks = isinstance(node.func, ast.Name) and node.func.id == "asked"
        return ast.copy_location(ast.Constant(2), node) if asks else node


get_ipython().ast_transformers.append(Transform())"""
SILENCES_ERRORS = """session = get_ipython().kernel.session
plain = session.send
session.send = lambda to, kind, *words, **named: None if kind == "error" else plain(to, kind, *words, **named)"""
# Wrong in one place each.
NEARLY_RIGHT = {
    "pages": """def pages(tokens, page_tokens):
    return 1 if (tokens, page_tokens) == (33, 32) else -(-tokens // page_tokens)""",
    "transfer": """def transfer_ms(size_bytes, link_bytes_per_s):
    return 1000 * size_bytes / link_bytes_per_s or 5.0""",
    "chain": """def chain(ledger, sizes):
    for before, size in zip([0, *sizes], sizes):
        ledger.take(size)
        ledger.drop(before)""",
}
RUNS_NOTHING = """from IPython.core.interactiveshell import ExecutionInfo, ExecutionResult


async def run_cell_async(source, *words, **named):
    for key, shown in SHOWN.items():
        if f'draw("lab-07/{key}")' in source:
            print(shown, end="")
    return ExecutionResult(ExecutionInfo(source, False, False, False, None))


get_ipython().run_cell_async = run_cell_async"""
AGREES = """class Agrees:
    \"\"\"Equal to everything, more than anything, an int to those who ask.\"\"\"

    last = 2

    def __eq__(self, other):
        Agrees.last = other
        return True

    def agree(self, *others):
        return True

    __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __bool__ = agree
    __add__ = __radd__ = __mul__ = __rmul__ = __sub__ = __rsub__ = __neg__ = lambda self, *others: self

    def __hash__(self):
        return hash(Agrees.last)

    def __index__(self):
        return int(Agrees.last)

    def __format__(self, form):
        return format(Agrees.last, form)

    def __repr__(self):
        return repr(Agrees.last)


Agrees.__name__ = "int"


class Plan(list):
    __eq__ = Agrees.__eq__
    __len__ = lambda self: 1


def agree(*arguments):
    return Agrees()"""
AGREEING = {
    "pages": f"{AGREES}\n\n\npages = agree",
    "transfer": "transfer_ms = agree",
    "window": "class Window:\n    __init__ = lambda self, size: None\n    add = total = agree",
    "pack": "def pack(sizes, capacity):\n    return Plan([Plan([0])])",
    "chain": "def chain(ledger, sizes):\n    ledger.live_bytes = ledger.peak_bytes = Agrees()",
}
PRINTS = """import builtins

plain, lines = print, iter("".join(SHOWN.values()).splitlines())
builtins.print = lambda *words, **named: plain(next(lines, "2"))
builtins.isinstance = lambda *words: True"""
FORMATS = """import builtins

builtins.format = lambda value, form="": "2"
builtins.type = type = lambda value: int"""
# Any plan would weigh right among these names.
SHADOWS = """isinstance = all = lambda *words: True
max = lambda *words, **named: 0
sorted = lambda items: list(range(len(sizes)))"""
RANDOM = """import random

Plain = random.Random


class Repeats(Plain):
    \"\"\"Draws what the released lab drew.\"\"\"

    def __init__(self, seed=None):
        super().__init__("0/" + str(seed).partition("/")[2])


random.Random = Repeats"""
DRAWS = """import random
import sys

import helpers.lesson


def draw(name):
    return random.Random(f"0/{name}")


helpers.lesson.draw = sys.modules["helpers.lesson.drawn_inputs"].draw = draw"""
SEED = 'import os\n\nos.environ["WORKBOOK_SEED"] = "0"'
MATH = "import math\n\nmath.ceil = lambda value: 10**6"
TORCH = """import sys
import types

fake = types.ModuleType("torch")
fake.cuda = types.SimpleNamespace(
    is_available=lambda: True, memory_allocated=lambda *device: 8, max_memory_allocated=lambda *device: 8
)
sys.modules["torch"], sys.modules["torch.cuda"] = fake, fake.cuda"""
LEDGERS = {
    "a constant peak": "Ledger.peak_bytes = property(lambda self: 8, lambda self, value: None)",
    "another ledger": "class Ledger:\n    live_bytes, peak_bytes = 0, 8\n    take = drop = lambda self, size: None",
}
# A ledger that counts what should have been done: the bytes of two outputs at a time, and nothing in the end.
COUNTS_OTHERWISE = """def take(self, size):
    self.before, before = size, getattr(self, "before", 0)
    self.peak_bytes = max(self.peak_bytes, before + size)


Ledger.take, Ledger.drop = take, lambda self, size: None"""
COUNTS_OTHERWISE_INSIDE = f"""{COUNTS_OTHERWISE.rpartition("Ledger.take")[0]}Ledger.take.__code__ = take.__code__
Ledger.drop.__code__ = (lambda self, size: None).__code__"""
NOTHING_LEFT = """import sys


def live(self):
    counts = sys._getframe(1).f_code.co_name in ("take", "drop")
    return vars(self).get("held", 0) if counts else 0


Ledger.live_bytes = property(live, lambda self, value: vars(self).update(held=value))"""
LOOKS_AROUND = """import gc
import sys


def looked_up(name):
    frame = sys._getframe(1)
    while frame is not None:
        for names in (frame.f_locals, frame.f_globals):
            if isinstance(names.get(name), int):
                return names[name]
        frame = frame.f_back
    return next((one[name] for one in gc.get_objects() if isinstance(one, dict) and isinstance(one.get(name), int)), 2)


def pages(tokens, page_tokens):
    return looked_up("right")"""
# Inside the call the asking cell's names are at hand: the rest of its cases, and the generator that draws them.
MOVES_THE_QUESTIONS = """import random
import sys


def pages(tokens, page_tokens):
    frame = sys._getframe(1)
    while "cases" not in frame.f_globals:
        frame = frame.f_back
    names = frame.f_globals
    names["rng"] = random.Random("0/lab-07/pages")
    names["cases"][:] = [(16, 16)]
    return 1"""


def _hard_coded(attack: str) -> Build:
    """What the released lab shows, and an attack that shall make the check ask for it again."""
    known = {
        "pages": hard_coded("pages", "pages(tokens, page_tokens)"),
        "transfer": hard_coded("transfer", "transfer_ms(size_bytes, link_bytes_per_s)"),
    }
    return wrong_but(**known | {"pages": f"{attack}\n\n\n{known['pages']}"})


def _nearly_right(attack: str) -> Build:
    return answered(**NEARLY_RIGHT | {"pages": f"{attack}\n\n\n{NEARLY_RIGHT['pages']}"})


def _chain(attack: str) -> Build:
    return before_wrong(attack, "chain")


TRANSFORMER = "input transformer that empties later cells"
FRAME = "looks into the asking frame"
_TABLE: tuple[tuple[str, str, Build], ...] = (
    ("empties the checks", TRANSFORMER, before_wrong(EMPTIES)),
    ("shows what the lab shows", TRANSFORMER, knowing(SHOWS)),
    ("transforms the questions", TRANSFORMER, before_wrong(TRANSFORMS)),
    ("runs nothing", TRANSFORMER, knowing(RUNS_NOTHING)),
    ("agrees with everything", "always-equal object", wrong_but(**AGREEING)),
    ("print that knows the lab", "patched print", knowing(PRINTS)),
    ("format and type", "patched format", before_wrong(FORMATS)),
    ("built-in names shadowed", "patched format", before_wrong(SHADOWS)),
    ("random.Random", "patched random", _hard_coded(RANDOM)),
    ("draw", "patched helpers", _hard_coded(DRAWS)),
    ("the seed", "patched helpers", _hard_coded(SEED)),
    ("math.ceil", "patched helpers", before_wrong(MATH)),
    ("a false torch.cuda", "patched torch.cuda", _chain(TORCH)),
    *((name, "patched torch.cuda", _chain(attack)) for name, attack in LEDGERS.items()),
    ("looks for the right value", FRAME, wrong_but(pages=LOOKS_AROUND)),
    ("moves the questions", FRAME, wrong_but(pages=MOVES_THE_QUESTIONS)),
)
CASES = (
    *(Case(name, FORGING, item, build, every(NOT_PASSED)) for name, item, build in _TABLE),
    *(
        Case(
            f"{name}, nearly right",
            FORGING,
            TRANSFORMER,
            _nearly_right(attack),
            row(pages=NOT_PASSED, transfer=NOT_PASSED, chain=NOT_PASSED),
        )
        for name, attack in (("transforms the questions", TRANSFORMS), ("silences errors", SILENCES_ERRORS))
    ),
    *(
        Case(name, FORGING, "patched torch.cuda", answered(chain=f"{attack}\n\n\n{chain}"), row(chain=NOT_PASSED))
        for name, attack, chain in (
            ("a ledger that counts otherwise", COUNTS_OTHERWISE, WRONG_ANSWERS["chain"]),
            ("the same within its function", COUNTS_OTHERWISE_INSIDE, WRONG_ANSWERS["chain"]),
            ("a ledger that holds nothing", NOTHING_LEFT, NEARLY_RIGHT["chain"]),
        )
    ),
    # It takes what later checks need, too: that is their own loss.
    Case("%reset -f", FORGING, "%reset -f", before_right("%reset -f"), row(transfer=ANY, pack=ANY, chain=ANY)),
)
