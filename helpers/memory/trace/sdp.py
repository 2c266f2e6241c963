"""Which kernel `scaled_dot_product_attention` takes on a GPU: select_sdp_backend in
aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, for tensors that are not nested.

Flash, else memory-efficient, else the plain formula; what `sdpa_kernel` or `torch.backends.cuda` switched off is left
out. On Hopper and Blackwell new releases try cuDNN's kernel before flash. What that holds while it runs is known to
cuDNN alone, so a trace takes flash there too: both keep the output and one FP32 number for each row and head.
"""

from __future__ import annotations

import torch
from torch.nn import functional

_aten = torch.ops.aten
HALF = (torch.float16, torch.bfloat16)
FLASH_WIDTH = 256  # check_head_dim_size_flash
NO_KERNEL = "No available kernel. Aborting execution."  # PyTorch's own words


def attention_on(capability: tuple[int, int]):
    """`scaled_dot_product_attention` as a GPU of this compute capability runs it."""

    def attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
        if torch.is_autocast_enabled("cpu"):  # autocast_mode.h lists it among the ops that run in lower precision
            low = torch.get_autocast_dtype("cpu")
            query, key, value = query.to(low), key.to(low), value.to(low)
            attn_mask = attn_mask.to(low) if attn_mask is not None and attn_mask.is_floating_point() else attn_mask
        switches = torch.backends.cuda
        if switches.flash_sdp_enabled() and _flash_can(capability, query, key, value, attn_mask, dropout_p, is_causal):
            return _flash(query, key, value, dropout_p, is_causal, scale)
        if switches.mem_efficient_sdp_enabled() and _efficient_can(capability, query, key, value):
            return _efficient(query, key, value, attn_mask, dropout_p, is_causal, scale)
        if not switches.math_sdp_enabled():
            raise RuntimeError(NO_KERNEL)
        return _aten._scaled_dot_product_attention_math(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )[0]

    return attention


def _flash_can(capability, query, key, value, mask, dropout_p: float, is_causal: bool) -> bool:
    """can_use_flash_attention: 16 bits, no mask, equal widths up to 256, from compute capability 8.0 on."""
    width = query.shape[-1]
    if query.dim() != 4 or query.dtype not in HALF or mask is not None or capability < (8, 0):
        return False
    if not width == key.shape[-1] == value.shape[-1] or width > FLASH_WIDTH:
        return False
    if is_causal and query.shape[-2] != key.shape[-2]:
        return False
    little = (8, 6) <= capability <= (8, 9) or capability >= (12, 0)  # its shared memory is
    return not (little and _trains(query, key, value)) or width <= 192 or (width > 224 and dropout_p == 0.0)


def _efficient_can(capability, query, key, value) -> bool:
    """can_use_mem_efficient_attention: widths that its products of matrices take (minimum_gemm_alignment), and as many
    heads of K and V as of Q. (From PyTorch 2.14 on it repeats grouped ones; that is not followed here.)"""
    half, ampere = query.dtype in HALF, capability >= (8, 0)
    if query.dim() != 4 or query.dtype == torch.float64 or (query.dtype == torch.bfloat16 and not ampere):
        return False
    multiple = 8 if half else 4 if ampere else 1
    if query.shape[-1] != key.shape[-1] or query.shape[-1] % multiple or value.shape[-1] % multiple:
        return False
    return key.shape[1] == query.shape[1]


def _trains(*tensors: torch.Tensor) -> bool:
    return torch.is_grad_enabled() and any(one.requires_grad for one in tensors)


def _flash(query, key, value, dropout_p: float, is_causal: bool, scale: float | None) -> torch.Tensor:
    """Widths that are no multiple of 8 are padded first (pad_last_dim in attention.cpp), the output cut afterwards."""
    width = query.shape[-1]
    scale = width**-0.5 if scale is None else scale
    if width % 8:
        query, key, value = (functional.pad(one, (0, 8 - width % 8)) for one in (query, key, value))
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
