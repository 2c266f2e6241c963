"""Launches of vLLM 0.19 that their logs tell: weights, profile run, pool, and tokens to the block."""

from __future__ import annotations

from math import ceil

import pytest

from helpers.memory.accuracy import cases, rows
from helpers.memory.accuracy.engine_runs import launched

GIB = 2**30
ROWS = list(rows("engine"))
LOGGED = 0.0051 * GIB  # half of the last digit that the log prints


def errors(quantity: str) -> list[float]:
    return sorted(abs(row.error) for row in ROWS if row.quantity == quantity and row.error is not None)


@pytest.mark.parametrize(
    ("quantity", "nine_of_ten", "worst"),
    [("weights", 0.005, 0.01), ("pool", 0.005, 0.013), ("profile run", 0.05, 0.06)],
)
def test_nine_of_ten_are_within_and_none_is_far(quantity: str, nine_of_ten: float, worst: float) -> None:
    found = errors(quantity)
    assert len(found) == 40
    assert found[ceil(0.9 * len(found)) - 1] <= nine_of_ten
    assert found[-1] <= worst


@pytest.mark.parametrize(
    "case", [case for case in cases("engine") if case.setup["pipeline"] == 1], ids=lambda c: c.name
)
def test_tokens_of_the_pool_are_those_that_were_logged(case) -> None:
    """Of the pool that was logged, whose last digit leaves a few blocks open."""
    pages, pool = launched(case.setup, case.device).pages, case.figures["pool"] * GIB
    least, most = (pages.tokens(pages.blocks(int(pool + end))) for end in (-LOGGED, LOGGED))
    assert least <= case.setup["tokens"] <= most
    assert pages.tokens(case.setup["blocks"]) == case.setup["tokens"]


@pytest.mark.parametrize("case", [case for case in cases("engine") if case.setup["pipeline"] > 1], ids=lambda c: c.name)
def test_a_pipeline_has_the_blocks_of_the_stage_with_fewest(case) -> None:
    found = launched(case.setup, case.device)
    assert found.pages.tokens(case.setup["blocks"]) == case.setup["tokens"]
    assert found.blocks == pytest.approx(case.setup["blocks"], rel=0.001)
