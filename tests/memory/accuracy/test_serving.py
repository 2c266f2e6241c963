"""Weights and KV cache that serving engines logged: exact, or with the reason; and what the closed form cannot say."""

from __future__ import annotations

import pytest

from helpers.memory.accuracy import rows

EXPLAINED = {"R1-Distill-Qwen-14B weights on 2 GPUs": 0.012, "LLaMA-13B KV of 2,048 tokens": 0.014}
FOUND = {row.case.name: row for row in rows("serving")}


@pytest.mark.parametrize("name", [name for name, row in FOUND.items() if row.predicted is not None])
def test_an_answer_is_right_to_the_digits_published_or_says_why_not(name: str) -> None:
    row = FOUND[name]
    assert abs(row.error) <= EXPLAINED.get(name, 0.0005)
    assert row.why or name not in EXPLAINED


def test_what_has_no_answer_says_so() -> None:
    unanswered = [row for row in FOUND.values() if row.predicted is None]
    assert {row.quantity for row in unanswered} == {"outside torch", "activations", "KV blocks"}
    assert all(row.why and row.error is None and "no answer" in str(row) for row in unanswered)
