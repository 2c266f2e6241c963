"""Where CUDA takes another path than a CPU: which attention kernel runs, what dropout and softmax keep.

These are decided above the operators, so the functions are replaced while a trace is open (a function mode would not
reach what a checkpoint runs again in the backward pass). What the chosen kernels allocate is counted by `kernels`.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch.nn import functional

from ...catalog.hardware import Cuda
from ..measure import losses
from .attention import HALF, attention_on
from .rms_norm import rms_norm_on_cuda

CUDA_DEVICE = "cuda"
# AT_FORALL_FP32 in aten/src/ATen/autocast_mode.h, as far as models use them: CUDA's autocast runs these in FP32, a
# CPU's leaves most of them as they come. Of those that take a dtype only softmax and log_softmax keep their result.
POWERS_AND_LOGARITHMS = ("pow", "__pow__", "rsqrt", "reciprocal", "exp", "expm1", "log", "log1p", "log2", "log10")
NORMS = ("layer_norm", "group_norm", "norm", "cosine_similarity", "softplus")
LOSSES = ("cross_entropy", "nll_loss", "kl_div", "mse_loss", "smooth_l1_loss", "l1_loss")
FP32_UNDER_AUTOCAST = (*POWERS_AND_LOGARITHMS, *NORMS, *LOSSES)


@contextlib.contextmanager
def cuda_paths(cuda: Cuda) -> Iterator[None]:
    """Make fake CPU tensors take the paths that CUDA tensors take on this GPU."""
    replaced: list[tuple[Any, str, Callable]] = [
        (functional, "scaled_dot_product_attention", attention_on(cuda)),
        (functional, "dropout", _dropout),
        (losses, "adds_to_fp32", lambda gradient: cuda.capability[0] >= 8),
        (torch, "is_autocast_enabled", _autocast_enabled(torch.is_autocast_enabled)),
    ]
    for module in (functional, torch):
        replaced.append((module, "rms_norm", _in_fp32(rms_norm_on_cuda(module.rms_norm))))
    for owner in (functional, torch, torch.Tensor):
        known = (name for name in FP32_UNDER_AUTOCAST if hasattr(owner, name))
        replaced += [(owner, name, _in_fp32(getattr(owner, name))) for name in known]
        replaced.append((owner, "softmax", _fused(owner.softmax, torch._softmax)))
        replaced.append((owner, "log_softmax", _fused(owner.log_softmax, torch._log_softmax)))
    with contextlib.ExitStack() as stack:
        for owner, name, function in replaced:
            stack.enter_context(mock.patch.object(owner, name, function))
        yield


def _autocast_enabled(plain):
    """Asked about CUDA, or without a device, which means CUDA: peft asks so. The autocast that is open is a CPU's."""

    def function(device_type: str = CUDA_DEVICE) -> bool:
        return plain("cpu" if device_type == CUDA_DEVICE else device_type)

    return function


def _dropout(input, p=0.5, training=True, inplace=False):
    """native_dropout_cuda keeps a mask of one byte a value; a CPU multiplies by a mask in the type of the input."""
    if inplace or not training or p == 0:
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
        if dtype is None and torch.is_autocast_enabled("cpu") and input.dtype in HALF:
            dtype = torch.float32
        if dtype == torch.float32 and input.dtype == torch.float16:
            return kernel(input, dim, True)
        return plain(input, dim, *args, dtype=dtype, **kwargs)

    return softmax
