"""FP8 with scales: 448 is all that E4M3 reaches, so each tensor is divided by a scale that brings its largest there.

A matrix product of two scaled operands is the product of their codes, times both scales: for one scale a tensor that
is one factor, for one scale a row it is one factor for each row and each column of the result. The scales come out of
the sum, so the tensor core adds up plain FP8. Along the summed dimension they could not differ: that needs the block
formats of `quantization.blocks`, and hardware that knows them.

Micikevicius et al. 2022, "FP8 Formats for Deep Learning", arXiv:2209.05433: E4M3 for weights and activations; E5M2,
with 32 powers of two for E4M3's 18 and one bit of mantissa less, for gradients.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import torch
from torch import Tensor

from ...catalog.errors import WorkbookError, require_name, require_whole
from ...catalog.floats import FloatFormat, float_format
from .codes import decode, encode

DTYPES = {"fp8-e4m3": torch.float8_e4m3fn, "fp8-e5m2": torch.float8_e5m2}
PER = ("tensor", "row")


@dataclass(frozen=True, eq=False)
class Scaled:
    """A matrix [rows, columns] in FP8: its `codes` (uint8), and the FP32 `scale` of each, of shape [] or [rows, 1].

    >>> small = Scaled.of(torch.tensor([[1.0, -3.5], [0.01, 0.02]]), per="row")
    >>> small.values, small.nbytes
    (tensor([[ 1.0000, -3.5000],
            [ 0.0100,  0.0200]]), 12)
    """

    name: str
    codes: Tensor
    scale: Tensor

    @classmethod
    def of(cls, x: Tensor, fmt: str = "fp8-e4m3", per: str = "tensor") -> Scaled:
        """`x` with its own largest value, of the whole tensor or of each row, at the format's largest.

        The tensor is read twice: for its largest value, then to be divided.
        """
        require_name("per", per, PER)
        values = _require_matrix(x).detach().float()
        largest = values.abs().amax() if per == "tensor" else values.abs().amax(-1, keepdim=True)
        return cls.with_scale(x, scale_of(largest, _format(fmt)), fmt)

    @classmethod
    def with_scale(cls, x: Tensor, scale: Tensor, fmt: str = "fp8-e4m3") -> Scaled:
        """`x` divided by a scale that is known already. What lies beyond the format's largest is cut to it."""
        codes = encode(_require_matrix(x).detach().float() / scale, _format(fmt), overflow="saturate")
        return cls(fmt, codes.to(torch.uint8), scale)

    @property
    def values(self) -> Tensor:
        """The FP32 values that codes and scale stand for."""
        return decode(self.codes, self.name) * self.scale

    @property
    def fp8(self) -> Tensor:
        """The same bytes as a tensor of torch's type."""
        return self.codes.view(DTYPES[self.name])

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + self.scale.nbytes


class DelayedScale:
    """A scale from the largest values of earlier steps, so that a tensor is read once: Transformer Engine's recipe.

    Each call divides by the scale that the last `history` tensors ask for, cuts off what is larger, and remembers how
    large this tensor was. `margin` leaves that many powers of two free above. A tensor that grows by more than the
    margin from a step to the next is cut: `cut` counts the values. The first tensor finds a scale of 1.
    """

    def __init__(self, history: int = 16, margin: int = 0, fmt: str = "fp8-e4m3") -> None:
        require_whole("margin", margin, 0)
        self.fmt, self.margin, self.cut = fmt, margin, 0
        self.largest: deque[float] = deque(maxlen=require_whole("history", history))
        self.scale = torch.tensor(1.0)
        _format(fmt)

    def __call__(self, x: Tensor) -> Scaled:
        scaled = Scaled.with_scale(x, self.scale.to(x.device), self.fmt)
        self.cut += int((x.detach().float().abs() > self.scale * _format(self.fmt).largest).sum())
        self.largest.append(float(x.detach().abs().amax()))
        self.scale = scale_of(torch.tensor(max(self.largest)) * 2.0**self.margin, _format(self.fmt))
        return scaled


def scale_of(largest: Tensor, fmt: FloatFormat) -> Tensor:
    """What to divide by so that `largest` becomes the format's largest; 1 where everything is zero."""
    return (largest / fmt.largest).clamp(min=torch.finfo(torch.float32).tiny).where(largest > 0, 1.0)


def product(a: Scaled, b: Scaled, out: torch.dtype = torch.bfloat16) -> Tensor:
    """a @ b.T, as a linear layer with the weight `b`, by torch's FP8 kernel: codes are multiplied, sums are FP32.

    On CUDA it needs compute capability 8.9, sides that 16 divides, and E4M3 in one operand at least; with scales by
    row, FP32 comes out on a Hopper alone. A CPU takes any shape, and computes no faster than in FP32.
    """
    scale_a, scale_b = _scales(a, b)
    if a.scale.dim() and a.codes.device.type == "cpu":  # where torch 2.11 knows no scales by row: they come after
        one = torch.ones(())
        sums = torch._scaled_mm(a.fp8, b.fp8.T, scale_a=one, scale_b=one, out_dtype=torch.float32)
        return (sums * scale_a * scale_b).to(out)
    return torch._scaled_mm(a.fp8, b.fp8.T, scale_a=scale_a, scale_b=scale_b, out_dtype=out)


def plain_product(a: Scaled, b: Scaled) -> Tensor:
    """The same by decoding and multiplying in FP32: what `product` must come to, but for its last rounding."""
    _scales(a, b)
    return a.values @ b.values.T


def _scales(a: Scaled, b: Scaled) -> tuple[Tensor, Tensor]:
    """[] and [], or [rows, 1] and [1, rows]: what is 1 is repeated."""
    if a.codes.shape[1] != b.codes.shape[1]:
        what = f"rows of {a.codes.shape[1]} values times rows of {b.codes.shape[1]}"
        raise WorkbookError(what, "[m, k] and [n, k], as input and weight of a linear layer", "transpose one of them")
    if a.scale.dim() != b.scale.dim():
        what = "one operand scaled by tensor and the other by row"
        raise WorkbookError(what, "the same for both, which is what kernels have", "pass the same per to both")
    return a.scale, b.scale.T if b.scale.dim() else b.scale


def _format(name: str) -> FloatFormat:
    return float_format(require_name("FP8 format", name, DTYPES))


def _require_matrix(x: Tensor) -> Tensor:
    if x.dim() != 2 or not x.numel():
        raise WorkbookError(f"a tensor of shape {list(x.shape)}", "a matrix [rows, columns]", "pass x.flatten(0, -2)")
    if not x.isfinite().all():
        raise WorkbookError("a tensor with infinities or NaN", "finite numbers", "look for the step that made them")
    return x
