"""What a learner does beside the answers, to try them out, accuses nobody; what an answer could come back to does."""

from __future__ import annotations

import copy

import pytest

from helpers.grading.judging.tamper_checks import signs_of_tampering
from tests.course.example_lab import code, with_sources
from tests.grading.judging.test_tamper_checks import SETUP, reference, with_own

LOOKS = {  # at what an answer returns, which `helper` calls as well
    "saved": "import json\nwith open('half.json', 'w') as file:\n    json.dump(half(3), file)",
    "traced": "import tracemalloc\ndef bench():\n    tracemalloc.start()\n    print(half(3), twice(4))\nbench()",
    "in a thread": "import threading\none = threading.Thread(target=half, args=(3,))\none.start()",
    "in a pool": "from concurrent.futures import ThreadPoolExecutor as P\nprint(list(P(2).map(half, [1, 2])))",
    "by name": "def show(f):\n    open('doc.txt', 'w').write(f.__doc__)\nshow(half)\nopen('x').write(half.__name__)",
    "in a file that another cell's name is": "with open('x.json') as file:\n    result = file.read()",
}
ANSWER = """from dataclasses import dataclass

STEP = 2
LEVELS = torch.tensor([0.5, 0.25])

@dataclass
class Part:
    size: int
    def of(self, x):
        return x / self.size * LEVELS[0] / LEVELS[0]

def half(x, deep=True):
    return half(x, False) if deep else Part(STEP).of(x)

result = half(3)
print(result)"""


@pytest.mark.parametrize("words", LOOKS)
def test_who_looks_at_what_an_answer_returns_is_not_accused(words):
    """Nothing stays behind in a function that keeps nothing, whoever calls it."""
    lab = reference()
    learner = with_sources(lab, {"half": ANSWER, "twice": "def twice(x):\n    return int(4 * half(x))"})
    assert signs_of_tampering(lab, with_own(learner, LOOKS[words])) == ()


KEEPING = {  # what is given to such an answer may be there when it is asked
    "a default": ("def half(x, kept=[]):\n    kept.append(x)\n    return half", "half(gc.get_objects())"),
    "a list": ("KEPT = []\ndef half(x):\n    KEPT.append(x)\n    return half", "half(gc.get_objects())"),
    "a value of its own": ("def half(x):\n    half.kept = x\n    return half", "half(gc.get_objects())"),
    "an attribute that is set": ("def half(x):\n    return half.kept", "half.kept = gc.get_objects()"),
    "an attribute by text": ("def half(x):\n    return half", "setattr(half, 'kept', gc.get_objects())"),
    "a cache": ("from functools import cache\n@cache\ndef half(x):\n    return half", "half(gc.get_objects())"),
    "a class": ("class half:\n    kept = []\n    def f(self):\n        return half", "half.kept += gc.get_objects()"),
    "an object's class": (
        "class half:\n    def f(self, x):\n        self.__class__.kept = x\n        return half",
        "half().f(gc.get_objects())",
    ),
    "a global": ("def half(x):\n    global kept\n    kept = x\n    return half", "half(gc.get_objects())"),
    "what is given": ("def half(x):\n    CASES[0] = x\n    return half", "half(gc.get_objects())"),
    "by another": (
        "KEPT = {}\ndef keep(x):\n    KEPT[0] = x\ndef half(x):\n    keep(x)\n    return half",
        "keep(gc.get_objects())",
    ),
}


@pytest.mark.parametrize("words", KEEPING)
def test_who_hands_something_to_an_answer_that_keeps_it_is_named(words):
    lab = with_sources(reference(), {"setup": f"{SETUP}\nCASES = [1]"})
    answer, hands = KEEPING[words]
    learner = with_own(with_sources(lab, {"half": answer}), f"import gc\n{hands}")
    assert signs_of_tampering(lab, learner) == ("a cell of the learner's own reaches for every object there is",)


