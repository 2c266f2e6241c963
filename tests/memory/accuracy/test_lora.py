"""LoRA steps on a T4: every published figure to a tenth of a MiB, reserved memory too.

That is further than it has to go (allocated 0.1 %, reserved 0.5 %): what misses it has lost a rule.
"""

from __future__ import annotations

import pytest

from helpers.memory.accuracy import AccuracyRow, Case, cases, lora
from helpers.memory.accuracy.table import rows_of
from helpers.memory.allocator import MIB, Allocator
from helpers.memory.trace import kernels

pytest.importorskip("peft", reason="the LoRA steps are rebuilt with peft")

SAMPLE = "TinyLlama-1.1B-Chat-v1.0 sdpa 2x512"
OTHERS = [case for case in cases("lora") if case.name != SAMPLE]


def rebuilt(case: Case) -> dict[str, AccuracyRow]:
    return {row.quantity: row for row in rows_of(case)}


def check(case: Case) -> None:
    for row in rebuilt(case).values():
        assert abs(row.predicted - row.measured) <= 0.1 * MIB, str(row)


@pytest.mark.slow
def test_one_of_the_twenty() -> None:
    check(next(case for case in cases("lora") if case.name == SAMPLE))


@pytest.mark.all
@pytest.mark.parametrize("case", OTHERS, ids=lambda case: case.name)
def test_the_others(case: Case) -> None:
    check(case)


@pytest.mark.all
def test_without_the_hidden_product_of_softmax_backward_it_is_red(monkeypatch: pytest.MonkeyPatch) -> None:
    case = next(case for case in cases("lora") if case.name == "SmolLM2-360M eager 1x4096")
    kept = {packet: rule for packet, rule in kernels.TRANSIENT.items() if rule is not kernels._softmax_backward}
    monkeypatch.setattr(kernels, "TRANSIENT", kept)
    assert abs(rebuilt(case)["peak allocated"].error) > 0.001


@pytest.mark.all
def test_without_the_rotary_product_of_its_release_a_step_would_reserve_52_mib_less(monkeypatch: pytest.MonkeyPatch):
    """One cuBLAS workspace later, in another hole; what is allocated is the same."""
    case = next(case for case in cases("lora") if case.name == "SmolLM2-1.7B sdpa 4x1024")
    monkeypatch.setattr(lora, "_angles_by_product", lambda base: None)
    found = rebuilt(case)
    assert abs(found["peak allocated"].error) < 1e-5
    assert found["peak reserved"].predicted == found["peak reserved"].measured - 52 * MIB


def test_newer_segments_lie_below_so_of_equal_free_blocks_the_newest_is_used() -> None:
    assert which_is_used(Allocator()) == "second"


def which_is_used(allocator: Allocator) -> str:
    blocks = {name: allocator.alloc(30 * MIB) for name in ("first", "second")}
    for block in blocks.values():
        allocator.free(block)
    used = allocator.alloc(30 * MIB).address
    return next(name for name, block in blocks.items() if block.address == used)
