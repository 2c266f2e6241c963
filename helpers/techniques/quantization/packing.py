"""Codes in real bytes: what a quantized weight occupies is measured on its storages, not multiplied out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...catalog.errors import WorkbookError, require_whole
from .grids import Grid, GridScales

WIDTHS = (2, 4, 8)  # the code widths that fill a byte without a rest


def storage_bits(bits: int) -> int:
    """Bits that one code of `bits` occupies here: the next width that divides a byte. 3 bits are kept in 4."""
    wanted = require_whole("the width of a code", bits, 1, 8, unit="bits", do="pass the bits of a Grid")
    return next(width for width in WIDTHS if wanted <= width)


def pack(codes: Tensor, bits: int) -> Tensor:
    """Codes 0 … 2**bits - 1 (uint8, any shape) in ceil(count * bits / 8) bytes, flat, the first in the high bits.

    That is bitsandbytes' order of nibbles. What is left of the last byte is 0.

    >>> pack(torch.tensor([1, 2, 15], dtype=torch.uint8), bits=4).tolist()      # 0x12, 0xF0
    [18, 240]
    """
    _require_width(bits)
    if codes.dtype != torch.uint8 or (codes.numel() and int(codes.max()) >= 2**bits):
        what = f"codes in {codes.dtype}, up to {int(codes.max()) if codes.numel() else 'none'}"
        raise WorkbookError(what, f"uint8 from 0 to {2**bits - 1}", "shift signed codes up, and check `bits`")
    per_byte = 8 // bits
    lanes = F.pad(codes.reshape(-1), (0, -codes.numel() % per_byte)).reshape(-1, per_byte)
    packed = torch.zeros(len(lanes), dtype=torch.uint8, device=codes.device)
    for place in range(per_byte):
        packed |= lanes[:, place] << (8 - bits * (place + 1))
    return packed


def unpack(packed: Tensor, bits: int, count: int) -> Tensor:
    """The first `count` codes in `packed`, flat uint8: the inverse of `pack`."""
    _require_width(bits)
    per_byte = 8 // bits
    if packed.dtype != torch.uint8 or not 0 <= count <= packed.numel() * per_byte:
        what = f"{count} codes of {bits} bits in {packed.numel()} values of {packed.dtype}"
        raise WorkbookError(what, f"uint8, at most {packed.numel() * per_byte} codes", "pass the count that was packed")
    shifts = torch.arange(8 - bits, -1, -bits, dtype=torch.uint8, device=packed.device)
    codes = (packed.reshape(-1, 1) >> shifts) & (2**bits - 1)
    return codes.reshape(-1)[:count]


def require_dtype(what: str, tensor: Tensor | None, dtype: torch.dtype) -> None:
    """Refuse scales that were cast with the rest of a model: codes would stand for other values."""
    if tensor is not None and tensor.dtype != dtype:
        expected = f"{dtype}, as it was made"
        raise WorkbookError(f"{what} in {tensor.dtype}", expected, "call model.to(dtype) before quantizing, not after")


def storage_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of all their storages: each counts once, however many of them share it, and whole."""
    return sum({t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}.values())


class Stored:
    """What every stored weight can do. A subclass is a frozen dataclass of tensors, which occupy memory, and facts.

    `dtype` is that of the weight it came from. It can be taken apart into `tensors` (a module's buffers) and `facts`,
    and put together again: `type(w)(**w.tensors, **w.facts)`.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype

    def dequantize(self, dtype: torch.dtype | None = None) -> Tensor:
        """The dense weight, in `dtype` or in that of the original."""
        raise NotImplementedError

    @property
    def tensors(self) -> dict[str, Tensor]:
        return {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}

    @property
    def facts(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if not isinstance(value, Tensor)}

    @property
    def nbytes(self) -> int:
        """Bytes of its codes and scales; of whole storages, also where a tensor shows only a part."""
        return storage_bytes(self.tensors.values())


@dataclass(frozen=True, eq=False)
class QuantizedTensor(Stored):
    """A weight on a Grid: packed codes, scales [rows, groups], and packed zero points where the grid has them.

    A symmetric grid keeps no zero points: they are all the middle code. 4,096 x 4,096 at 4 bits, groups of 128,
    FP16 scales and zero points take 4.15625 bits per value:

    >>> grid = Grid(bits=4, group=128, scale_dtype=torch.float16)
    >>> QuantizedTensor.of(torch.ones(16, 4096), grid).nbytes * 8 / (16 * 4096)
    4.15625
    """

    packed: Tensor
    scale: Tensor
    zeros: Tensor | None
    shape: tuple[int, int]
    grid: Grid
    dtype: torch.dtype

    def __post_init__(self) -> None:
        require_dtype("the scales of a grid", self.scale, self.grid.scale_dtype)

    @classmethod
    def of(cls, weight: Tensor, grid: Grid) -> QuantizedTensor:
        """`weight` [rows, columns] rounded to the nearest levels of `grid`."""
        scales = grid.scales(weight)
        return cls.from_codes(grid.codes(weight, scales), scales, grid, weight.dtype)

    @classmethod
    def from_codes(cls, codes: Tensor, scales: GridScales, grid: Grid, dtype: torch.dtype) -> QuantizedTensor:
        """Codes [rows, columns] that a method such as GPTQ chose, with the scales they stand on."""
        width = storage_bits(grid.bits)
        zeros = None if grid.symmetric else pack(_whole(scales.zero), width)
        rows, columns = codes.shape
        return cls(pack(codes, width), scales.scale.contiguous(), zeros, (rows, columns), grid, dtype)

    def dequantize(self, dtype: torch.dtype | None = None) -> Tensor:
        """The dense weight [rows, columns], in `dtype` or in that of the original."""
        rows, columns = self.shape
        codes = unpack(self.packed, storage_bits(self.grid.bits), rows * columns).reshape(rows, columns)
        return self.grid.values(codes, self._scales()).to(dtype or self.dtype)

    def _scales(self) -> GridScales:
        if self.zeros is None:
            return GridScales(self.scale, torch.full_like(self.scale, 2 ** (self.grid.bits - 1)))
        zeros = unpack(self.zeros, storage_bits(self.grid.bits), self.scale.numel())
        return GridScales(self.scale, zeros.reshape(self.scale.shape))


def _whole(zero: Tensor) -> Tensor:
    """Zero points as codes. Truncating 7.6 to 7 would move every weight of the group."""
    if not torch.equal(zero, zero.round()) or (zero < 0).any():
        raise WorkbookError("zero points that are not codes", "whole numbers from 0 up", "use those of grid.scales")
    return zero.to(torch.uint8)


def _require_width(bits: int) -> None:
    if isinstance(bits, bool) or bits not in WIDTHS:
        do = "keep narrower codes in the next width: bits=storage_bits(3) is 4"
        raise WorkbookError(f"codes of {bits!r} bits do not fill a byte", f"bits of {WIDTHS}", do)
