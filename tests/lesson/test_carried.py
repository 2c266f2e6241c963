"""What goes on in another process: what the attributes hold, and nothing else."""

from __future__ import annotations

import _posixsubprocess
import errno
import os
import random
import resource
import subprocess
import sys
from collections import OrderedDict, defaultdict
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import numpy
import pytest
import torch

from helpers.catalog.errors import WorkbookError
from helpers.lesson import asking
from helpers.lesson import carried as module
from helpers.lesson.carried import carried, state_of
from tests.house.tree import ROOT

TABLE: dict = {}


class Keeper:
    """Keeps one value in many ways."""

    in_class: dict = {}  # noqa: RUF012

    class Entry:
        __slots__ = ("value",)

    def __init__(self, first):
        self.kept, self.clock, self.array = OrderedDict(first=first), count(5), numpy.arange(6)[::2]
        self.made = defaultdict(lambda: first)
        self.tensors = torch.arange(6)[:2], torch.zeros(()), torch.zeros(0, 3, dtype=torch.bfloat16)
        self.entry = Keeper.Entry()
        self.entry.value = self

    def all(self):
        return [
            *self.kept.values(), next(self.clock), *self.array.tolist(), self.made["new"], *self.tensors[0].tolist(),
            str(self.tensors[2].dtype), list(self.tensors[2].shape), self.entry.value is self,
        ]  # fmt: skip


def twice(kind, arguments, first, then):
    """What `first` and, in the next process, `then` make of it."""
    found, state = carried(kind, arguments, first)
    return found, carried(kind, arguments, then, state)[0]


@pytest.fixture(params=[True, False], ids=["forks", "here"])
def either_way(request, monkeypatch):
    monkeypatch.setattr(module, "FORKS", request.param)


@pytest.mark.usefixtures("either_way")
def test_what_attributes_hold_goes_on():
    right = [7, 0, 2, 4, 7, 0, 1, "torch.bfloat16", [0, 3], True]
    assert twice(Keeper, (7,), Keeper.all, Keeper.all) == ([7, 5, *right[1:]], [7, 6, *right[1:]])


HIDDEN = {
    "a global": lambda keeper: TABLE,
    "its class": lambda keeper: Keeper.in_class,
    "a library": lambda keeper: vars(random).setdefault("table", {}),
    "a default": lambda keeper, table={}: table,
    "an attribute of a tensor": lambda keeper: vars(keeper.tensors[1]).setdefault("table", {}),
}


@pytest.mark.parametrize("place", HIDDEN)
def test_what_is_kept_elsewhere_does_not(place):
    def keep(keeper):
        HIDDEN[place](keeper)["kept"] = 1
        return len(HIDDEN[place](keeper))

    assert twice(Keeper, (7,), keep, lambda keeper: len(HIDDEN[place](keeper))) == (1, 0)


def in_a_semaphore(name):
    multiprocessing = pytest.importorskip("_multiprocessing")
    multiprocessing.SemLock(1, 5, 9, name, False)


def in_a_history(path):
    pytest.importorskip("readline").write_history_file(path)


def in_arguments(text):
    ends = os.pipe()
    given = [b"/bin/sleep", b"60", text.encode()]
    options = (True, (ends[1],), None, [], *[-1] * 6, *ends, False, False, 0, None, None, None, -1, None, False)
    return _posixsubprocess.fork_exec(given, given[:1], *options[: 21 if sys.version_info >= (3, 11) else 20])


SYSTEM = {  # where a router's table lay, by ways of which Python tells nobody
    "a semaphore": lambda at: in_a_semaphore(f"/{at.name}"),
    "a file of readline's": lambda at: in_a_history(str(at / "history")),
    "the name of a folder": lambda at: (at / "name").mkdir(),
    "the time of a file": lambda at: os.utime(at, (5, 5)),
    "a process's arguments": lambda at: in_arguments(str(at)),
    "a parent's priority": lambda at: os.setpriority(os.PRIO_PROCESS, os.getppid(), 1),
    "a parent's processors": lambda at: os.sched_setaffinity(os.getppid(), os.sched_getaffinity(0)),
    "a signal": lambda at: os.kill(os.getppid(), 0),
    "a limit of its parent's": lambda at: resource.prlimit(os.getppid(), resource.RLIMIT_CORE, (0, 0)),
}


@pytest.mark.parametrize("place", SYSTEM)
@pytest.mark.skipif(sys.platform != "linux", reason="Linux filters a process's calls")
def test_nothing_is_left_in_the_system(place, tmp_path):
    def leave(keeper):
        try:
            SYSTEM[place](tmp_path)
        except OSError as error:
            return errno.errorcode[error.errno or 0]
        return "left"

    assert carried(Keeper, (7,), leave)[0] in ("EPERM", "EACCES")
    assert [*tmp_path.iterdir()] == []


