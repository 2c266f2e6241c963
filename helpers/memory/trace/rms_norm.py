"""`nn.RMSNorm` as CUDA runs it: one kernel, where a CPU, and so a fake tensor, takes ten steps and keeps their results.

Read in PyTorch 2.13: rms_norm_symint in ATen/native/layer_norm.cpp, _fused_rms_norm_cuda and its backward in
ATen/native/cuda/layer_norm_kernel.cu, which PyTorch has had from 2.9 on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..meter.meter import wraps_others

Plain = Callable[..., torch.Tensor]


def rms_norm_on_cuda(plain: Plain) -> Plain:
    """`functional.rms_norm` with the kernel where CUDA takes it; `plain`, in steps, where it does too.

    Steps it takes for weights in another type than the input's and for channels-last layouts. DTensors stay with them
    here as well: what each rank has of the weight's gradient is theirs to say.
    """

    def rms_norm(input, normalized_shape, weight=None, eps=None):
        if input.is_complex() or (weight is not None and weight.dtype != input.dtype) or _is_channels_last(input):
            return plain(input, normalized_shape, weight, eps)
        if wraps_others([type(input)]) or (weight is not None and wraps_others([type(weight)])):
            return plain(input, normalized_shape, weight, eps)
        return _RmsNorm.apply(input, weight, len(normalized_shape))

    return rms_norm


def _is_channels_last(input: torch.Tensor) -> bool:
    form = {4: torch.channels_last, 5: torch.channels_last_3d}.get(input.dim())
    return form is not None and not input.is_contiguous() and input.is_contiguous(memory_format=form)


class _RmsNorm(torch.autograd.Function):
    """Keeps its input, its weight and, in FP32, the factor of each row; a strided input it reads from a copy.

    4,096 rows of 1,024 in BF16 take 40.02 MiB with their gradients, as measured on an H100; in steps they take 120.
    """

    @staticmethod
    def forward(ctx: Any, input: torch.Tensor, weight: torch.Tensor | None, dims: int) -> torch.Tensor:
        result = torch.empty_like(input.contiguous())
        rows = (*input.shape[: input.dim() - dims], *[1] * dims)
        factors = input.new_empty(rows, dtype=torch.promote_types(input.dtype, torch.float32))
        ctx.save_for_backward(input, weight, factors)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None, None]:
        input, weight, _ = ctx.saved_tensors
        copies = input.contiguous(), gradients[0].contiguous()
        of_input = torch.empty_like(copies[0]) if ctx.needs_input_grad[0] else None
        of_weight = torch.empty_like(weight) if ctx.needs_input_grad[1] else None
        return of_input, of_weight, None
