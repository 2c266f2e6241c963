"""The three collectives that ZeRO is made of, each in a sentence. On a ring of N, each passes on (N-1)/N of `whole`."""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor

# PyTorch 2.13 renamed both; 2.11 knows the old names only.
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


def all_reduce(whole: Tensor, wait: bool = True) -> dist.Work | None:
    """Everybody ends with the sum of everybody's `whole`, in place: a reduce-scatter and an all-gather in one."""
    return dist.all_reduce(whole, async_op=not wait)


def reduce_scatter(part: Tensor, whole: Tensor, wait: bool = True) -> dist.Work | None:
    """Rank r ends with the r-th part of the sum of everybody's `whole`."""
    return _reduce_scatter(part, whole, async_op=not wait)


def all_gather(whole: Tensor, part: Tensor, wait: bool = True) -> dist.Work | None:
    """Everybody ends with everybody's `part`, end to end in `whole`."""
    return _all_gather(whole, part, async_op=not wait)
