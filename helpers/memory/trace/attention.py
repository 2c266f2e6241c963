"""Attention as CUDA runs it: the kernel that a GPU takes, and what it holds besides what it returns.

Which kernel is the catalogue's to say (`catalog.hardware`), and what it holds (`catalog.fused_attention`); here are the
calls. Shapes are (batch, heads, rows, width), as `scaled_dot_product_attention` takes them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional

from ...catalog import fused_attention
from ...catalog.fused_attention import Capability, Heads, Held
from ...catalog.hardware import AttentionCall, AttentionKernel, Cuda

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


def flash_backward(capability: Capability, grad: torch.Tensor, q: torch.Tensor, k: torch.Tensor, *_, **__) -> Held:
    return fused_attention.flash_backward(_heads(q, k, k))


def efficient_forward(capability: Capability, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_, **__) -> Held:
    return fused_attention.efficient_forward(_heads(q, k, v))


def efficient_backward(
    capability: Capability, grad: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_, **__
) -> Held:
    return fused_attention.efficient_backward(capability, _heads(q, k, v))


def _heads(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Heads:
    batch, heads, rows, width = q.shape
    return Heads(batch, heads, k.shape[1], rows, k.shape[2], width, v.shape[-1], q.element_size())
