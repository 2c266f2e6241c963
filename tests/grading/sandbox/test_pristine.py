"""What answers may replace in what they share with the questions: it is put back and named, and nothing else is."""

from __future__ import annotations

import subprocess
import sys
import threading
import tracemalloc  # noqa: F401  # which the meters have imported by then
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from helpers.grading.sandbox.pristine import Pristine, copies

ROOT = Path(__file__).resolve().parents[3]
GIVEN = """
import functools
import random

import torch
from torch import nn

from helpers.lesson import draw


def logged(function):
    @functools.wraps(function)
    def inner(*arguments):
        return function(*arguments)

    return inner


class Base:
    def close(self):
        return "closed"


class Ledger(Base):
    note = ""
    takes = 0

    def __init__(self):
        self.held = self.peak = 0

    def take(self, size):
        self.takes += 1
        self.held += size

    @property
    def live(self):
        return self.held

    @staticmethod
    def made():
        return "made"

    @classmethod
    def empty(cls):
        return cls()

    @functools.cached_property
    def first(self):
        return self.held

    @logged
    def drop(self, size):
        self.held -= size


class Slots:
    __slots__ = ("held",)


def size_of(count, each=4, *, more=0):
    return count * each + more


@functools.lru_cache
def cached(size):
    return size


def total(sizes):
    return sum(size_of(size) for size in sizes)


wrapped = logged(size_of)
ledger, slots = Ledger(), Slots()
sizes = [1, [2, 3]]
"""
# After it was put back, all of this is as it was.
WHOLE = """
def told():
    one = Ledger()
    one.take(3)
    one.drop(1)
    ledger.take(0)
    words = one.live, one.made(), Ledger.empty().held, one.close(), one.peak, one.first
    sizes = size_of(2), size_of(2, more=1), wrapped(2), total([1, 2]), cached(3)
    return words, sizes, len([1, 2]), torch.ones(2).numel()


told = told()
"""


@pytest.fixture
def given() -> SimpleNamespace:
    """What a lab gives, what asks it, and what is told of it before anybody answered."""
    names: dict = {"__name__": "__main__"}
    exec(GIVEN, names)
    names["HELPERS"] = sys.modules["helpers.lesson.plain"]
    pristine, answers = Pristine(dict(names)), copies(names)
    return SimpleNamespace(pristine=pristine, answers=answers, told=told(pristine.namespace))


def told(names: dict) -> tuple:
    asks = dict(names)
    exec(WHOLE, asks)
    return asks["told"]


NOTHING = "lambda *arguments, **more: 0"
REPLACES = {
    f"Ledger.take = {NOTHING}": "Ledger.take",
    f"Ledger.__init__ = {NOTHING}": "Ledger.__init__",
    f"Ledger.live = property({NOTHING})": "Ledger.live",
    f"Ledger.made = staticmethod({NOTHING})": "Ledger.made",
    f"Ledger.empty = classmethod({NOTHING})": "Ledger.empty",
    "del Ledger.take": "Ledger.take",
    f"Ledger.close = {NOTHING}": "Ledger.close",
    f"Base.close = {NOTHING}": "Base.close",
    f"Ledger.__getattribute__ = {NOTHING}": "Ledger.__getattribute__",
    f"Ledger.__setattr__ = {NOTHING}": "Ledger.__setattr__",
    f"Ledger.peak = property({NOTHING}, {NOTHING})": "Ledger.peak",
    f"Ledger.take.__code__ = ({NOTHING}).__code__": "Ledger.take",
    f"Ledger.live.fget.__code__ = ({NOTHING}).__code__": "Ledger.live",
    f"Ledger.made.__code__ = ({NOTHING}).__code__": "Ledger.made",
    f"Ledger.empty.__func__.__code__ = ({NOTHING}).__code__": "Ledger.empty",
    "Ledger.drop.__wrapped__.__code__ = (lambda self, size: None).__code__": "Ledger.drop",
    f"size_of.__code__ = ({NOTHING}).__code__": "size_of",
    "size_of.__defaults__ = (7,)": "size_of",
    "size_of.__kwdefaults__['more'] = 7": "size_of",
    "size_of.__kwdefaults__ = {'more': 7}": "size_of",
    "wrapped.__wrapped__.__code__ = (lambda count, each=4, *, more=0: 0).__code__": "size_of",
    f"wrapped.__closure__[0].cell_contents = {NOTHING}": "wrapped",
    f"ledger.take = {NOTHING}": "ledger.take",
    f"vars(ledger)['made'] = {NOTHING}": "ledger.made",
    f"HELPERS.to_json = {NOTHING}": "helpers.lesson.plain.to_json",
    f"HELPERS.len = {NOTHING}": "helpers.lesson.plain.len",
    f"HELPERS.to_json.__code__ = ({NOTHING}).__code__": "helpers.lesson.plain.to_json",
    f"torch.Tensor.numel = {NOTHING}": "torch.Tensor.numel",
    f"nn.Module.__call__ = {NOTHING}": "torch.nn.Module.__call__",
    f"torch.ones = {NOTHING}": "torch.ones",
    f"torch.UntypedStorage.nbytes = {NOTHING}": "torch.UntypedStorage.nbytes",
    f"torch.UntypedStorage.resize_ = {NOTHING}": "torch.UntypedStorage.resize_",
    f"import tracemalloc\ntracemalloc.Snapshot.filter_traces = {NOTHING}": "tracemalloc.Snapshot.filter_traces",
    f"import tracemalloc\ntracemalloc.take_snapshot = {NOTHING}": "tracemalloc.take_snapshot",
    f"import weakref\nweakref.finalize.detach = {NOTHING}": "weakref.finalize.detach",
    f"import builtins\nbuiltins.len = {NOTHING}": "builtins.len",
    f"import json\njson.dumps = {NOTHING}": "json.dumps",
    f"random.Random = {NOTHING}": "random.Random",
}


