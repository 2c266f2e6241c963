"""Where CUDA takes another path than a CPU: which attention kernel runs, what dropout and softmax keep.

Decided above the operators, so the functions are replaced while a trace is open (a function mode would not reach what
a checkpoint runs again in the backward pass). What the chosen kernels allocate is counted by `kernels`.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from unittest import mock

import torch
from torch.nn import functional

_aten = torch.ops.aten
HALF = (torch.float16, torch.bfloat16)
# AT_FORALL_FP32 in aten/src/ATen/autocast_mode.h, as far as models use them: CUDA's autocast runs these in FP32, a
# CPU's leaves most of them as they come. Of those that take a dtype only softmax and log_softmax keep their result.
FP32_UNDER_AUTOCAST = (
    "pow", "__pow__", "rsqrt", "reciprocal", "exp", "expm1", "log", "log1p", "log2", "log10", "layer_norm",
    "group_norm", "norm", "cosine_similarity", "softplus", "cross_entropy", "nll_loss", "kl_div", "mse_loss",
    "smooth_l1_loss", "l1_loss",
)  # fmt: skip
FLASH_WIDTH = 256  # check_head_dim_size_flash in aten/src/ATen/native/transformers/cuda/sdp_utils.cpp


@contextlib.contextmanager
def cuda_paths(capability: tuple[int, int]) -> Iterator[None]:
    """Make fake CPU tensors take the paths that CUDA tensors take on a GPU of this compute capability."""
    replaced = [
        (functional, "scaled_dot_product_attention", _attention_on(capability)),
        (functional, "dropout", _dropout),
    ]
    for owner in (functional, torch, torch.Tensor):
        replaced += [(owner, name, _in_fp32(getattr(owner, name)))
                     for name in FP32_UNDER_AUTOCAST if name in vars(owner) or hasattr(owner, name)]  # fmt: skip
        replaced.append((owner, "softmax", _fused(owner.softmax, torch._softmax)))
        replaced.append((owner, "log_softmax", _fused(owner.log_softmax, torch._log_softmax)))
    with contextlib.ExitStack() as stack:
        for owner, name, function in replaced:
            stack.enter_context(mock.patch.object(owner, name, function))
        yield


def _attention_on(capability: tuple[int, int]):
    def attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
        """_fused_sdp_choice_cuda in sdp_utils.cpp: flash, else memory-efficient, else the plain formula."""
        if torch.is_autocast_enabled("cpu"):  # autocast_mode.h lists it among the ops that run in lower precision
            low = torch.get_autocast_dtype("cpu")
            query, key, value = query.to(low), key.to(low), value.to(low)
            attn_mask = attn_mask.to(low) if attn_mask is not None and attn_mask.is_floating_point() else attn_mask
        half = query.dtype in HALF
        same = query.dim() == 4 and query.shape[-1] == key.shape[-1] == value.shape[-1]
        if same and half and attn_mask is None and capability >= (8, 0) and query.shape[-1] <= FLASH_WIDTH:
            return _flash(query, key, value, dropout_p, is_causal, scale)
        if same and key.shape[1] == query.shape[1] and query.dtype != torch.float64:
            return _efficient(query, key, value, attn_mask, dropout_p, is_causal, scale)
        return _aten._scaled_dot_product_attention_math(query, key, value, attn_mask, dropout_p, is_causal,
                                                        scale=scale, enable_gqa=enable_gqa)[0]  # fmt: skip

    return attention


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
    keep = torch.is_grad_enabled() and any(one.requires_grad for one in (query, key, value))
    return _aten._scaled_dot_product_efficient_attention(query, key, value, mask, keep, dropout_p, is_causal,
                                                         scale=scale)[0]  # fmt: skip


def _dropout(input, p=0.5, training=True, inplace=False):
    """native_dropout_cuda keeps a mask of one byte a value; a CPU multiplies by a mask in the type of the input."""
    if inplace or not training or p == 0 or not input.requires_grad:
        return torch.dropout(input, p, training) if not inplace else torch.dropout_(input, p, training)
    return torch.native_dropout(input, p, True)[0]


def _in_fp32(plain):
    """`plain` with its 16-bit arguments cast to FP32 while autocast is on."""

    def cast(value: object) -> object:
        return value.float() if isinstance(value, torch.Tensor) and value.dtype in HALF else value

    @functools.wraps(plain)
    def function(*args, **kwargs):
        if not torch.is_autocast_enabled("cpu"):
            return plain(*args, **kwargs)
        return plain(*map(cast, args), **{name: cast(value) for name, value in kwargs.items()})

    return function


def _fused(plain, kernel):
    """softmax(x, dtype=float32) in SoftMax.cpp: one kernel for FP16; every other type is converted first, and kept."""

    def softmax(input, dim=None, *args, dtype=None, **kwargs):
        if torch.is_autocast_enabled("cpu") and input.dtype in HALF:
            dtype = torch.float32
        if dtype == torch.float32 and input.dtype == torch.float16:
            return kernel(input, dim, True)
        return plain(input, dim, *args, dtype=dtype, **kwargs)

    return softmax
