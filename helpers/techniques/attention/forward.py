"""FlashAttention's forward in plain PyTorch: a tile of scores at a time, so that the matrix is never there."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from operator import attrgetter

import torch
from torch import Tensor

from .masks import Causal, Mask, Tile
from .online import Partial, merge
from .tiles import Cut


@torch.no_grad()
def tiled(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask = Causal(),  # noqa: B008
    tile: int | tuple[int, int] = 128,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Output (batch, heads, queries, head_dim) and log-sum-exp (batch, heads, queries), which is FP32 at least.

    Beside these two only a few tiles are alive, however long the sequence is. `attention` has gradients, too.
    """
    cut = Cut(q, k, v, mask, tile, scale)
    output = q.new_zeros(*q.shape[:3], v.shape[3])
    log_sum_exp = q.new_full(q.shape[:3], float("-inf"), dtype=cut.sizes.sums)
    for row, visited in groupby(cut.tiles(), key=attrgetter("row")):
        cut.put(row, (output, log_sum_exp), row_of(cut, q, k, v, row, visited))
    return output, log_sum_exp


def row_of(cut: Cut, q: Tensor, k: Tensor, v: Tensor, row: int, visited: Iterable[Tile]) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp of one row of tiles: each tile's part is merged into what is known so far.

    A function of its own, so that nothing of a row is alive while the next one is computed.
    """
    queries = cut.below(q, row) * cut.sizes.scale
    state = Partial.nothing(queries, v.shape[3])
    for at in visited:
        part = Partial.of(cut.scores(queries, cut.column(k, at.column), at), cut.column(v, at.column))
        state = merge(state, part)
        del part  # or it would be alive beside the next tile's
    return state.result()
