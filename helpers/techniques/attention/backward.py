"""FlashAttention's backward: five tensors are kept, and the scores are computed again, tile by tile."""

from __future__ import annotations

from itertools import groupby
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .forward import tiled
from .masks import Causal, Mask
from .online import finite
from .tiles import Cut


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask = Causal(),  # noqa: B008
    tile: int | tuple[int, int] = 128,
    scale: float | None = None,
) -> Tensor:
    """(batch, heads, queries, head_dim), with gradients for q, k and v; no pass holds the matrix of scores."""
    return TiledAttention.apply(q, k, v, mask, tile, scale)


class TiledAttention(torch.autograd.Function):
    """Saves q, k, v, the output, and one number for each query: the log-sum-exp of its scores.

    From that number a tile's weights come back in one step, exp(score - log-sum-exp), with no second softmax.
    """

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, mask: Mask, tile: int | tuple[int, int], scale: float | None
    ) -> Tensor:
        output, log_sum_exp = tiled(q, k, v, mask, tile, scale)
        ctx.save_for_backward(q, k, v, output, log_sum_exp)
        ctx.options = mask, tile, scale
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, output, log_sum_exp = ctx.saved_tensors
        mask, tile, scale = ctx.options
        return (*tiled_backward(q, k, v, output, log_sum_exp, grad, mask, tile, scale), None, None, None)


def tiled_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    output: Tensor,
    log_sum_exp: Tensor,
    grad: Tensor,
    mask: Mask = Causal(),  # noqa: B008
    tile: int | tuple[int, int] = 128,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v, a column of tiles after the other.

    A column's gradients of keys and values stay at hand while its rows go by; those of the queries are added to in
    memory, in FP32 for 16-bit inputs.
    """
    cut = Cut(q, k, v, mask, tile, scale)
    delta = (grad * output).sum(-1, dtype=cut.sizes.sums)
    dq = torch.zeros_like(q, dtype=cut.sizes.sums)
    dk, dv = torch.zeros_like(k), torch.zeros_like(v)
    by_column = sorted(cut.tiles(), key=attrgetter("column"))
    for column, visited in groupby(by_column, key=attrgetter("column")):
        keys, values = cut.column(k, column), cut.column(v, column)
        of_keys, of_values = torch.zeros_like(keys), torch.zeros_like(values)
        for at in visited:
            queries = cut.below(q, at.row) * cut.sizes.scale
            rows = (cut.below(grad, at.row), cut.below(log_sum_exp, at.row), cut.below(delta, at.row))
            parts = tile_gradients(cut.scores(queries, keys, at), queries, *rows, keys, values)
            target = cut.rows(dq, at.row)
            target.add_(parts[0].view(target.shape), alpha=cut.sizes.scale)
            of_keys += parts[1]
            of_values += parts[2]
            del parts  # or they would be alive beside the next tile's
        cut.slots(dk, column).copy_(of_keys)
        cut.slots(dv, column).copy_(of_values)
    return dq.to(q.dtype), dk, dv


def tile_gradients(
    scores: Tensor, q: Tensor, grad: Tensor, log_sum_exp: Tensor, delta: Tensor, k: Tensor, v: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """What one tile adds to the gradients of its queries, keys and values.

    `scores` (…, queries, keys) are those of `q` (…, queries, head_dim), which the scale has been multiplied into;
    `grad` is the output's gradient, `delta` (…, queries) the sum of grad * output over a row. For a row of softmax
    weights w with gradient g the scores' gradient is w * (g - sum(w * g)), and that sum over all keys is delta.
    """
    weights = (scores - finite(log_sum_exp)[..., None]).exp_()
    of_values = weights.transpose(-1, -2) @ grad
    of_scores = (grad @ v.transpose(-1, -2)).sub_(delta[..., None]).mul_(weights)
    return of_scores @ k, of_scores.transpose(-1, -2) @ q, of_values
