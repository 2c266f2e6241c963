"""Evenly spaced levels: absmax and zero-point, one scale per tensor, per row or per group of a row."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...catalog.errors import WorkbookError, require_whole

TENSOR, ROW = "tensor", "row"
SCALE_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True, eq=False)
class GridScales:
    """What turns codes into values: `scale` and `zero`, both [rows, groups]; value = (code - zero) * scale."""

    scale: Tensor
    zero: Tensor

    def __getitem__(self, group: int) -> GridScales:
        """The scales of one group of every row, [rows, 1]."""
        return GridScales(self.scale[:, group : group + 1], self.zero[:, group : group + 1])


@dataclass(frozen=True)
class Grid:
    """2**bits evenly spaced levels for every `group` of values that share a scale.

    `group` is a number of neighbours in a row (input features), "row" (one scale per output row, "per channel") or
    "tensor". Symmetric is absmax: zero is the middle code and 2**bits - 1 levels are used. Otherwise the levels span
    minimum to maximum, zero included, and each group keeps a zero point too. GridScales are kept in `scale_dtype`.

    >>> grid = Grid(bits=4, group=2, symmetric=True)
    >>> grid.round(torch.tensor([[7.0, 3.2], [-0.7, 0.26]]))
    tensor([[ 7.0000,  3.0000],
            [-0.7000,  0.3000]])
    """

    bits: int = 4
    group: int | str = 64
    symmetric: bool = False
    scale_dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        require_whole("bits", self.bits, 2, 8, do="pass bits=4")
        whole = isinstance(self.group, int) and not isinstance(self.group, bool) and self.group >= 1
        if not whole and self.group not in (TENSOR, ROW):
            expected = "values per scale, from 1 up, or 'row', or 'tensor'"
            raise WorkbookError(f"group is {self.group!r}", expected, "pass group=64")
        if self.scale_dtype not in SCALE_DTYPES:
            expected = ", ".join(map(str, SCALE_DTYPES))
            raise WorkbookError(f"scale_dtype is {self.scale_dtype!r}", expected, "pass scale_dtype=torch.float16")

    def group_size(self, rows: int, columns: int) -> int:
        """Values that share a scale in a weight [rows, columns]."""
        if isinstance(self.group, int):
            return self.group
        return columns if self.group == ROW else rows * columns

    @property
    def top(self) -> int:
        """The largest code."""
        return 2**self.bits - 1

    def scales(self, weight: Tensor) -> GridScales:
        """The scales for `weight` [rows, columns]: no value lies further than half a step from a level."""
        blocks = self.blocks(require_finite(weight)).float()
        if self.symmetric:
            middle = 2 ** (self.bits - 1)
            scale = self._kept(blocks.abs().amax(-1) / (middle - 1))
            return GridScales(scale, torch.full_like(scale, middle))
        low, high = blocks.amin(-1).clamp(max=0), blocks.amax(-1).clamp(min=0)
        scale = self._kept((high - low) / self.top)
        return GridScales(scale, (-low / scale.float()).round().clamp(0, self.top).to(scale.dtype))

    def encode(self, values: Tensor, scales: GridScales) -> Tensor:
        """Codes of `values`, which broadcast against the scales: the nearest level, uint8."""
        low = 1 if self.symmetric else 0
        codes = (values.float() / scales.scale.float()).round() + scales.zero.float()
        return codes.clamp(low, self.top).to(torch.uint8)

    def decode(self, codes: Tensor, scales: GridScales) -> Tensor:
        """The values of `codes`, which broadcast against the scales, FP32."""
        return (codes.float() - scales.zero.float()) * scales.scale.float()

    def codes(self, weight: Tensor, scales: GridScales | None = None) -> Tensor:
        """Codes of a whole weight [rows, columns], in its shape."""
        found = self.scales(weight) if scales is None else scales
        return self.encode(self.blocks(require_finite(weight)), _column(found)).reshape(weight.shape)

    def values(self, codes: Tensor, scales: GridScales) -> Tensor:
        """The weight that `codes` [rows, columns] stand for, FP32."""
        return self.decode(self.blocks(codes), _column(scales)).reshape(codes.shape)

    def round(self, weight: Tensor) -> Tensor:
        """`weight` with every value replaced by its level: what is computed with after quantization."""
        scales = self.scales(weight)
        return self.values(self.codes(weight, scales), scales).to(weight.dtype)

    def blocks(self, weight: Tensor) -> Tensor:
        """[rows, groups, values per scale]; per tensor it is [1, 1, all]."""
        if self.group == TENSOR:
            return require_matrix(weight).reshape(1, 1, -1)
        size = self.group_size(*require_matrix(weight).shape)
        if size > weight.shape[1] or weight.shape[1] % size:
            what = f"groups of {size} in rows of {weight.shape[1]} values"
            raise WorkbookError(what, "a group that divides the row", "pass a divisor, or group='row'")
        return weight.reshape(weight.shape[0], -1, size)

    def _kept(self, scale: Tensor) -> Tensor:
        """The scale as it is stored; 1 where it is 0 in `scale_dtype`, so that nothing is divided by zero.

        Such a group is all zeros, or so small that in `scale_dtype` its values are zeros too.
        """
        kept = scale.to(self.scale_dtype)
        if not kept.isfinite().all():
            do = "keep scales in torch.float32, and weights below 1e38"
            raise WorkbookError(f"a scale of {scale.max():g} in {self.scale_dtype}", "a finite scale", do)
        return torch.where(kept == 0, torch.ones_like(kept), kept)


def require_matrix(weight: Tensor) -> Tensor:
    """`weight` itself; WorkbookError unless it is [rows, columns], with something in it."""
    if weight.dim() != 2 or not weight.numel():
        expected = "[rows, columns], neither of them 0"
        raise WorkbookError(f"a weight of shape {list(weight.shape)}", expected, "pass one linear layer's weight")
    return weight


def require_finite(weight: Tensor) -> Tensor:
    """`weight` itself; WorkbookError if it holds NaN or infinity, which one scale would spread over its group."""
    if not isinstance(weight, Tensor) or not weight.is_floating_point():
        what = f"a weight of type {getattr(weight, 'dtype', type(weight).__name__)}"
        raise WorkbookError(what, "a tensor in floating point", "pass the weight before it was quantized")
    bad = int((~weight.isfinite()).sum())
    if bad:
        do = "look for the layer that overflowed before quantizing it"
        raise WorkbookError(f"{bad:,} of {weight.numel():,} weights are NaN or infinite", "finite numbers", do)
    return weight


def _column(scales: GridScales) -> GridScales:
    return GridScales(scales.scale[..., None], scales.zero[..., None])
