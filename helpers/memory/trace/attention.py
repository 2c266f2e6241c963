"""What CUDA's attention kernels hold besides what they return, while they run.

Each rule gives the blocks, in bytes, that are alive at once: a list of such tuples, one after the other. Shapes are
(batch, heads, rows, width), as `scaled_dot_product_attention` takes them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

Held = list[tuple[int, ...]]
LITTLE_SHARED_MEMORY = {(7, 5), (8, 6), (8, 9), (12, 0), (12, 1)}  # 64 and 99 KiB a block; the others 96 to 227
IN_REGISTERS = 128  # the widest head whose output the memory-efficient forward keeps there


class Tile(NamedTuple):
    """One program of the memory-efficient backward: the block of scores it works on, and where its sums are."""

    rows: int
    columns: int
    in_registers: bool


def flash_backward(capability: tuple[int, int], grad: torch.Tensor, q: torch.Tensor, k: torch.Tensor, *_) -> Held:
    """mha_bwd in flash_attn/flash_api.cpp: softmax_d and, in FP32, dq_accum with rows rounded up to 128; for grouped
    heads dk and dv of every query head, summed afterwards."""
    batch, heads, rows, width = q.shape
    rounded_rows, rounded_width = _up(rows, 128), _up(width, 32)
    sizes = [4 * batch * heads * rounded_rows, 4 * batch * heads * rounded_rows * rounded_width]
    if k.shape[1] != heads:
        sizes += [k.element_size() * batch * heads * k.shape[2] * width] * 2
    return [tuple(sizes)]


def efficient_forward(capability: tuple[int, int], q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_) -> Held:
    """_efficient_attention_forward in transformers/cuda/attention.cu: 16-bit results of wide heads are summed up in
    FP32 (kNeedsOutputAccumulatorBuffer in kernel_forward.h)."""
    width = v.shape[-1]
    return [(4 * q[..., 0].numel() * width,)] if q.element_size() == 2 and width > IN_REGISTERS else []


def efficient_backward(
    capability: tuple[int, int], grad: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_
) -> Held:
    """_efficient_attention_backward in transformers/cuda/attention_backward.cu: delta, which is the sum of grad times
    output for each row, and the workspace of the kernel (workspace_size in kernel_backward.h).

    A kernel for FP32 does not make delta itself: then the product is there before the workspace is.
    """
    batch, heads, rows, width = q.shape
    widest = max(width, v.shape[-1])
    delta, tile = 4 * batch * heads * rows, _tile(capability, q.element_size() == 2, widest)
    blocks = -(-rows // tile.rows) * -(-width // tile.columns)
    floats = blocks * (tile.rows * tile.columns + 4)  # GradQTempStorage: a lock, a counter and the sums of one block
    if q.element_size() == 2 and not tile.in_registers:
        splits = max(1, min(-(-k.shape[2] // tile.columns), 200 // (batch * heads)))
        floats += splits * tile.columns * (_up(width, tile.rows) + _up(v.shape[-1], tile.rows))  # of grad_k and grad_v
    held = (delta, 4 * batch * heads * _up(floats, 4))
    return [held] if q.element_size() == 2 else [(delta, delta, 4 * grad.numel()), held]


def _tile(capability: tuple[int, int], half: bool, width: int) -> Tile:
    """BwdKernel.get_all in mem_eff_attention/kernels/generate_kernels.py, from compute capability 7.0.

    Its comment says which GPUs have too little shared memory for blocks of 128 rows; nobody has measured that here.
    """
    ampere = capability >= (8, 0)
    if width <= 64 or not (half or ampere):
        return Tile(64, 64, half and width <= 64)
    if capability not in LITTLE_SHARED_MEMORY:
        return Tile(128, 128 if half and ampere and width <= 128 else 64, half and width <= 128)
    if half and width <= 96 and capability in ((8, 6), (8, 9)):
        return Tile(128, 64, True)
    return Tile(64, 64, False)


def _up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
