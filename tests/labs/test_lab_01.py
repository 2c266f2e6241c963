"""What lab 01 says in words is what its code does; and its answers agree with rules written elsewhere."""

from __future__ import annotations

import re

import pytest
import torch

from helpers.memory.measure.traffic import Traffic
from helpers.memory.work import COMPUTE, Roof, Work
from tests.labs.common import lab_path, printed, source

LAB = lab_path("01")
ROOFS = [Roof(64, 1), Roof(2**20, 2**12), Roof(989_400_000_000_000, 3_350_000_000_000)]


def test_the_naive_norm_of_the_question_moves_what_it_says(lab, names):
    question = source(lab, "q5")
    exec(re.search(r"```python\n(.*?)```", question, re.DOTALL)[1], names)
    x, residual, weight = torch.randn(64, 1024), torch.randn(64, 1024), torch.randn(1024)
    given = [tensor.bfloat16() for tensor in (x, residual, weight)]
    with Traffic() as naive:
        h, y = names["add_and_norm_naive"](*given, 1e-5)
    with Traffic() as lean:
        lean_h, lean_y = names["add_and_norm"](*given, 1e-5)
    assert f"{naive.bytes:,}" in question
    assert round(naive.bytes / x.numel()) == 42
    assert 16 * x.numel() <= lean.bytes <= 16 * x.numel() + 8192  # "a few thousand"
    assert torch.equal(h, lean_h)
    torch.testing.assert_close(y, lean_y)


@pytest.mark.parametrize("roof", ROOFS, ids=lambda roof: f"{roof.ridge:.0f}")
def test_the_crossing_is_where_the_roof_changes_its_mind(names, roof):
    for inputs, outputs, weight_bytes in [(512, 512, 2 * 512**2), (4096, 1024, 1_000_003), (1024, 1024, 9 * 2**16)]:
        tokens = names["compute_bound_from"](inputs, outputs, weight_bytes, roof)
        tried = [tokens - 1, tokens] if tokens else [1, 10**9]
        bounds = [roof.bound(_linear(t, inputs, outputs, weight_bytes)) == COMPUTE for t in tried if t]
        assert bounds == ([False, True] if tokens else [False, False])[-len(bounds) :]


def _linear(tokens, inputs, outputs, weight_bytes):
    return Work(2 * tokens * inputs * outputs, weight_bytes + 2 * tokens * inputs, 2 * tokens * outputs)


def test_every_number_of_a_target_is_printed(lab):
    """The target is in the question; a target that the worked lab does not reach would send everybody astray."""
    answers = ["move-seconds", "chain-bytes", "adapter-work", "decode-work", None, None, "decode-tokens-per-s"]
    for number, answer in enumerate(answers, 1):
        target = re.search(r"\*\*Target:\*\*.*", source(lab, f"q{number}"))[0]
        wanted = re.findall(r"\d{1,3}(?:,\d{3})+|\d+\.\d{4}|\d{3}\.\d\b", target) if answer else []
        cells = [cell.id for cell in lab.cells if answer and cell.id.startswith(f"{answer}-")]
        shown = "".join(printed(lab, cell_id) for cell_id in cells)
        found = {f"{int(number):,}" for number in re.findall(r"\b\d+\b", shown)} | {"8,192"}
        found |= {f"{float(number):.1f}" for number in re.findall(r"\b\d+\.\d+\b", shown)}
        assert [number for number in wanted if number not in shown and number not in found] == []
        assert not answer or wanted
