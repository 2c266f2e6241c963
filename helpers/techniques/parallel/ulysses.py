"""Ulysses: between layers a rank has all heads of a part of the tokens, inside attention a part of the heads of all.

An all-to-all goes from the one to the other and back, and in between attention is what it is on one GPU. Imports torch.
Jacobs et al. 2023, DeepSpeed Ulysses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ...catalog.errors import WorkbookError, require_whole
from ...memory.step.ranks.zero import Collective, Traffic
from ..attention import attention

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


def ulysses_attention(q: Tensor, k: Tensor, v: Tensor, inner: Attention = attention) -> Tensor:
    """Causal attention over the tokens of all ranks, with gradients: (batch, heads, tokens of this rank, head_dim).

    Rank r has the r-th part of the tokens, all of them of the same length. `inner` computes attention of a few heads
    over all tokens; chapter 11's, which is causal, where it is left out. WorkbookError where heads cannot be divided.
    """
    ranks = dist.get_world_size()
    copies = kv_copies(q.shape[1], k.shape[1], ranks)
    k, v = (tensor.repeat_interleave(copies, dim=1) if copies > 1 else tensor for tensor in (k, v))
    output = inner(*(HeadsToTokens.apply(tensor) for tensor in (q, k, v)))
    return TokensToHeads.apply(output)


class HeadsToTokens(torch.autograd.Function):
    """(batch, heads, tokens / N, d) to (batch, heads / N, tokens, d): the way into attention, for one tensor."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return gather_tokens(tensor)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return gather_heads(grad)


class TokensToHeads(torch.autograd.Function):
    """The way back. What goes one way in forward goes the other in backward."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return gather_heads(tensor)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return gather_tokens(grad)


def gather_tokens(tensor: Tensor) -> Tensor:
    """Send each rank its heads of my tokens, and receive my heads of everybody's."""
    parts = tensor.unflatten(1, (dist.get_world_size(), -1)).movedim(1, 0)  # (N, batch, heads / N, tokens / N, d)
    return all_to_all(parts).movedim(0, 2).flatten(2, 3)


def gather_heads(tensor: Tensor) -> Tensor:
    """Send each rank its tokens of my heads, and receive my tokens of everybody's."""
    parts = tensor.unflatten(2, (dist.get_world_size(), -1)).movedim(2, 0)  # (N, batch, heads / N, tokens / N, d)
    return all_to_all(parts).movedim(0, 1).flatten(1, 2)


def all_to_all(parts: Tensor) -> Tensor:
    """`parts[r]` goes to rank r; the result's r-th part is what rank r sent here."""
    parts = parts.contiguous()
    received = torch.empty_like(parts)
    dist.all_to_all_single(received, parts)
    return received


def kv_copies(heads: int, kv_heads: int, ranks: int) -> int:
    """How often each KV head is sent, so that every rank gets the one that its query heads read.

    Query heads are the limit: no more ranks than heads, and ranks must divide them. Fewer KV heads than ranks are
    repeated before they are sent, which costs traffic and memory.

    >>> kv_copies(heads=32, kv_heads=8, ranks=8), kv_copies(heads=32, kv_heads=8, ranks=32)
    (1, 4)
    """
    for name, number in (("heads", heads), ("kv_heads", kv_heads), ("ranks", ranks)):
        require_whole(name, number)
    if heads % ranks:
        fits = [number for number in range(1, heads + 1) if heads % number == 0]
        do = f"take one of {', '.join(map(str, fits))} ranks, or ring attention, which divides no heads"
        raise WorkbookError(f"{heads} heads over {ranks} ranks", "ranks that divide the heads", do)
    if kv_heads % ranks and ranks % kv_heads:
        do = "take another number of ranks, or ring attention, which divides no heads"
        raise WorkbookError(f"{kv_heads} KV heads over {ranks} ranks", "one that divides the other", do)
    return max(1, ranks // kv_heads)


def traffic(ranks: int, head_bytes: int, heads: int, kv_heads: int) -> Traffic:
    """The four all-to-alls of a forward, on each rank: q, k, v and the output. A backward has as many.

    `head_bytes` are those of one head of the rank's tokens. Each rank keeps 1/N of what it sends to all.

    >>> traffic(4, 128 * 1024, heads=4, kv_heads=4).sent_bytes        # 512 tokens of 64 in FP32 on each of four ranks
    1572864
    """
    copies = kv_copies(heads, kv_heads, ranks)
    counts = heads, kv_heads * copies, kv_heads * copies, heads
    return Traffic(tuple(Collective("all_to_all", count * head_bytes, ranks) for count in counts))
