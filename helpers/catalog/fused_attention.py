"""What CUDA's fused attention holds for a while besides what it returns, in bytes. No torch.

A backward's blocks are tuples that are alive at once, one after the other.
"""

from __future__ import annotations

from typing import NamedTuple

Capability = tuple[int, int]
Held = list[tuple[int, ...]]
LITTLE_SHARED_MEMORY = {(7, 5), (8, 6), (8, 9), (12, 0), (12, 1)}  # 64 and 99 KiB a block; the others 96 to 227
IN_REGISTERS = 128  # the widest head whose output the memory-efficient forward keeps there


class Heads(NamedTuple):
    """One call: `rows` queries over `keys`, in heads of `width` (of V `value_width`), `bytes_each` a value."""

    batch: int
    heads: int
    kv_heads: int
    rows: int
    keys: int
    width: int
    value_width: int
    bytes_each: int

    @property
    def half(self) -> bool:
        return self.bytes_each == 2


class BackwardTile(NamedTuple):
    """One program of the memory-efficient backward: the block of scores it works on, and where its sums are."""

    rows: int
    columns: int
    in_registers: bool


def flash_backward(call: Heads) -> Held:
    """mha_bwd in flash_attn/flash_api.cpp: softmax_d and, in FP32, dq_accum with rows rounded up to 128; for grouped
    heads dk and dv of every query head, summed afterwards."""
    rows, lanes = _up(call.rows, 128), call.batch * call.heads
    sizes = [4 * lanes * rows, 4 * lanes * rows * _up(call.width, 32)]
    if call.kv_heads != call.heads:
        sizes += [call.bytes_each * lanes * call.keys * call.width] * 2
    return [tuple(sizes)]


def efficient_forward(call: Heads) -> Held:
    """_efficient_attention_forward in transformers/cuda/attention.cu: 16-bit results of wide heads are summed up in
    FP32 (kNeedsOutputAccumulatorBuffer in kernel_forward.h)."""
    wide = call.half and call.value_width > IN_REGISTERS
    return [(4 * call.batch * call.heads * call.rows * call.value_width,)] if wide else []


def efficient_backward(capability: Capability, call: Heads) -> Held:
    """_efficient_attention_backward in transformers/cuda/attention_backward.cu: delta, which is the sum of grad times
    output for each row, and the workspace of the kernel (workspace_size in kernel_backward.h).

    A kernel for FP32 does not make delta itself: then the product is there before the workspace is.
    """
    lanes, widest = call.batch * call.heads, max(call.width, call.value_width)
    delta, tile = 4 * lanes * call.rows, _tile(capability, call.half, widest)
    blocks = -(-call.rows // tile.rows) * -(-call.width // tile.columns)
    floats = blocks * (tile.rows * tile.columns + 4)  # GradQTempStorage: a lock, a counter and the sums of one block
    if call.half and not tile.in_registers:
        splits = max(1, min(-(-call.keys // tile.columns), 200 // lanes))
        sums = _up(call.width, tile.rows) + _up(call.value_width, tile.rows)
        floats += splits * tile.columns * sums  # of grad_k and grad_v
    held = (delta, 4 * lanes * _up(floats, 4))
    return [held] if call.half else [(delta, delta, 4 * lanes * call.rows * call.value_width), held]


def _tile(capability: Capability, half: bool, width: int) -> BackwardTile:
    """BwdKernel.get_all in mem_eff_attention/kernels/generate_kernels.py; below compute capability 7.0 blocks of 64.

    Its comment says which GPUs have too little shared memory for blocks of 128 rows; nobody has measured that here.
    """
    ampere = capability >= (8, 0)
    if width <= 64 or not (half or ampere) or capability < (7, 0):
        return BackwardTile(64, 64, half and width <= 64)
    if capability not in LITTLE_SHARED_MEMORY:
        return BackwardTile(128, 128 if half and ampere and width <= 128 else 64, half and width <= 128)
    if half and width <= 96 and capability in ((8, 6), (8, 9)):
        return BackwardTile(128, 64, True)
    return BackwardTile(64, 64, False)


def _up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
