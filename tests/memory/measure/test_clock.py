"""The clock: the fastest of many runs, timed in turns until nothing gets faster."""

import time

import pytest
import torch

from helpers.catalog import WorkbookError
from helpers.memory import measure
from helpers.memory.measure import clock


class Scripted:
    """A run whose times are written down; `timer` answers with them in place of a clock."""

    def __init__(self, *seconds):
        self.seconds, self.asked = list(seconds), 0

    def __call__(self):
        self.asked += 1
        return self.seconds.pop(0) if len(self.seconds) > 1 else self.seconds[0]


@pytest.fixture
def scripted(monkeypatch):
    monkeypatch.setattr(clock, "_on_cpu", lambda run: run())


def test_the_fastest_run_counts_not_the_mean(scripted):
    assert clock.fastest(Scripted(9, 5, 7, 3, 8), "cpu") == 3


def test_five_passes_are_enough_where_nothing_gets_faster(scripted):
    run = Scripted(1.0)
    clock.fastest(run, "cpu")
    assert run.asked == 1 + clock.LEAST_PASSES * clock.RUNS


def test_it_goes_on_while_anything_gets_faster(scripted):
    late = 1 + 4 * clock.RUNS  # in the last of the passes that there are anyway
    steady, slow = Scripted(1.0), Scripted(*[8.0] * late, 4.0)
    assert clock.settle({"steady": steady, "slow": slow}, "cpu") == {"steady": 1.0, "slow": 4.0}
    assert steady.asked == 1 + 7 * clock.RUNS  # two quiet ones more
    run = Scripted(*(10 / 1.05**at for at in range(100)))  # always faster: it must end all the same
    clock.fastest(run, "cpu")
    assert run.asked == 1 + clock.MOST_PASSES * clock.RUNS


def test_runs_take_turns(scripted):
    order = []
    clock.settle({name: lambda name=name: order.append(name) or 1.0 for name in "ab"}, "cpu")
    assert order[:8] == ["a", "b", "a", "a", "a", "b", "b", "b"]


def test_against_another_a_slow_pass_slows_both_and_changes_nothing(scripted):
    """`twice` takes twice as long, on a machine that is three times slower but in one pass, which it misses."""
    machine = [1, *[3.0] * 3, *[1.0] * 3, *[3.0] * 30]
    one = Scripted(*machine)
    twice = Scripted(2, *[6.0] * 3, *[6.0] * 3, *[6.0] * 30)
    together = clock.settle({"one": one, "twice": twice}, "cpu", against="one")
    assert together["twice"] / together["one"] == pytest.approx(2)
    alone = clock.settle({"one": Scripted(*machine), "twice": Scripted(*[6.0] * 30)}, "cpu")
    assert alone["twice"] / alone["one"] == 6  # what the fastest runs say


def test_what_is_compared_with_must_be_there():
    with pytest.raises(WorkbookError, match="run to compare with"):
        measure.settle({"one": lambda: None}, "cpu", against="on")


def test_real_time_passes():
    assert clock.fastest(lambda: time.sleep(0.002), "cpu") >= 0.002


@pytest.mark.parametrize("device", ["gpu", "cud", 7.5, "meta", "mps"])
def test_a_device_that_cannot_be_timed_is_refused(device):
    with pytest.raises(WorkbookError):
        measure.fastest(lambda: None, device)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_without_a_gpu_cuda_is_refused_and_a_graph_is_the_run_itself():
    with pytest.raises(WorkbookError, match="no GPU"):
        measure.fastest(lambda: None, "cuda")
    run = lambda: None  # noqa: E731 - its identity is what is tested
    assert measure.graphed(run) is run
    assert measure.default_device() == "cpu"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_a_graph_computes_the_same_and_time_is_the_device_s():
    x = torch.ones(1000, device="cuda")
    replay = measure.graphed(lambda: x.add_(1))
    before = x[0].item()
    replay()
    assert x[0].item() == before + 1
    big = torch.ones(2**28, device="cuda")
    assert 1e-5 < measure.fastest(big.sum) < 1
