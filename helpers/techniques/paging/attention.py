"""Attention over a block table: keys and values lie in blocks anywhere in a pool, and a table says where.

Shapes: rows R, new tokens of each N, query heads H, key heads K, blocks of a table B, slots of a block S, head dim D.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class BlockTables:
    """Where the tokens of each row are. Row r's new tokens are the last N of its `lengths[r]`, already in the pool."""

    tables: Tensor  # [R, B], block numbers; what lies behind a row's length is never looked at
    lengths: Tensor  # [R], tokens with the new ones
    block_size: int

    def positions(self, new: int) -> Tensor:
        """Positions of the new tokens, [R, N]."""
        return self.lengths[:, None] - new + torch.arange(new, device=self.lengths.device)

    def slots(self, new: int) -> Tensor:
        """Their places in the pool laid flat, [R, N]: block number times block size, plus place in the block."""
        positions = self.positions(new)
        blocks = self.tables.gather(1, positions // self.block_size)
        return blocks * self.block_size + positions % self.block_size

    def visible(self, new: int, keys: Tensor, window: int | None = None) -> Tensor:
        """Whether each new token sees the keys at the positions `keys` [T]: [R, 1, N, T], for all heads."""
        own = self.positions(new)[:, None, :, None]
        seen = keys <= own
        return seen if window is None else seen & (keys > own - window)


def gathered(
    query: Tensor, keys: Tensor, values: Tensor, where: BlockTables, scale: float, window: int | None = None
) -> Tensor:
    """[R, H, N, D] attention, by a copy of each row's blocks in order and SDPA over it.

    `query` [R, H, N, D]; `keys` and `values` [blocks, S, K, D] are the pool of one layer. The copy is as long as the
    longest row. Exact, and the naive way: vLLM's kernel reads the table inside, and copies nothing.
    """
    heads, new = query.shape[1:3]
    k, v = (pool[where.tables].flatten(1, 2).transpose(1, 2) for pool in (keys, values))  # [R, K, B * S, D]
    mask = where.visible(new, torch.arange(k.shape[2], device=query.device), window)
    return F.scaled_dot_product_attention(query, k, v, mask, scale=scale, enable_gqa=heads != k.shape[1])


def block_by_block(
    query: Tensor, keys: Tensor, values: Tensor, where: BlockTables, scale: float, window: int | None = None
) -> Tensor:
    """The same, as the kernel does it: a block at a time, with the online softmax, and no copy of the whole.

    Kept for each query: the largest score so far, the sum of exponentials, and their sum over the values. When a larger
    score comes, both sums are scaled down to it.
    """
    rows, heads, new, dim = query.shape
    key_heads, groups = keys.shape[2], heads // keys.shape[2]
    q = query.reshape(rows, key_heads, groups, new, dim) * scale
    largest = query.new_full((rows, key_heads, groups, new, 1), float("-inf"))
    total = torch.zeros_like(largest)
    out = query.new_zeros(rows, key_heads, groups, new, values.shape[-1])
    for at in range(where.tables.shape[1]):
        k, v = (pool[where.tables[:, at]].transpose(1, 2)[:, :, None] for pool in (keys, values))  # [R, K, 1, S, D]
        here = torch.arange(at * where.block_size, (at + 1) * where.block_size, device=query.device)
        seen = where.visible(new, here, window)[:, :, None]
        scores = (q @ k.transpose(-1, -2)).masked_fill(~seen, float("-inf"))
        new_largest = torch.maximum(largest, scores.amax(-1, keepdim=True))
        shift = new_largest.clamp(min=torch.finfo(q.dtype).min)  # nothing seen yet: -inf minus -inf would be NaN
        weights, shrink = (scores - shift).exp(), (largest - shift).exp()
        total = total * shrink + weights.sum(-1, keepdim=True)
        out = out * shrink + weights @ v
        largest = new_largest
    return (out / total).reshape(rows, heads, new, -1)


ATTENTIONS = {"gathered": gathered, "block-by-block": block_by_block}
