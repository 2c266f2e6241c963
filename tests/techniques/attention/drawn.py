"""Masks, shapes and inputs that hypothesis draws, and attention by its definition in FP64."""

from dataclasses import dataclass

import torch
from hypothesis import strategies as st

from helpers.techniques import attention

EXACT = 1e-6  # of FP32, as a share of the largest value


@st.composite
def masks(draw, keys=24):
    kind = draw(st.sampled_from(["full", "causal", "window", "blocks"]))
    if kind == "window":
        return attention.Window(draw(st.integers(1, keys)), draw(st.integers(0, 6)))
    if kind == "blocks":
        block = draw(st.integers(1, keys))
        rows = -(-keys // block)
        row = st.lists(st.booleans(), min_size=rows, max_size=rows)
        return attention.BlockSparse(block, draw(st.lists(row, min_size=rows, max_size=rows)), draw(st.booleans()))
    return attention.Full() if kind == "full" else attention.Causal()


@dataclass(frozen=True)
class Case:
    mask: attention.Mask
    batch: int
    kv_heads: int
    group: int
    queries: int
    keys: int
    tile: tuple[int, int]
    seed: int

    def tensors(self, dtype=torch.float32, grads=False):
        random = torch.Generator().manual_seed(self.seed)
        q = torch.randn(self.batch, self.kv_heads * self.group, self.queries, 8, generator=random, dtype=torch.float64)
        k = torch.randn(self.batch, self.kv_heads, self.keys, 8, generator=random, dtype=torch.float64)
        v = torch.randn(self.batch, self.kv_heads, self.keys, 6, generator=random, dtype=torch.float64)
        return tuple(tensor.to(dtype).requires_grad_(grads) for tensor in (q, k, v))


sides = st.integers(1, 9)
cases = st.builds(
    Case,
    masks(),
    st.integers(1, 2),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 24),
    st.integers(1, 24),
    st.tuples(sides, sides),
    st.integers(0, 2**16),
)


def by_definition(q, k, v, mask, scale=None):
    """Output and log-sum-exp, one query after the other, each over the keys that it sees: no masked score at all."""
    q, k, v = (tensor.double() for tensor in (q, k, v))
    group, ahead = q.shape[1] // k.shape[1], k.shape[2] - q.shape[2]
    outputs, sums = q.new_zeros(*q.shape[:3], v.shape[3]), q.new_full(q.shape[:3], float("-inf"))
    keys = torch.arange(k.shape[2])
    for head in range(q.shape[1]):
        for query in range(q.shape[2]):
            seen = mask.sees(torch.tensor(query + ahead), keys)
            scores = (k[:, head // group, seen] @ q[:, head, query, :, None])[..., 0] * (scale or q.shape[3] ** -0.5)
            if seen.any():
                outputs[:, head, query] = (scores.softmax(-1)[:, None] @ v[:, head // group, seen])[:, 0]
                sums[:, head, query] = scores.logsumexp(-1)
    return outputs, sums


def error(found, expected):
    """The largest difference, as a share of the largest value; -inf and -inf are alike."""
    assert torch.equal(found.isfinite(), expected.isfinite())
    found, expected = found.double().nan_to_num(neginf=0), expected.nan_to_num(neginf=0)
    return ((found - expected).abs().max() / expected.abs().max().clamp(min=1)).item()
