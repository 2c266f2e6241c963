"""Attention over divided tokens, on a rank, and what it should be. Imported on the ranks."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from helpers.memory.measure import Collectives
from helpers.techniques.attention import naive
from helpers.techniques.parallel import layouts, ring, ulysses

BATCH, HEAD_DIM = 2, 6
LAYOUTS = {"contiguous": layouts.contiguous, "zigzag": layouts.zigzag}


def inputs(heads: int, kv_heads: int, tokens: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """q, k, v and the gradient of the output, of the whole sequence."""
    numbers = torch.Generator().manual_seed(2)
    counts = heads, kv_heads, kv_heads, heads
    draw = [torch.randn(BATCH, count, tokens, HEAD_DIM, dtype=torch.float64, generator=numbers) for count in counts]
    return [tensor.to(dtype) for tensor in draw]


def alone(heads: int, kv_heads: int, tokens: int) -> list[Tensor]:
    """Output and gradients of q, k and v in one process."""
    *tensors, grad = inputs(heads, kv_heads, tokens)
    for tensor in tensors:
        tensor.requires_grad_()
    output = naive(*tensors)
    output.backward(grad)
    return [output.detach(), *(tensor.grad for tensor in tensors)]


def divided(how: str, heads: int, kv_heads: int, tokens: int, dtype: torch.dtype = torch.float64, tile: int = 4):
    """(this rank's positions, its output and gradients, bytes sent forward and backward)."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    layout = LAYOUTS.get(how, layouts.contiguous)(ranks)
    mine = layout.tokens_of(rank, tokens)
    *tensors, grad = (tensor[:, :, mine] for tensor in inputs(heads, kv_heads, tokens, dtype))
    for tensor in tensors:
        tensor.requires_grad_()
    with Collectives() as forward:
        output = (
            ulysses.ulysses_attention(*tensors) if how == "ulysses" else ring.ring_attention(*tensors, layout, tile)
        )
    with Collectives() as backward:
        output.backward(grad)
    sent = forward.traffic.sent_bytes, backward.traffic.sent_bytes
    return mine, [output.detach(), *(tensor.grad for tensor in tensors)], sent


def mistaken(wrong: str) -> None:
    heads = 3 if wrong == "heads" else 4
    q, k, v, _ = inputs(heads, heads, 4)
    if wrong == "heads":
        ulysses.ulysses_attention(q, k, v)
    layout = layouts.contiguous(3 if wrong == "layout" else 2)
    ring.ring_attention(q[:, :, :2] if wrong == "shape" else q, k, v, layout)


def sent_in_forward(tokens: int) -> int:
    """Four heads of 64 in FP32."""
    own = torch.zeros(1, 4, tokens // dist.get_world_size(), 64)
    with Collectives() as counted:
        ring.ring_attention(own, own, own)
    return counted.traffic.sent_bytes