@pytest.mark.parametrize(
    ("made", "changed"),
    [
        ("device = nn.Linear(1, 1)", "device.bias = None\ndevice.weight.requires_grad = False\ndel device"),
        ("class Mine: ...", "Mine.__repr__ = lambda self: 'mine'\nMine.total = 3"),
        ("def build():\n    return nn.Linear(1, 1)\ndevice = build()", "device.eval()\ndevice.name = 'small'"),
        ("device = [torch.rand(3)][0]", "device.requires_grad = True"),
    ],
    ids=lambda source: source[:20],
)
def test_what_one_cell_makes_another_may_change(made, changed):
    lab = with_sources(reference(), {"setup": f"{SETUP}\nfrom helpers.catalog import device"})
    assert signs_of_tampering(lab, with_own(lab, made, changed)) == ()
    assert "replaces torch.Tensor" in str(
        signs_of_tampering(lab, with_own(lab, "torch = device()", "torch.Tensor = None"))
    )


COPY = "def peak_bytes(calls):\n    count = len(calls)\n    print(count)\n    return max(calls)"
LONGER = "class Ledger:\n    def __init__(self, rows, name=''):\n        self._rows = rows\n        self.name = name\n"


@pytest.mark.parametrize("copy", [COPY, f"{LONGER}\n    def __repr__(self):\n        return self.name"])
def test_a_copy_with_lines_of_ones_own_replaces_nothing(copy):
    lab = reference()
    answer = "def half(x):\n    return peak_bytes(Ledger([x])) / 2"
    assert signs_of_tampering(lab, with_sources(lab, {"half": f"{copy}\n\n{answer}"})) == ()
    assert signs_of_tampering(lab, with_own(with_sources(lab, {"half": answer}), copy)) == ()
    other = copy.replace("return max(calls)", "return 0").replace("= rows", "= []")
    assert "which is given" in str(signs_of_tampering(lab, with_sources(lab, {"half": f"{other}\n\n{answer}"})))


SMALL = ["torch.zeros(2**7)", "torch.full((16,), -torch.inf)", "torch.zeros(BITS, 16)", "torch.randint(0, 9, (64,))"]
SMALL += ["[torch.zeros(4) for _ in range(8)]", "torch.Generator()"]
LARGE = [
    "torch.zeros(2**20)",
    "torch.full((10**8,), 0)",
    "torch.zeros(size=(4096, 64))",
    "torch.randint(0, 2, (10**8,))",
]
LARGE += ["torch.zeros(COUNT, 16)", "[torch.zeros(64) for _ in range(4096)]", "torch.zeros(2**2**9)"]


@pytest.mark.parametrize("value", SMALL + LARGE)
def test_a_table_is_no_store(value):
    lab = reference()
    answer = f"BITS = 8\nCOUNT = 8\nCOUNT = 10**9\nTABLE = {value}\ndef half(x):\n    return TABLE[x]"
    told = ("answer 'half' keeps memory that is made before it is asked: TABLE",) if value in LARGE else ()
    assert signs_of_tampering(lab, with_sources(lab, {"half": answer})) == told


def test_names_that_a_star_imports_are_known():
    lab = reference()
    learner = with_sources(lab, {"half": "def half(x):\n    return floor(x) / fsum([2])"})
    scratch = "import tracemalloc\ntracemalloc.start()\nnn.Linear(1, 1).eval()"
    assert signs_of_tampering(lab, with_own(learner, "from math import *", scratch)) == ()


def test_what_an_answers_cell_makes_to_try_it_out_is_no_store():
    lab = reference()
    tries = "def half(x):\n    return x.weight / 2\n\nweight = torch.rand(512, 512)\nhalf(nn.Linear(3, 3))"
    assert signs_of_tampering(lab, with_sources(lab, {"half": tries})) == ()
    told = ("answer 'half' keeps memory that is made before it is asked: weight",)
    assert signs_of_tampering(lab, with_sources(lab, {"half": tries.replace("x.weight", "weight")})) == told


def test_what_a_name_means_below_the_last_question_no_answer_finds():
    lab, source = reference(), "peak_bytes = lambda calls: 0"
    learner = with_sources(lab, {"half": "def half(x):\n    return peak_bytes([x]) / 2"})
    below = copy.deepcopy(learner)
    below.cells.append(code(source, "learner-below"))
    assert "replaces peak_bytes, which is given" in str(signs_of_tampering(lab, with_own(learner, source)))
    assert signs_of_tampering(lab, below) == ()
