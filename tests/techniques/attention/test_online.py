"""Softmax in pieces: any pieces, in any order, merged in any grouping."""

import random
from functools import reduce

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.techniques import attention
from helpers.techniques.attention import Partial, merge, online_softmax
from tests.techniques.attention.drawn import EXACT, error

HIDDEN = float("-inf")


def drawn_scores(seed, keys, spread, dtype=torch.float64):
    """(3, keys) scores and (keys, 5) values; the last row sees nothing, and half of the second."""
    generator = torch.Generator().manual_seed(seed)
    scores = spread * torch.randn(3, keys, generator=generator, dtype=dtype)
    scores[1, ::2], scores[2] = HIDDEN, HIDDEN
    return scores, torch.randn(keys, 5, generator=generator, dtype=dtype)


def at_once(scores, v):
    """Rows without a key: 0 and -inf."""
    return scores.softmax(-1).nan_to_num() @ v, scores.logsumexp(-1)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**16), st.integers(2, 40), st.sampled_from([1.0, 30.0, 1e4]), st.booleans())
def test_any_pieces_in_any_order_and_grouping(seed, keys, spread, finished):
    scores, v = drawn_scores(seed, keys, spread)
    draw = random.Random(seed)
    cuts = sorted(draw.sample(range(1, keys), draw.randrange(keys)))
    ranges = [slice(a, b) for a, b in zip([0, *cuts], [*cuts, keys], strict=True)]
    parts = [Partial.of(scores[:, at], v[at]) for at in ranges]
    if finished:  # as kernels hand them over
        parts = [Partial.finished(*part.result()) for part in parts]
    draw.shuffle(parts)
    while len(parts) > 1:  # two that are neighbours, anywhere
        at = draw.randrange(len(parts) - 1)
        parts[at : at + 2] = [merge(*parts[at : at + 2])]
    for found, expected in zip(parts[0].result(), at_once(scores, v), strict=True):
        assert error(found, expected) < 1e-11


def test_one_pass_over_pieces():
    scores, _ = drawn_scores(0, 37, 10.0)
    maximum, total = online_softmax([scores[:, :0], scores[:, :5], scores[:, 5:6], scores[:, 6:]])
    assert torch.equal(maximum[:, 0], scores.amax(-1))
    assert total[2] == 0
    torch.testing.assert_close((scores - maximum).exp()[:2] / total[:2], scores.softmax(-1)[:2])


def test_without_pieces():
    assert online_softmax([]) == (HIDDEN, 0)


def test_the_largest_score_may_come_last():
    scores = torch.tensor([[-1e38, 0.0, 1e38]])
    parts = [Partial.of(scores[:, at : at + 1], torch.tensor([[float(at)]])) for at in range(3)]
    assert reduce(merge, parts).result() == (2.0, torch.tensor(1e38))


@pytest.mark.parametrize("splits", [(50,), (1, 99), (30, 31, 70)])
def test_kernels_of_some_of_the_keys_merge_to_attention_over_all(splits):
    q, k, v = (torch.randn(2, heads, 100, 16, generator=torch.Generator().manual_seed(7)) for heads in (4, 2, 2))
    q = q[:, :, :3]
    pieces = zip(k.tensor_split(splits, 2), v.tensor_split(splits, 2), strict=True)
    parts = [Partial.finished(*attention.tiled(q, *piece, attention.Full())) for piece in pieces]
    expected = attention.tiled(q.double(), k.double(), v.double(), attention.Full())
    for found, right in zip(reduce(merge, parts).result(), expected, strict=True):
        assert error(found, right) < EXACT
