"""Every experiment runs once, at toy sizes on this CPU, and what it counts is what the instruments predict."""

from __future__ import annotations

import sys

import pytest
import torch

from helpers.catalog.errors import WorkbookError
from helpers.catalog.train_setup import TrainSetup
from helpers.course.record import training
from helpers.course.record.experiments import EXPERIMENTS, chosen
from helpers.course.record.target import FULL_SIZE
from helpers.memory.accuracy import recorded
from helpers.memory.accuracy.recordings import Entry
from helpers.memory.allocator import compare_with_snapshot
from tests.course.record.rehearsal import MACHINE, MADE, TOY, rehearsed

# The figures of each, and how many numbers the instruments answer; of times and rates a CPU has no datasheet.
FIGURES = {
    "03/snapshot-random": (1, 0),
    "03/snapshot-cat": (1, 1),
    "03/snapshot-train": (2, 3),
    "01/bandwidth": (1, 0),
    "01/host-link": (1, 0),
    "01/roofline": (3, 0),
    "05/nf4-8b": (4, 2),
    "05/int8-8b": (2, 1),
    "05/bf16-8b": (2, 1),
    "01/decode-8b": (1, 0),
    "12/decode-8b": (2, 2),
    "02/train-1b": (3, 3),
    "02/train-1b-autocast": (3, 3),
    "06/checkpointing-1b": (9, 9),
    "12/kv-long": (1, 2),
}


def test_the_table_lists_each_experiment_once():
    assert {one.name for one in EXPERIMENTS} == set(FIGURES)
    assert len(EXPERIMENTS) == len(FIGURES)


def each_once():
    """All of them; those that take a few seconds of steps and traces are left to `make test-slow`."""
    slow = ("02/train-1b-autocast", "06/checkpointing-1b", "03/snapshot-train", "05/nf4-8b")
    return [pytest.param(one, id=one.name, marks=[pytest.mark.slow] * (one.name in slow)) for one in EXPERIMENTS]


@pytest.mark.parametrize("one", each_once())
def test_it_runs_and_agrees_with_the_predictions(one):
    with rehearsed() as target:
        figures = list(one.run(target))
    answered = 0
    for figure in figures:
        entry = Entry(
            one.name,
            figure.label,
            figure.quantity,
            figure.unit,
            figure.setup,
            figure.values,
            MADE,
            figure.x,
            figure.x_unit,
        )
        for instrument, answers in recorded.predictions(entry, MACHINE).items():
            assert answers == pytest.approx(entry.values, rel=recorded.ALLOWED[instrument]), (entry, instrument)
            answered += len(answers)
        if figure.history:
            assert compare_with_snapshot(figure.history).agrees
    assert (len(figures), answered) == FIGURES[one.name]


@pytest.mark.parametrize("case", [training.BF16, training.AUTOCAST, *training.BY_POLICY])
def test_what_is_recorded_of_a_step_rebuilds_its_setup(case):
    fields = case.recorded(TOY)
    assert fields.pop("kind") == "train"
    assert TrainSetup(**fields) == case.setup(TOY)


def test_what_each_needs_in_earnest_is_no_guess():
    """The closed form's bytes, plus a margin: 13.2 GiB of training, 15 GiB of weights, 5.6 in four bits."""
    gib = {one.name: one.needs(FULL_SIZE) / 2**30 for one in EXPERIMENTS}
    assert 13.2 < gib["03/snapshot-train"] == gib["02/train-1b"] < 14
    assert 15 < gib["01/decode-8b"] == gib["05/bf16-8b"] < 15.6
    assert 6 < gib["05/nf4-8b"] < 6.3
    assert 19.5 < gib["06/checkpointing-1b"] < 21
    assert gib["12/kv-long"] < 17
    assert all(one.needs(TOY) < 5 * 2**30 for one in EXPERIMENTS)


def test_long_contexts_stop_where_the_memory_does():
    kv = next(one for one in EXPERIMENTS if one.name == "12/kv-long")
    with rehearsed(free_bytes=kv.needs(TOY)) as target:
        (figure,) = kv.run(target)
    assert figure.x == TOY.contexts[:1]


def test_a_history_wants_an_allocator_that_holds_nothing():
    with rehearsed() as target:
        left = torch.ones(1000)
        with pytest.raises(WorkbookError, match="were reserved before"):
            list(EXPERIMENTS[0].run(target))
    assert left is not None


def test_a_peak_leaves_out_what_was_there_before():
    with rehearsed() as target:
        left = torch.ones(2**20)
        before, made = target.gpu.memory(), []
        peak = target.peak_over(before, lambda: made.append(torch.ones(3 * 2**20)))
    assert (before.allocated, peak.allocated) == (left.nbytes, 12 * 2**20)


def test_without_bitsandbytes_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with rehearsed() as target, pytest.raises(WorkbookError, match="pip install --no-deps bitsandbytes"):
        list(chosen(["05/int8-8b"])[0].run(target))


def test_chosen_keeps_the_tables_order_and_knows_the_nearest_name():
    assert [one.name for one in chosen(["12/kv-long", "01/roofline"])] == ["01/roofline", "12/kv-long"]
    with pytest.raises(WorkbookError, match="did you mean '02/train-1b'"):
        chosen(["02/train-1"])
    assert chosen() == EXPERIMENTS
