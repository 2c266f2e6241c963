"""Attention over divided tokens: layouts, ring and Ulysses give what one process gives, and send what is said."""

from __future__ import annotations

import pytest
import torch

from helpers.catalog import WorkbookError
from helpers.lesson.ranks.errors import RankError
from helpers.techniques.parallel import layouts, ring, ulysses
from tests.techniques.parallel import context_cases as cases

HEADS = [(4, 4), (4, 2), (8, 1)]


@pytest.fixture(params=[2, 4])
def ranks(request):
    return request.getfixturevalue(f"ranks{request.param}")


def key_bytes(kv_heads: int, tokens: int, width: int = 8) -> int:
    """Of the keys of one rank that has `tokens` of them."""
    return cases.BATCH * kv_heads * tokens * cases.HEAD_DIM * width


@pytest.mark.parametrize(("heads", "kv_heads"), HEADS)
@pytest.mark.parametrize("how", ["contiguous", "zigzag", "ulysses"])
def test_output_and_gradients_are_those_of_one_process_and_bytes_those_of_the_formula(ranks, how, heads, kv_heads):
    own = 10
    wanted = cases.alone(heads, kv_heads, own * ranks.count)
    if how == "ulysses":
        sent = (ulysses.traffic(ranks.count, key_bytes(1, own), heads, kv_heads).sent_bytes,) * 2
    else:
        size = key_bytes(kv_heads, own)
        sent = tuple(count(ranks.count, size).sent_bytes for count in (ring.forward_traffic, ring.backward_traffic))
    seen = []
    for mine, found, counted in ranks.run(cases.divided, how, heads, kv_heads, own * ranks.count):
        for got, want in zip(found, wanted, strict=True):
            torch.testing.assert_close(got, want[:, :, mine], rtol=0, atol=1e-12)
        assert counted == sent
        seen += mine
    assert sorted(seen) == list(range(own * ranks.count))


def test_16_bit_sums_travel_in_fp32(ranks2):
    own, wanted = 6, cases.alone(4, 2, 12)
    size = key_bytes(2, own, width=2)
    sent = ring.forward_traffic(2, size).sent_bytes, ring.backward_traffic(2, size, 2 * size).sent_bytes
    for mine, found, counted in ranks2.run(cases.divided, "zigzag", 4, 2, 12, torch.bfloat16):
        assert counted == sent
        for got, want in zip(found, wanted, strict=True):
            assert got.dtype == torch.bfloat16
            torch.testing.assert_close(got.double(), want[:, :, mine], rtol=0.05, atol=0.05)


def test_all_ranks_of_a_zigzag_work_alike_in_every_step():
    """And those of contiguous parts do not: where all wait for the slowest, the ring takes nearly twice as long."""
    ranks, tokens = 4, 64
    even, uneven = layouts.zigzag(ranks), layouts.contiguous(ranks)
    everything = tokens * (tokens + 1) // 2
    for layout in (even, uneven):
        steps = [layout.step_pairs(step, tokens) for step in range(ranks)]
        assert [sum(column) for column in zip(*steps, strict=True)] == [layout.pairs(r, tokens) for r in range(ranks)]
        assert sum(map(sum, steps)) == everything
    assert all(len(set(even.step_pairs(step, tokens))) == 1 for step in range(ranks))
    assert [uneven.step_pairs(step, tokens).count(0) for step in range(ranks)] == [0, 1, 2, 3]
    slowest = {layout: sum(max(layout.step_pairs(s, tokens)) for s in range(ranks)) for layout in (even, uneven)}
    assert slowest[uneven] / slowest[even] == pytest.approx(1.7, abs=0.05)


@pytest.mark.parametrize(
    ("call", "told", "do"),
    [
        (lambda: layouts.zigzag(4).chunk_tokens(12), "12 tokens in 8 chunks", "16 tokens"),
        (lambda: layouts.contiguous(0), "ranks is 0", "ranks"),
        (lambda: ulysses.kv_copies(6, 6, 4), "6 heads over 4 ranks", "1, 2, 3, 6 ranks, or ring attention"),
        (lambda: ulysses.kv_copies(12, 4, 6), "4 KV heads over 6 ranks", "ring attention"),
        (lambda: ulysses.kv_copies(4, 4, 8), "4 heads over 8 ranks", "1, 2, 4 ranks"),
        (lambda: ring.forward_traffic(0, 8), "ranks is 0", "ranks"),
    ],
)
def test_what_cannot_be_divided_is_refused(call, told, do):
    with pytest.raises(WorkbookError) as error:
        call()
    assert told in error.value.what
    assert do in error.value.do


@pytest.mark.parametrize(
    ("wrong", "told"),
    [("layout", "a layout for 3 ranks on 2"), ("shape", "of the same tokens"), ("heads", "3 heads over 2 ranks")],
)
def test_what_does_not_fit_on_the_ranks_is_a_sentence(ranks2, wrong, told):
    with pytest.raises(RankError, match=told):
        ranks2.run(cases.mistaken, wrong)


def test_the_ring_of_four_with_2048_tokens_sends_three_mebibytes_a_rank(ranks4):
    assert ranks4.run(cases.sent_in_forward, 2048) == [3_145_728] * 4
