"""Multiplying in eight bits: weights and activations as int8, and LLM.int8(), which keeps the outlier columns apart."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from .grids import require_finite, require_matrix
from .packing import Stored, require_dtype

LARGEST = 127  # -128 is left out, so that the levels are symmetric
SMALLEST = 1e-36  # 127 over less is infinite; a row that small becomes zeros
EXACT_COLUMNS = 1024  # products of two codes that FP32 adds without rounding: 1024 * 127**2 < 2**24
THRESHOLD = 6.0  # from here on an activation is an outlier: Dettmers et al., LLM.int8(), 2022, arXiv:2208.07339


@dataclass(frozen=True, eq=False)
class Int8Tensor(Stored):
    """Int8 codes [rows, columns] and one absmax per row, FP32; value = code * absmax / 127.

    >>> Int8Tensor.of(torch.ones(128, 4096)).nbytes / (128 * 4096)
    1.0009765625
    """

    codes: Tensor
    absmax: Tensor
    dtype: torch.dtype

    def __post_init__(self) -> None:
        require_dtype("the absmax of int8", self.absmax, torch.float32)

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]  # read off the codes: no fact of its own
        return tuple(self.codes.shape)

    @classmethod
    def of(cls, weight: Tensor) -> Int8Tensor:
        """`weight` [rows, columns] rounded; WorkbookError where it is not finite."""
        return cls(*to_int8(require_finite(require_matrix(weight))), weight.dtype)

    def dequantize(self, dtype: torch.dtype | None = None) -> Tensor:
        return (self.codes.float() * (self.absmax / LARGEST)[:, None]).to(dtype or self.dtype)


def to_int8(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Each row over its own absmax: (codes int8 in the same shape, absmax FP32 [rows])."""
    absmax = rows.abs().amax(-1).float()
    steps = LARGEST / absmax.clamp(min=SMALLEST)
    return (rows.float() * steps[:, None]).round().to(torch.int8), absmax


def int8_matmul(x: Tensor, weight: Tensor) -> Tensor:
    """`x` [tokens, in] times `weight` [out, in] transposed, both int8: int32 [tokens, out], exact on every path."""
    if _has_kernel(x, weight):
        return torch._int_mm(x, weight.t())
    total = torch.zeros(len(x), len(weight), dtype=torch.int32, device=x.device)
    for first in range(0, x.shape[1], EXACT_COLUMNS):
        part = slice(first, first + EXACT_COLUMNS)
        total += F.linear(x[:, part].float(), weight[:, part].float()).int()
    return total


def w8a8(x: Tensor, weight: Int8Tensor, bias: Tensor | None = None) -> Tensor:
    """`x` [..., in] quantized per token on the way in, multiplied as integers, scaled back to `x.dtype`.

    One outlier in a token sets the step for all its values: an activation of 60 among others of 1 leaves those
    only two codes on each side of zero.
    """
    tokens = x.reshape(-1, x.shape[-1])
    out = _scaled_back(*to_int8(tokens), weight)
    return _shaped(out, x, bias)


def llm_int8(x: Tensor, weight: Int8Tensor, bias: Tensor | None = None, threshold: float = THRESHOLD) -> Tensor:
    """As `w8a8`, but the columns of `x` that hold a value of `threshold` or more are multiplied in floating point.

    Their weights are the int8 ones, dequantized, as in bitsandbytes: the paper's FP16 copy would have to be kept.
    The columns are found anew in each call, so a token's result depends a little on the others in the batch.
    """
    tokens = x.reshape(-1, x.shape[-1])
    outliers = tokens.abs() >= threshold
    columns = outliers.any(0).nonzero().squeeze(-1)
    codes, absmax = to_int8(tokens.masked_fill(outliers, 0))
    codes[:, columns] = 0
    apart = Int8Tensor(weight.codes[:, columns], weight.absmax, x.dtype).dequantize()
    out = _scaled_back(codes, absmax, weight) + F.linear(tokens[:, columns], apart).float()
    return _shaped(out, x, bias)


def _scaled_back(codes: Tensor, absmax: Tensor, weight: Int8Tensor) -> Tensor:
    """The product as FP32: every sum of codes times the step of its token and the step of its row."""
    return int8_matmul(codes, weight.codes) * (absmax[:, None] * weight.absmax / LARGEST**2)


def _shaped(out: Tensor, x: Tensor, bias: Tensor | None) -> Tensor:
    out = out if bias is None else out + bias
    return out.reshape(*x.shape[:-1], -1).to(x.dtype)


def _has_kernel(x: Tensor, weight: Tensor) -> bool:
    """Whether `torch._int_mm` takes these shapes, is exact, and is quicker than the detour."""
    if x.device.type == "cuda":
        return len(x) > 16 and x.shape[1] % 8 == 0 and len(weight) % 8 == 0
    return x.device.type == "cpu" and cpu_kernel_is_exact()


@cache
def cpu_kernel_is_exact() -> bool:
    """On CPU only AVX-512 has a kernel. Asked, because oneDNN without VNNI adds in 16 bits, which overflow.

    PyTorch looks for VNNI at the processor (its issue 136746), oneDNN at ONEDNN_MAX_CPU_ISA too.
    """
    if torch.backends.cpu.get_cpu_capability() != "AVX512":
        return False
    with _disable_current_modes():  # a trace or a meter at work is not asked, and counts nothing
        most = torch.full((32, 64), LARGEST, dtype=torch.int8)
        return bool((torch._int_mm(most, most.t()) == 64 * LARGEST**2).all())
