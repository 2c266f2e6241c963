"""What a layer with a gated delta rule makes at its widest in a forward without gradients, as Transformers' code runs.

Counted is its own code in PyTorch, by chunks of 64 tokens, which runs where neither flash-linear-attention nor its
kernels of the hub are installed; those make less. Read off `torch_chunk_gated_delta_rule` of Transformers 5.23 and held
against the trace; a name there holds a tensor to the end. Shape letters: B = sequences, T = tokens of each in this
forward, P = T in whole chunks, H = value heads, K and V = widths of a head's key and value.

    widest_bytes(DeltaForward(layer.attention.delta, sequences=1, tokens=8192, width=2))
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...catalog.layers import Delta
from ..breakdown import rounded

CHUNK, FP32, BOOL = 64, 4, 1
JOINED = "qwen3_next"  # whose projections are two for all, and parted by copies


@dataclass(frozen=True)
class DeltaForward:
    """`tokens` of each of `sequences` through one layer, of hidden states of `width` bytes a value.

    `goes_on` says that there are states from an earlier forward; `joined` that Q, K, V and the gate come out of one
    product.
    """

    delta: Delta
    sequences: int
    tokens: int
    width: int
    goes_on: bool = False
    joined: bool = False


def widest_bytes(forward: DeltaForward) -> int:
    """Beside the layer's input and its norm: of a step of one token its states, else of the rule's last lines.

    Qwen3-Next, one sequence of 8,192 tokens: 1.82 GiB, of which the ten tensors of P x H x V in FP32 are 1.25.
    """
    if forward.tokens == 1 and forward.goes_on:
        return _projected(forward) + _of_a_step(forward) + 3 * _state(forward)
    return _projected(forward) + sum(map(rounded, _named(forward))) + max(_ends(forward))


def _projected(forward: DeltaForward) -> int:
    """What the layer's own function names beside the rule: gates, and Q, K and V behind the convolution."""
    delta, rows, width = forward.delta, forward.sequences * forward.tokens, forward.width
    values, heads = delta.value_heads * delta.value_dim, delta.value_heads
    parted = [rows * values * width, *[rows * heads * width] * 2]  # z, b and a
    sizes = [rows * heads * width, rows * heads * FP32, rows * delta.channels * width]
    if forward.joined:
        sizes += [rows * (delta.channels + values) * width, 2 * rows * heads * width]
    if not forward.joined or delta.key_heads != delta.value_heads:  # else they are views of the products
        sizes += parted
    return sum(map(rounded, sizes))


def _named(forward: DeltaForward) -> Iterator[int]:
    """Tensors of the rule from its chunks on: three squares, four of keys, four of values, what is for each token."""
    delta, rows = forward.delta, forward.sequences * forward.delta.value_heads * _chunks(forward) * CHUNK
    yield from [rows * CHUNK * FP32] * 3
    yield from [rows * delta.key_dim * FP32] * 5
    yield from [rows * delta.value_dim * FP32] * 4
    yield from [rows * FP32] * 3
    yield CHUNK * CHUNK * BOOL
    yield rows // CHUNK * FP32


def _of_a_step(forward: DeltaForward) -> int:
    """Q, K and V in FP32, the result, what is read of the states, and what is learned."""
    delta, heads = forward.delta, forward.sequences * forward.delta.value_heads
    return 2 * rounded(heads * delta.key_dim * FP32) + 4 * rounded(heads * delta.value_dim * FP32)


def _ends(forward: DeltaForward) -> Iterator[int]:
    """From chunk to chunk, what is read and written; the states; and the result once more, in order, of several chunks.

    The states before and after are the cache's where they were zeros.
    """
    delta, heads = forward.delta, forward.sequences * forward.delta.value_heads
    piece, state = rounded(heads * CHUNK * delta.value_dim * FP32), _state(forward)
    whole = rounded(heads * _chunks(forward) * CHUNK * delta.value_dim * FP32)
    yield 4 * piece + state
    yield 2 * piece + 3 * state
    if _chunks(forward) > 1:
        yield 2 * piece + state + whole


def _state(forward: DeltaForward) -> int:
    delta = forward.delta
    return rounded(forward.sequences * delta.value_heads * delta.key_dim * delta.value_dim * FP32)


def _chunks(forward: DeltaForward) -> int:
    return -(-forward.tokens // CHUNK)
