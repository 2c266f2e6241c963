"""Ring attention: each rank has a part of the tokens, and all keys and values pass by once. Imports torch.

A rank keeps its queries. In each step it computes attention over the keys that it has now, merges the result with what
it knows by their log-sum-exp, and meanwhile hands those keys on. Liu et al. 2023, Ring Attention with Blockwise
Transformers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from ...catalog.errors import WorkbookError, require_whole
from ...memory.step.ranks.zero import Collective, Traffic
from ..attention import Causal, Full, Partial, merge, tiled, tiled_backward
from .layouts import ChunkLayout, Seen, contiguous, seen

MASKS = {Seen.ALL: Full(), Seen.CAUSAL: Causal()}


def ring_attention(q: Tensor, k: Tensor, v: Tensor, layout: ChunkLayout | None = None, tile: int = 128) -> Tensor:
    """Causal attention over the tokens of all ranks, with gradients: (batch, heads, tokens of this rank, head_dim).

    q, k and v are those of this rank's tokens, `layout.tokens_of(rank, tokens)`; contiguous parts where it is left out.
    k and v may have fewer heads than q. Every rank calls it.
    """
    ranks = dist.get_world_size()
    layout = contiguous(ranks) if layout is None else layout
    if layout.ranks != ranks:
        what, do = f"a layout for {layout.ranks} ranks on {ranks}", f"build it for {ranks}"
        raise WorkbookError(what, "a part of the tokens for each rank", do)
    if q.dim() != 4 or k.shape[:3] != v.shape[:3] or q.shape[2] != k.shape[2]:
        what = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
        do = "pass q, k and v of this rank's own tokens"
        raise WorkbookError(what, "(batch, heads, tokens, head_dim) each, of the same tokens", do)
    layout.chunk_tokens(q.shape[2] * ranks)
    return RingAttention.apply(q, k, v, layout, tile)


class RingAttention(torch.autograd.Function):
    """Saves this rank's own q, k, v, output and log-sum-exp; keys and values of others go round again in backward."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, layout: ChunkLayout, tile: int) -> Tensor:
        parts = len(layout.chunks[dist.get_rank()])
        states: list[Partial | None] = [None] * parts
        for visit in visits(layout, k, v):
            for pair in visit.pairs():
                keys, values = (chunk(tensor, pair.keys, parts) for tensor in visit.tensors)
                found = Partial.finished(*tiled(chunk(q, pair.queries, parts), keys, values, MASKS[pair.seen], tile))
                known = states[pair.queries]
                states[pair.queries] = found if known is None else merge(known, found)
        results = [state.result() for state in states if state is not None]
        output, log_sum_exp = (torch.cat(pieces, 2) for pieces in zip(*results, strict=True))
        output = output.to(q.dtype)
        ctx.save_for_backward(q, k, v, output, log_sum_exp)
        ctx.options = layout, tile
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, output, log_sum_exp = ctx.saved_tensors
        layout, tile = ctx.options
        parts = len(layout.chunks[dist.get_rank()])
        dq = torch.zeros_like(q, dtype=log_sum_exp.dtype)
        of_keys = tuple(torch.zeros_like(tensor, dtype=log_sum_exp.dtype) for tensor in (k, v))
        for visit in visits(layout, k, v):
            for pair in visit.pairs():
                rows = [chunk(tensor, pair.queries, parts) for tensor in (q, output, log_sum_exp, grad)]
                keys, values = (chunk(tensor, pair.keys, parts) for tensor in visit.tensors)
                arguments = rows[0], keys, values, *rows[1:], MASKS[pair.seen], tile
                for total, part in zip((dq, *of_keys), tiled_backward(*arguments), strict=True):
                    chunk(total, pair.queries if total is dq else pair.keys, parts).add_(part)
            of_keys = passed_on(of_keys)  # with the next keys; after the last step they are at home
        return dq.to(q.dtype), of_keys[0].to(k.dtype), of_keys[1].to(v.dtype), None, None


