"""Attention as the formula says it: the whole matrix of scores, its softmax, and the sum over the values."""

from __future__ import annotations

import torch
from torch import Tensor

from .masks import Causal, Mask
from .shapes import checked, positions


def naive(q: Tensor, k: Tensor, v: Tensor, mask: Mask = Causal(), scale: float | None = None) -> Tensor:  # noqa: B008
    """(batch, heads, queries, head_dim); a query that sees nothing gets 0.

    Two matrices of heads x queries x keys are alive at once: the scores, and what is made of them next. Query heads
    that share keys are rows of one product, so keys and values are not repeated. At 4,096 tokens of 4 heads in FP32 two
    of 256 MiB, and the mask's 16.
    """
    sizes = checked(q, k, v, mask, scale)
    unseen = ~mask.allowed(*positions(sizes.queries, sizes.keys, q.device))
    matrix = (q * sizes.scale).reshape(q.shape[0], sizes.kv_heads, -1, q.shape[3]) @ k.transpose(-1, -2)
    matrix = matrix.unflatten(2, (sizes.group, sizes.queries))
    matrix = matrix.masked_fill(unseen, torch.finfo(q.dtype).min)  # not -inf: a row of them would be NaN
    matrix = matrix.softmax(-1)
    output = (matrix.flatten(2, 3) @ v).reshape(*q.shape[:3], v.shape[3])
    return output.masked_fill(unseen.all(-1, keepdim=True), 0)
