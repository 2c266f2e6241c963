"""One layer's attention at a length, with its matrix and without; the linear layers beside it: kernels, floors."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ...memory.breakdown import rounded
from ...memory.work import Roof, Work, matmul
from ...techniques.attention import counts
from ...techniques.attention.counts import Call
from ...techniques.attention.masks import Full, Window

FORWARD, TRAINING, DECODE = "forward", "training", "decode"
PHASES = (FORWARD, TRAINING, DECODE)
OF_THE_MASK = ("mask", "empty rows")  # kernels that run only where some pair is not seen


def at_length(call: Call, tokens: int, phase: str) -> Call:
    """The call over so many tokens. One query sees all that its window leaves of the cache."""
    if phase != DECODE:
        return replace(call, queries=tokens, keys=tokens)
    size = call.mask.size if isinstance(call.mask, Window) else tokens
    return replace(call, queries=1, keys=min(tokens, size), mask=Full())


def least(roof: Roof, kernels: Iterable[Work]) -> float:
    return sum(map(roof.seconds, kernels))


def kernels_of(call: Call, phase: str) -> dict[str, list[Work]]:
    """The kernels of a layer by way: "naive", "tiled", and the "linear layers" beside either."""
    return {"naive": _naive(call, phase), "tiled": _tiled(call, phase), "linear layers": linear_layers(call, phase)}


def peaks_of(call: Call, phase: str) -> dict[str, int]:
    """What either way holds beside the inputs at its peak, or keeps in training; a mask only if there is one."""
    unmasked, matrix, query = isinstance(call.mask, Full), rounded(call.matrix_bytes), rounded(call.query_bytes)
    if phase == TRAINING:
        masks = call.mask_bytes + call.queries if unmasked else 0
        return {"naive": call.naive_saved_bytes - masks, "tiled": call.saved_bytes}
    naive = matrix + max(matrix, query) if unmasked else call.naive_peak_bytes
    return {"naive": naive, "tiled": call.peak_bytes}


def _naive(call: Call, phase: str) -> list[Work]:
    backward = counts.naive_backward(call).items() if phase == TRAINING else ()
    kernels = [*counts.naive(call).items(), *backward]
    return [work for name, work in kernels if name not in OF_THE_MASK or not isinstance(call.mask, Full)]


def _tiled(call: Call, phase: str) -> list[Work]:
    """Every tensor once, and the FLOPs of the tiles that are visited."""
    pairs = call.batch * call.heads * call.head_dim * counts.visited(call).pairs
    once, back = counts.once(call), counts.once_backward(call)
    forward = Work(4 * pairs, once.read_bytes, once.written_bytes + call.sum_bytes)
    return [forward, replace(back, flops=10 * pairs)] if phase == TRAINING else [forward]


def linear_layers(call: Call, phase: str) -> list[Work]:
    """Projections of a layer and a gated MLP, as Llama has them; backward is twice forward."""
    tokens, width, keys = call.batch * call.queries, call.heads * call.head_dim, call.kv_heads * call.head_dim
    shapes = [(width, width), (width, keys), (width, keys), (width, width)]
    shapes += [(width, mlp_of(call)), (width, mlp_of(call)), (mlp_of(call), width)]
    works = [matmul(tokens, outputs, inputs, call.number_format) for inputs, outputs in shapes]
    return works * 3 if phase == TRAINING else works


def mlp_of(call: Call) -> int:
    """The MLP's width: 3.5 times the model's, as in Llama-3-8B."""
    return call.heads * call.head_dim * 7 // 2


def per_tile(call: Call, phase: str) -> list[Work]:
    """A program for each head of queries, but that one query of each head that shares keys is one program's."""
    apart = call if phase == DECODE else replace(call, kv_heads=call.heads)
    return [counts.tiled(apart), *([counts.tiled_backward(apart)] if phase == TRAINING else [])]