class Pair(NamedTuple):
    """A chunk of this rank's queries and a chunk of the visiting keys, by their place, and what the first sees."""

    queries: int
    keys: int
    seen: Seen


class Visit(NamedTuple):
    """The keys and values that are here in one step, and the rank whose they are."""

    layout: ChunkLayout
    owner: int
    tensors: tuple[Tensor, ...]

    def pairs(self) -> Iterator[Pair]:
        mine, theirs = self.layout.chunks[dist.get_rank()], self.layout.chunks[self.owner]
        for row, queries in enumerate(mine):
            for column, keys in enumerate(theirs):
                if seen(queries, keys) != Seen.NOTHING:
                    yield Pair(row, column, seen(queries, keys))


def visits(layout: ChunkLayout, k: Tensor, v: Tensor) -> Iterator[Visit]:
    """This rank's own keys and values, then those of the rank before it, and so on round the ring.

    While one visit is worked on the next arrives, so two are held at a time.
    """
    rank = dist.get_rank()
    here: tuple[Tensor, ...] = (k.contiguous(), v.contiguous())
    for step in range(layout.ranks):
        arriving = Passing(here) if step < layout.ranks - 1 else None
        yield Visit(layout, (rank - step) % layout.ranks, here)
        if arriving is not None:
            here = arriving.wait()


class Passing:
    """Tensors on their way to the next rank of the ring, while as many come from the one before."""

    def __init__(self, tensors: tuple[Tensor, ...]) -> None:
        rank, ranks = dist.get_rank(), dist.get_world_size()
        self.sent, self.arriving = tensors, tuple(map(torch.empty_like, tensors))
        to, source = (rank + 1) % ranks, (rank - 1) % ranks
        operations = [dist.P2POp(dist.isend, tensor, to) for tensor in tensors]
        operations += [dist.P2POp(dist.irecv, tensor, source) for tensor in self.arriving]
        self.works = dist.batch_isend_irecv(operations) if ranks > 1 else []
        self.arriving = self.arriving if ranks > 1 else tensors

    def wait(self) -> tuple[Tensor, ...]:
        for work in self.works:
            work.wait()
        return self.arriving


def passed_on(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """What the rank before this one had, while the next one gets these."""
    return Passing(tensors).wait()


def chunk(tensor: Tensor, at: int, parts: int) -> Tensor:
    """The `at`-th of a rank's chunks of tokens: a view of (batch, heads, tokens, …)."""
    length = tensor.shape[2] // parts
    return tensor[:, :, at * length : (at + 1) * length]


def forward_traffic(ranks: int, key_bytes: int, value_bytes: int | None = None) -> Traffic:
    """What one rank sends in a forward: its keys and values, of `key_bytes` and as much, N - 1 times.

    2,048 tokens of 4 heads of 64 in FP32 on four ranks: 512 KiB of keys a rank.

    >>> forward_traffic(4, 512 * 1024).sent_bytes
    3145728
    """
    return Traffic(_turns(require_whole("ranks", ranks), ranks - 1, key_bytes, value_bytes))


def backward_traffic(ranks: int, key_bytes: int, sum_bytes: int | None = None) -> Traffic:
    """What one rank sends in a backward: keys and values once more, and N times what has been summed up for them.

    The sums go with the keys and then one step further, home. They are FP32 for 16-bit inputs: `sum_bytes` is then
    twice `key_bytes`; as much as these where it is left out.

    >>> backward_traffic(4, 512 * 1024).sent_bytes
    7340032
    """
    sums = key_bytes if sum_bytes is None else sum_bytes
    home = ranks if require_whole("ranks", ranks) > 1 else 0
    return Traffic(_turns(ranks, ranks - 1, key_bytes, None) + _turns(ranks, home, sums, None))


def _turns(ranks: int, turns: int, key_bytes: int, value_bytes: int | None) -> tuple[Collective, ...]:
    both = key_bytes, key_bytes if value_bytes is None else value_bytes
    return tuple(Collective("send", size, ranks) for _ in range(turns) for size in both)