@pytest.mark.parametrize(("source", "name"), REPLACES.items(), ids=list(REPLACES))
def test_what_was_replaced_is_put_back_and_named(given, source, name):
    exec(source, given.answers)
    assert name in given.pristine.restore()
    assert told(given.pristine.namespace) == given.told
    assert given.pristine.restore() == [], "it is named once"


HONEST = {
    "twice = lambda x: 2 * x": "a function of its own",
    "class Mine(Ledger):\n    def take(self, size):\n        return None": "a class made of a given one",
    "def size_of(count):\n    return 0\nclass Ledger: ...": "names that are given",
    "ledger.take(3)\nledger.held = 8\nledger.mine = 1": "an object that is used",
    "ledger.first": "a value that is computed once",
    "cached(7)\ncached.cache_clear()": "a cache",
    "Ledger.note = 'x'\nLedger.count = 1": "a word about a class",
    "import helpers.lesson.units\nimport colorsys, statistics": "imports",
    "import tracemalloc\ntracemalloc.start()\ntracemalloc.take_snapshot().statistics('lineno')\ntracemalloc.stop()": (
        "its own look at memory"
    ),
    "torch.manual_seed(3)\nnet = nn.Linear(2, 2)\nnet(torch.ones(2)).sum().backward()": "training",
    "copy = size_of\nmore = lambda *a: size_of(*a)": "a given function by another name",
    "slots.held = 3": "an object without a dict",
    "sizes.append(4)\nsizes[1].append(5)\nsizes = None": "a list of its own",
    "net = nn.Linear(2, 2)\nnet.forward = lambda x: x": "an object of its own",
    "random.seed(3)\nrandom.random()\ndraw('lab')": "drawn numbers",
}


def test_what_pytorch_replaces_itself_is_nobodys_doing():
    """In a process of its own: elsewhere torch._dynamo may have been imported before."""
    source = """
import sys, torch
from helpers.grading.sandbox.pristine import Pristine
assert "torch._dynamo" not in sys.modules
pristine, before = Pristine({}), torch.manual_seed
import torch._dynamo
assert torch.manual_seed is not before
assert pristine.restore() == []
torch.manual_seed(3)"""
    done = subprocess.run([sys.executable, "-c", source], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("source", HONEST, ids=HONEST.values())
def test_honest_work_is_not_accused(given, source, monkeypatch):
    monkeypatch.setenv("WORKBOOK_SEED", "7")
    exec(source, given.answers)
    assert given.pristine.restore() == []
    assert told(given.pristine.namespace) == given.told
    assert given.pristine.namespace["sizes"] == [1, [2, 3]]


def test_what_questions_assign_is_gone_before_the_next(given):
    exec("drawn = 3\nsize_of = None", given.pristine.namespace)
    given.pristine.restore()
    assert "drawn" not in given.pristine.namespace
    assert given.pristine.namespace["size_of"](2) == 8


def test_nobody_watches_the_questions(given):
    for name, watch in (("settrace", sys.gettrace), ("setprofile", sys.getprofile)):
        before = watch()
        exec(f"import sys\nsys.{name}(lambda *arguments: None)", given.answers)
        given.pristine.restore()
        assert watch() is None
        getattr(sys, name)(before)


def test_lists_dicts_and_sets_are_copied_and_nothing_else():
    tensor, lock = torch.ones(1), threading.Lock()
    given = {"deep": {"a": [1]}, "few": {1}, "tensor": tensor, "locks": [lock], "pair": (1, [2])}
    found = copies(given)
    found["deep"]["a"].append(2)
    found["few"].add(2)
    assert given["deep"] == {"a": [1]}
    assert given["few"] == {1}
    assert found["tensor"] is tensor
    assert found["locks"][0] is lock
    assert found["pair"] is given["pair"]


CONSTANTS = {
    "process.PRIVATE = ()": "helpers.memory.meter.process.PRIVATE",
    "process.MAPPED_BYTES = 1": "helpers.memory.meter.process.MAPPED_BYTES",
    "message.UNITS['B'] = 0": "helpers.memory.oom.message.UNITS",
    "del message.UNITS['B']": "helpers.memory.oom.message.UNITS",
    "asking._USES.add('x')": "helpers.lesson.asking._USES",
    "asking._USES.clear()": "helpers.lesson.asking._USES",
    "snapshot.append(1)": "tests' own",
}


@pytest.mark.parametrize("attack", CONSTANTS)
def test_constants_of_ours_are_put_back(attack):
    from helpers.lesson import asking
    from helpers.memory.meter import process
    from helpers.memory.oom import message

    def now():
        return process.PRIVATE, process.MAPPED_BYTES, dict(message.UNITS), set(asking._USES)

    pristine, before = Pristine({}), now()
    exec(attack, {"process": process, "message": message, "asking": asking, "snapshot": []})
    named = [CONSTANTS[attack]] if now() != before else []
    assert pristine.restore() == named
    assert now() == before
    assert pristine.restore() == []
