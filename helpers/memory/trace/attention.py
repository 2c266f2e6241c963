"""Attention as CUDA runs it: the kernel that a GPU takes, and what it holds besides what it returns.

Which kernel is the catalogue's to say (`catalog.hardware`); here are the calls, and one rule for each kernel of the
blocks, in bytes, that are alive at once while it runs: a list of such tuples, one after the other. Shapes are (batch,
heads, rows, width), as `scaled_dot_product_attention` takes them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch.nn import functional

from ...catalog.hardware import AttentionCall, AttentionKernel, Cuda

Capability = tuple[int, int]
Held = list[tuple[int, ...]]
LITTLE_SHARED_MEMORY = {(7, 5), (8, 6), (8, 9), (12, 0), (12, 1)}  # 64 and 99 KiB a block; the others 96 to 227
IN_REGISTERS = 128  # the widest head whose output the memory-efficient forward keeps there

_aten = torch.ops.aten
HALF = (torch.float16, torch.bfloat16)
FORMATS = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32", torch.float64: "fp64"}
NO_KERNEL = "No available kernel. Aborting execution."  # PyTorch's own words


def attention_on(cuda: Cuda) -> Callable[..., torch.Tensor]:
    """`scaled_dot_product_attention` as this GPU runs it; kernels that `sdpa_kernel` switched off are left out."""

    def attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
        if torch.is_autocast_enabled("cpu"):  # autocast_mode.h lists it among the ops that run in lower precision
            low = torch.get_autocast_dtype("cpu")
            query, key, value = query.to(low), key.to(low), value.to(low)
            attn_mask = attn_mask.to(low) if attn_mask is not None and attn_mask.is_floating_point() else attn_mask
            with torch.autocast("cpu", enabled=False):  # and nothing inside of it is cast once more
                return attention(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
        kernel = _chosen(_kernels(cuda, query, key, value, attn_mask, dropout_p, is_causal))
        if kernel is AttentionKernel.FLASH:
            return _flash(query, key, value, dropout_p, is_causal, scale)
        if kernel is AttentionKernel.EFFICIENT:
            return _efficient(query, key, value, attn_mask, dropout_p, is_causal, scale)
        return _aten._scaled_dot_product_attention_math(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )[0]

    return attention


def _kernels(cuda: Cuda, query, key, value, mask, dropout_p: float, is_causal: bool) -> tuple[AttentionKernel, ...]:
    if query.dim() != 4 or query.shape[-1] != key.shape[-1]:
        return (AttentionKernel.FORMULA,)
    call = AttentionCall(
        FORMATS.get(query.dtype, str(query.dtype)),
        width=query.shape[-1],
        value_width=value.shape[-1],
        heads=query.shape[1],
        kv_heads=key.shape[1],
        masked=mask is not None,
        causal=is_causal,
        as_many_keys=query.shape[-2] == key.shape[-2],
        dropout=dropout_p > 0,
        trains=_trains(query, key, value),
    )
    return cuda.attention_kernels(call)


def _chosen(kernels: tuple[AttentionKernel, ...]) -> AttentionKernel:
    """The first that nobody switched off."""
    switches = torch.backends.cuda
    enabled = {
        AttentionKernel.FLASH: switches.flash_sdp_enabled(),
        AttentionKernel.EFFICIENT: switches.mem_efficient_sdp_enabled(),
        AttentionKernel.FORMULA: switches.math_sdp_enabled(),
    }
    for kernel in kernels:
        if enabled[kernel]:
            return kernel
    raise RuntimeError(NO_KERNEL)


def _trains(*tensors: torch.Tensor) -> bool:
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def _flash(query, key, value, dropout_p: float, is_causal: bool, scale: float | None) -> torch.Tensor:
    """Widths that are no multiple of 8 are padded first (pad_last_dim in attention.cpp), the output cut afterwards."""
    width = query.shape[-1]
    scale = width**-0.5 if scale is None else scale
    if width % 8:
        query, key, value = (functional.pad(tensor, (0, 8 - width % 8)) for tensor in (query, key, value))
    out = _aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, False, scale=scale)[0]
    return out[..., :width]


def _efficient(query, key, value, mask, dropout_p: float, is_causal: bool, scale: float | None) -> torch.Tensor:
    """A mask of bools becomes one of numbers, and its rows are padded to a multiple of 16 (preprocess_mask)."""
    if mask is not None:
        if mask.dtype == torch.bool:
            mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(mask.logical_not(), float("-inf"))
        if mask.shape[-1] % 16:
            mask = functional.pad(mask, (0, 16 - mask.shape[-1] % 16))[..., : mask.shape[-1]]
        mask = mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    keep = _trains(query, key, value)
    return _aten._scaled_dot_product_efficient_attention(
        query, key, value, mask, keep, dropout_p, is_causal, scale=scale
    )[0]


class Tile(NamedTuple):
    """One program of the memory-efficient backward: the block of scores it works on, and where its sums are."""

    rows: int
    columns: int
    in_registers: bool


def flash_backward(capability: Capability, grad: torch.Tensor, q: torch.Tensor, k: torch.Tensor, *_) -> Held:
    """mha_bwd in flash_attn/flash_api.cpp: softmax_d and, in FP32, dq_accum with rows rounded up to 128; for grouped
    heads dk and dv of every query head, summed afterwards."""
    batch, heads, rows, width = q.shape
    rounded_rows, rounded_width = _up(rows, 128), _up(width, 32)
    sizes = [4 * batch * heads * rounded_rows, 4 * batch * heads * rounded_rows * rounded_width]
    if k.shape[1] != heads:
        sizes += [k.element_size() * batch * heads * k.shape[2] * width] * 2
    return [tuple(sizes)]


def efficient_forward(capability: Capability, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_) -> Held:
    """_efficient_attention_forward in transformers/cuda/attention.cu: 16-bit results of wide heads are summed up in
    FP32 (kNeedsOutputAccumulatorBuffer in kernel_forward.h)."""
    width = v.shape[-1]
    return [(4 * q[..., 0].numel() * width,)] if q.element_size() == 2 and width > IN_REGISTERS else []


def efficient_backward(
    capability: Capability, grad: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_
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


def _tile(capability: Capability, half: bool, width: int) -> Tile:
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