@pytest.mark.skipif(sys.platform != "linux", reason="Linux filters a process's calls")
def test_who_leaves_nothing_reads_computes_and_begins_threads():
    def works(keeper):
        with ThreadPoolExecutor(2) as pool:
            sums = [*pool.map(sum, [(1, 2), (3, 4)])]
        return [*sums, float((torch.ones(300, 300) @ torch.ones(300, 300)).sum()), len(open(__file__).read()) > 99]

    assert carried(Keeper, (7,), works)[0] == [3, 7, 300.0**3, True]


def with_a_list(first):
    return [first], Keeper(first)


def test_what_a_class_holds_does_not_go_on_in_what_a_function_made(monkeypatch):
    monkeypatch.setattr(Keeper, "in_class", {})

    def keep(pair):
        pair[1].in_class["kept"] = 1
        return len(pair[1].in_class)

    assert twice(with_a_list, (7,), keep, lambda pair: len(pair[1].in_class)) == (1, 0)


def test_a_view_goes_on_without_what_it_is_a_view_of():
    bases = twice(
        Keeper,
        (7,),
        lambda keeper: keeper.tensors[0]._base is None,
        lambda keeper: getattr(keeper.array.base, "size", 3),
    )
    assert bases == (False, 3)


def test_tensors_of_one_storage_share_it_again_and_are_paid_once():
    def begun():
        weight = torch.zeros(1000)
        return weight, weight.view(10, 100), weight.data, weight.untyped_storage(), weight[:10]

    def add(them):
        them[0].add_(1)
        return [one.sum().item() for one in them if isinstance(one, torch.Tensor)] + [them[3][3]]

    once = twice(begun, (), add, add)
    assert once == ([1000.0, 1000.0, 1000.0, 10.0, 63], [2000.0, 2000.0, 2000.0, 10.0, 64])
    assert len(state_of(begun())) < 4000 + 40 + 1000


def test_an_offset_that_processes_share_holds_no_number(tmp_path):
    def set_offset(keeper):
        try:
            return os.lseek(file.fileno(), 5, os.SEEK_SET)
        except OSError:
            return "closed"

    (tmp_path / "file").write_text("some bytes")
    with open(tmp_path / "file", "rb") as file:
        assert carried(Keeper, (7,), set_offset)[0] == "closed"


@pytest.mark.skipif(not module.FORKS, reason="here nothing is freed between two processes")
def test_what_was_printed_is_in_no_memory_that_the_next_process_takes(monkeypatch):
    monkeypatch.setattr(asking._desk, "blames", {})  # as where a grader asks

    def marks():
        taken = [numpy.empty(size, numpy.uint8).tobytes() for size in range(31_500, 1100, -400)]
        return sum(text.count("\u1234\u4321".encode()) for text in taken)

    def say(keeper):
        print("\u1234\u4321" * 4000)

    assert twice(Keeper, (7,), say, lambda keeper: marks()) == (None, 0)


def test_a_state_takes_what_is_in_it():
    empty = len(state_of({}))
    assert len(state_of(dict.fromkeys(range(10**9, 10**9 + 100), 1))) - empty == pytest.approx(700, abs=20)
    assert len(state_of(torch.zeros(1 << 20)[:100])) < 600


def test_what_no_other_process_could_go_on_with_is_named():
    with pytest.raises(WorkbookError, match=r"what dict remembers cannot go on.*generator"):
        state_of({"keeper": (one for one in ())})


@pytest.mark.usefixtures("either_way")
def test_an_error_is_raised_here_with_its_line():
    with pytest.raises(ZeroDivisionError) as error:
        carried(Keeper, (0,), lambda keeper: 1 // keeper.kept["first"])
    assert error.traceback[-1].path.name == "test_carried.py"


def test_who_ends_the_process_is_not_served_here():
    here = os.getpid()
    with pytest.raises(RuntimeError, match="Keeper ended its process"):
        carried(Keeper, (7,), lambda keeper: os.getpid() == here or os._exit(0))


def test_prints_are_seen(capsys):
    carried(Keeper, (7,), lambda keeper: print("kept", keeper.kept["first"]))
    assert capsys.readouterr().out == "kept 7\n"


THREADS = """
import torch
from helpers.lesson.carried import carried

class Kept:
    def __init__(self):
        self.x = torch.randn(512, 512)

torch.set_num_threads(2)
torch.randn(600, 600).sort()  # threads start
print(carried(Kept, (), lambda one: float((one.x @ one.x).softmax(-1).sum().round()))[0])
"""


def test_kernels_of_another_process_wait_for_no_thread_that_was_not_forked():
    run = subprocess.run([sys.executable, "-c", THREADS], capture_output=True, text=True, timeout=100, cwd=ROOT)
    assert run.stdout == "512.0\n", run.stderr
