"""Calling the Triton kernel: on a GPU compiled, on a CPU in Triton's interpreter, which runs it as NumPy."""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy
import torch
from numpy.lib import NumpyVersion
from torch import Tensor

from ...catalog.errors import WorkbookError, require_package
from .masks import BlockSparse, Causal, Mask, Window
from .shapes import checked, sides

LONGEST = 2**30  # a window that no sequence fills


def triton_tiled(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask = Causal(),  # noqa: B008
    tile: int | tuple[int, int] = 64,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """As `tiled`: output and log-sum-exp, forward alone. Sides of tiles are powers of 2, at least 16; FP32 sums.

    WorkbookError where Triton is not installed, on a CPU without its interpreter, and for a table of blocks.
    """
    sizes = checked(q, k, v, mask, scale)
    tile_q, tile_k = _sides_of_a_kernel(tile)
    if isinstance(mask, BlockSparse) or q.dtype == torch.float64 or v.shape[3] != q.shape[3]:
        what = f"{type(mask).__name__} over {q.dtype}, values of {v.shape[3]} for keys of {q.shape[3]}"
        expected = "Full, Causal or Window, in 32 or 16 bits, with values as wide as keys"
        raise WorkbookError(what, expected, "call tiled, or FlexAttention: flex(q, k, v, mask)")
    kernel = _kernel(q.device)
    number = torch.float32 if q.device.type == "cpu" and q.dtype == torch.bfloat16 else q.dtype  # NumPy has no BF16
    output, log_sum_exp = (
        torch.empty(q.shape, dtype=number, device=q.device),
        q.new_empty(q.shape[:3], dtype=torch.float32),
    )
    inputs = [tensor.to(number).contiguous() for tensor in (q, k, v)]
    starts, columns = _visits(mask, sizes.queries, sizes.keys, tile_q, tile_k, q.device)
    lengths = (sizes.queries, sizes.keys, q.shape[3], sizes.group, sizes.scale)
    kernel[(len(starts) - 1, q.shape[0] * q.shape[1])](
        *(*inputs, output, log_sum_exp, starts, columns, *lengths),
        *_rule(mask),
        TILE_Q=tile_q,
        TILE_K=tile_k,
        DIM=max(16, 1 << (q.shape[3] - 1).bit_length()),
    )
    return output.to(q.dtype), log_sum_exp


def _rule(mask: Mask) -> tuple[bool, int, int]:
    """CAUSAL, SIZE and SINKS: a causal mask is a window that no sequence fills."""
    if isinstance(mask, Window):
        return True, mask.size, mask.sinks
    return isinstance(mask, Causal), LONGEST, 0


def _visits(
    mask: Mask, queries: int, keys: int, tile_q: int, tile_k: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Where each row's columns begin, and the columns, one row after the other."""
    starts, columns = [0], list[int]()
    for ranges in mask.columns(queries, keys, tile_q, tile_k):
        columns += [column for span in ranges for column in span]
        starts.append(len(columns))
    made = (torch.tensor(numbers, dtype=torch.int32, device=device) for numbers in (starts, columns or [0]))
    return next(made), next(made)


def _sides_of_a_kernel(tile: int | tuple[int, int]) -> tuple[int, int]:
    tile_q, tile_k = sides(tile)
    if any(side < 16 or side & (side - 1) for side in (tile_q, tile_k)):
        raise WorkbookError(f"tile is {tile!r}", "powers of 2, at least 16: a matrix unit's", "pass tile=64")
    return tile_q, tile_k


def _kernel(device: torch.device) -> Any:
    """The kernel, imported now. Triton decides at its import whether it interprets."""
    if device.type == "cpu" and "triton" not in sys.modules and not torch.cuda.is_available():
        os.environ.setdefault("TRITON_INTERPRET", "1")
    do = "pip install triton, on Linux; PyTorch for CUDA brings it along"
    triton = require_package("triton", "this kernel", do)
    from .triton_kernel import forward_kernel

    if device.type == "cpu" and type(forward_kernel).__name__ != "InterpretedFunction":
        do = "set TRITON_INTERPRET=1 before Python starts, or put the tensors on the GPU"
        raise WorkbookError("a Triton kernel on a CPU", "Triton's interpreter", do)
    old, new = NumpyVersion(triton.__version__) < "3.7.0", NumpyVersion(numpy.__version__) >= "2.4.0"
    if device.type == "cpu" and old and new:
        what = f"Triton {triton.__version__} cannot interpret with NumPy {numpy.__version__}"
        raise WorkbookError(what, "Triton from 3.7 on, or NumPy before 2.4", 'pip install "numpy<2.4"')
    return forward_kernel
