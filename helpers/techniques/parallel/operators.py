"""Collectives with a gradient. They come in pairs, of which each is the other's backward pass.

`copy_to_ranks` stands where ranks begin to compute different things from one input, and `sum_over_ranks` where their
results are added: Megatron-LM's f and g (Shoeybi et al. 2019). With sequence parallelism `gather_tokens` and
`scatter_tokens` stand in their places (Korthikanti et al. 2022). `exchange` is its own partner.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Function

Group = dist.ProcessGroup
Crossing = Callable[[Tensor, Group], Tensor]  # an entry or an exit

# PyTorch 2.13 renamed both; 2.11 knows the old names only.
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


class _Copy(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return summed(gradient, ctx.group), None


class _Sum(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        return summed(x, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class _Gather(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return gathered(x, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return summed_part(gradient, ctx.group), None


class _Scatter(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return summed_part(x, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gathered(gradient, ctx.group), None


class _Exchange(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return exchanged(x, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return exchanged(gradient, ctx.group), None


def copy_to_ranks(x: Tensor, group: Group) -> Tensor:
    """f: `x` itself. Its gradient is the sum of all ranks', for each computes only what its own part contributes."""
    return _Copy.apply(x, group)


def sum_over_ranks(x: Tensor, group: Group) -> Tensor:
    """g: the sum of all ranks' `x`. The gradient of a sum is that of each summand, so nothing is sent back."""
    return _Sum.apply(x, group)


def gather_tokens(x: Tensor, group: Group) -> Tensor:
    """All tokens, (batch, tokens, width), from each rank's (batch, tokens / ranks, width); in f's place."""
    return _Gather.apply(x, group)


def scatter_tokens(x: Tensor, group: Group) -> Tensor:
    """This rank's part of the tokens, from the sum of all ranks' `x`; in g's place."""
    return _Scatter.apply(x, group)


def exchange(x: Tensor, group: Group) -> Tensor:
    """An all-to-all: of (ranks, ...), row r goes to rank r, and row r of the result is what rank r has sent."""
    return _Exchange.apply(x, group)


def sum_gradient(parameter: nn.Parameter, group: Group) -> None:
    """From now on, add the gradients of a parameter that every rank holds and uses differently, as soon as they come.

    A norm that sees some of the tokens is one, and a KV head with a copy on another rank.
    """
    if parameter.requires_grad:
        parameter.register_hook(partial(summed, group=group))


def summed(x: Tensor, group: Group, operation: Any = dist.ReduceOp.SUM) -> Tensor:
    """A new tensor, since `x` may be a gradient that autograd has handed to somebody else, too."""
    whole = x.detach().clone(memory_format=torch.contiguous_format)
    dist.all_reduce(whole, operation, group=group)
    return whole


def gathered(x: Tensor, group: Group) -> Tensor:
    ranks, (batch, tokens, width) = group.size(), x.shape
    parts = x.new_empty(ranks * batch, tokens, width)
    _all_gather(parts, x.contiguous(), group=group)
    return parts.view(ranks, batch, tokens, width).transpose(0, 1).reshape(batch, ranks * tokens, width)


def summed_part(x: Tensor, group: Group) -> Tensor:
    ranks, (batch, tokens, width) = group.size(), x.shape
    parts = x.view(batch, ranks, tokens // ranks, width).transpose(0, 1).reshape(ranks * batch, -1, width)
    mine = x.new_empty(batch, tokens // ranks, width)
    _reduce_scatter(mine, parts.contiguous(), group=group)
    return mine


def exchanged(x: Tensor, group: Group) -> Tensor:
    received = torch.empty_like(x, memory_format=torch.contiguous_format)
    dist.all_to_all_single(received, x.contiguous(), group=group)
    return received
