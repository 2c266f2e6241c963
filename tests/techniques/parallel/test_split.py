"""A split model's loss and gradients are those of the whole model, for every way of splitting it."""

from __future__ import annotations

import pytest
import torch

from helpers.catalog import WorkbookError
from tests.techniques.parallel import split_cases as cases

CASES = [(kind, sequence) for kind in cases.KINDS if not kind.startswith("even") for sequence in (False, True)]
WITHOUT_FOUR = "six heads"
ON_FOUR = [  # copies of KV heads are seen on four ranks alone; the rest is on two as well
    pytest.param(*case, marks=[] if case[0] in ("two kv heads", "uneven heads") else pytest.mark.slow)
    for case in CASES
    if case[0] != WITHOUT_FOUR
]


def expected_part(name: str, whole: torch.Tensor, rank: int, ranks: int, kv_heads: int) -> torch.Tensor:
    """What rank `rank` of `ranks` must have of a gradient: cut here by PyTorch, independently of the package."""
    matrix = whole.dim() == 2
    if ("k_proj" in name or "v_proj" in name) and ranks > kv_heads:
        return whole.chunk(kv_heads)[rank * kv_heads // ranks]
    if "_proj" in name and "self_attn" in name and ranks <= kv_heads:  # whole KV heads, and their query heads
        if "o_proj" in name and not matrix:
            return whole
        return torch.cat(whole.chunk(kv_heads, dim := int("o_proj" in name))[slice(*ends(kv_heads, rank, ranks))], dim)
    if "o_proj" in name or "down_proj" in name:
        return whole.tensor_split(ranks, dim=1)[rank] if matrix else whole
    return whole if "norm" in name else whole.tensor_split(ranks)[rank]


def ends(size: int, rank: int, ranks: int) -> tuple[int, int]:
    mine = torch.arange(size).tensor_split(ranks)[rank]
    return int(mine[0]), int(mine[-1]) + 1


def same_step(ranks, kind, sequence):
    want, gradients = cases.alone(kind)
    kv_heads = cases.build(kind).config.num_key_value_heads
    names = {cases.split_name(name): name for name in gradients}
    for rank, (loss, parts) in enumerate(ranks.run(cases.together, kind, sequence)):
        assert loss == pytest.approx(want, rel=1e-9)
        assert parts.keys() == names.keys()
        for name, got in parts.items():
            part = expected_part(name, gradients[names[name]], rank, ranks.count, kv_heads)
            torch.testing.assert_close(got, part, rtol=1e-6, atol=1e-8, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize(("kind", "sequence"), CASES)
def test_two_ranks_have_the_whole_models_loss_and_gradients(ranks2, kind, sequence):
    same_step(ranks2, kind, sequence)


@pytest.mark.parametrize(("kind", "sequence"), ON_FOUR)
def test_four_ranks_have_the_whole_models_loss_and_gradients(ranks4, kind, sequence):
    same_step(ranks4, kind, sequence)


def test_heads_that_do_not_divide_are_refused_with_what_would(ranks4):
    with pytest.raises(WorkbookError, match="4 ranks cannot share 6 query heads that read 2 KV heads") as error:
        ranks4.run(cases.together, WITHOUT_FOUR, False)
    assert "split over 2 ranks" in error.value.what


def test_labels_that_are_left_out_have_no_part_in_the_loss(ranks2):
    want = cases.alone_with_labels()
    assert ranks2.run(cases.with_labels) == pytest.approx([want] * 2, rel=1e-9)


def test_large_logits_do_not_overflow(ranks2):
    want, got = cases.large_logits_alone(), ranks2.run(cases.large_logits)
    assert want < float("inf")
    assert got == pytest.approx([want] * 2, rel=1e-9)


def test_tokens_that_do_not_divide_are_refused_with_the_length_that_would(ranks2):
    with pytest.raises(WorkbookError, match="7 tokens on 2 ranks") as error:
        ranks2.run(cases.uneven_tokens)
    assert "pad the sequence to 8 tokens" in error.value.what


def test_frozen_weights_stay_frozen(ranks4):
    names = [cases.split_name(name) for name, _ in cases.build().named_parameters() if "norm" in name]
    assert [sorted(found) for found in ranks4.run(cases.frozen)] == [sorted(names)] * 4
