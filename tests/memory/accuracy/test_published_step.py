"""A published run, predicted from its shapes: what the card allocated, in its order, and its peaks."""

from __future__ import annotations

import pytest
import torch

from helpers.memory import trace
from helpers.memory.accuracy import published_step
from helpers.memory.accuracy.published_step import compare, predicted
from helpers.memory.accuracy.table import rows, summaries
from helpers.memory.allocator import MIB


@pytest.fixture(scope="module")
def found():
    return compare(predicted())


def test_of_a_hundred_allocations_98_agree_in_size_and_order(found) -> None:
    assert found.allocations == 3853
    assert found.share > 0.98


def test_the_peak_of_all_tensors_is_the_cards_to_the_byte(found) -> None:
    assert found.predicted[0] == found.measured[0]


def test_blocks_and_what_is_reserved_are_within_half_a_percent(found) -> None:
    assert found.predicted[1] == pytest.approx(found.measured[1], rel=0.005)
    assert found.predicted[2] == pytest.approx(found.measured[2], rel=0.005)
    assert found.measured[2] == 750 * MIB


def test_the_run_is_a_row_of_its_own_kind_in_the_table(found, monkeypatch) -> None:
    monkeypatch.setattr(published_step, "predicted", lambda: None)
    monkeypatch.setattr(published_step, "compare", lambda _: found)
    told = list(rows("history"))
    assert [row.quantity for row in told] == [*published_step.PEAKS, "allocations in order"]
    assert [(row.measured, row.predicted) for row in told[:3]] == list(
        zip(found.measured, found.predicted, strict=True)
    )
    assert told[0].error == 0.0
    assert told[3].error == pytest.approx(found.share - 1)
    assert all("NiuHuangxiaozi" in row.case.source for row in told)
    assert summaries(told)[0].group == "history, peak of tensors"


@pytest.mark.parametrize("read", [lambda x, at: x[at], lambda x, at: x.max(dim=1).values])
def test_a_gradient_is_scattered_into_zeros_in_place(read) -> None:
    """A mode makes autograd do it out of place, with a second tensor as large."""
    with trace.fake():
        x, at = torch.nn.Parameter(torch.empty(1024, 256)), torch.zeros(8, dtype=torch.long)
        found = trace.record(lambda: read(x, at).sum().backward(), warmup=0)
    made = [event for event in found.events if event.sign > 0 and event.phase == "backward"]
    assert sum(event.block.size_bytes == 4 * 1024 * 256 for event in made) == 1
