"""NF4 with double quantization, as in QLoRA and bitsandbytes: sixteen levels at the quantiles of a normal."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist

import torch
import torch.nn.functional as F
from torch import Tensor

from ...catalog.errors import WorkbookError
from .grids import require_finite
from .packing import Stored, pack, require_dtype, unpack

NF4_LEVELS = (
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
)
BLOCKS = (32, 64, 128, 256, 512, 1024, 2048, 4096)  # those that bitsandbytes has
ZERO_CODE = 7  # the level 0.0
SUPERBLOCK = 256  # absmaxes that share a scale in double quantization
SMALLEST = 1e-38  # what bitsandbytes divides by where a block is all zeros


def normal_levels(offset: float = 0.9677083) -> Tensor:
    """The sixteen levels, derived: quantiles of a normal, 8 above zero and 7 below, and zero; the largest becomes 1.

    Weights are close to normal, so levels at equal steps of *probability* are each used about equally often. The
    outermost quantile is not at probability 1, which a normal never reaches, but at `offset`, 1.85 standard deviations.
    The absmax of 64 weights is on average 2.6, so that in use a middle level takes 9 % of them, an outer one 2 to 4 %.
    Dettmers et al., QLoRA, 2023, arXiv:2305.14314, section 3; `create_normal_map` in bitsandbytes.
    """
    above = [NormalDist().inv_cdf(p) for p in torch.linspace(offset, 0.5, 9)[:-1].tolist()]
    below = [-NormalDist().inv_cdf(p) for p in torch.linspace(offset, 0.5, 8)[:-1].tolist()]
    levels = torch.tensor(sorted([*below, 0.0, *above]))
    return levels / levels.max()


@cache  # numbers, not a tensor: one made under fake tensors or inference mode would be kept for all
def dynamic_levels() -> tuple[float, ...]:
    """The 256 levels of the 8-bit dynamic type, for the scales themselves: decades that hold 1, 2, 4 … 64 levels.

    Dettmers, 8-Bit Approximations for Parallelism in Deep Learning, 2015, arXiv:1511.04561.
    """
    positive = []
    for decade in range(7):
        edges = torch.linspace(0.1, 1, 2**decade + 1)
        positive.append(10.0 ** (decade - 6) * (edges[:-1] + edges[1:]) / 2)
    found = torch.cat(positive)
    return tuple(torch.cat([-found, torch.tensor([0.0, 1.0]), found]).sort().values.tolist())


@dataclass(frozen=True, eq=False)
class NF4Tensor(Stored):
    """A weight of any shape in blocks of `block` neighbours that share an absmax.

    `absmax` is FP32; double-quantized it is uint8, and value = level[absmax] * superscale[its superblock] + offset.
    The two tables of levels belong to the module and are not counted (bitsandbytes keeps a copy in each layer:
    64 bytes, and 1,024 with double quantization).

    >>> NF4Tensor.of(torch.ones(128, 128), double_quant=False).nbytes * 8 / 128**2
    4.5
    """

    packed: Tensor
    absmax: Tensor
    superscale: Tensor | None
    offset: Tensor | None
    shape: tuple[int, ...]
    block: int
    dtype: torch.dtype

    def __post_init__(self) -> None:
        require_dtype("the absmax of NF4", self.absmax, torch.float32 if self.superscale is None else torch.uint8)
        for scale in (self.superscale, self.offset):
            require_dtype("the double-quantized scales of NF4", scale, torch.float32)

    @classmethod
    def of(cls, weight: Tensor, double_quant: bool = True, block: int = 64) -> NF4Tensor:
        """`weight` (FP32, FP16, BF16) quantized. WorkbookError where it is empty or not finite."""
        if not require_finite(weight).numel() or block not in BLOCKS:
            expected = f"1 or more, in blocks of {BLOCKS}"
            raise WorkbookError(f"{weight.numel()} values in blocks of {block!r}", expected, "use block=64")
        scaled, absmax = _blocks(weight.reshape(-1).float(), block)
        codes = nearest(scaled, NF4_LEVELS)
        packed = pack(F.pad(codes, (0, len(codes) % 2), value=ZERO_CODE), bits=4)
        scale, superscale, offset = compress(absmax) if double_quant else (absmax, None, None)
        return cls(packed, scale, superscale, offset, tuple(weight.shape), block, weight.dtype)

    def dequantize(self, dtype: torch.dtype | None = None) -> Tensor:
        """The dense weight in its shape, in `dtype` or in that of the original."""
        codes = unpack(self.packed, 4, math.prod(self.shape))
        values = _times(looked_up(codes, NF4_LEVELS), self.scales(), self.block)
        return values.to(dtype or self.dtype).reshape(self.shape)

    def scales(self) -> Tensor:
        """One absmax per block, FP32, decoded where it is double-quantized."""
        if self.superscale is None or self.offset is None:
            return self.absmax
        return expand(self.absmax, self.superscale, self.offset)


def compress(absmax: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Double quantization: (codes uint8 [blocks], one scale per 256 of them, the mean that was taken off).

    Absmaxes are all positive; less their mean they use both signs of the dynamic type. The codes are the nearest.
    bitsandbytes looks its own up in a table of 65,536 entries on CPU, so that 2 or 3 in a thousand are a neighbour.
    """
    offset = absmax.mean()
    if not offset.isfinite():
        raise WorkbookError("absmaxes whose mean is beyond FP32", "weights below about 1e38", "use double_quant=False")
    scaled, superscale = _scaled(absmax - offset, SUPERBLOCK)
    return nearest(scaled, dynamic_levels()), superscale, offset


def expand(codes: Tensor, superscale: Tensor, offset: Tensor) -> Tensor:
    """The absmaxes that `compress` packed, FP32."""
    return _times(looked_up(codes, dynamic_levels()), superscale, SUPERBLOCK) + offset


def nearest(values: Tensor, levels: tuple[float, ...]) -> Tensor:
    """Index of the nearest of the sorted `levels`, uint8; halfway goes to the lower one."""
    table = torch.tensor(levels, device=values.device)
    return torch.bucketize(values, (table[:-1] + table[1:]) / 2, out_int32=True).to(torch.uint8)


def looked_up(codes: Tensor, levels: tuple[float, ...]) -> Tensor:
    """The level of every code, FP32, flat."""
    return torch.tensor(levels, device=codes.device).index_select(0, codes.int())


def _scaled(flat: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """Values over the absmax of their block, and the absmaxes; the last block may be shorter."""
    blocks = F.pad(flat, (0, -len(flat) % block)).reshape(-1, block)
    absmax = blocks.abs().amax(-1)
    scaled = (blocks * (1.0 / absmax.clamp(min=SMALLEST))[:, None]).clamp(-1, 1)
    return scaled.reshape(-1)[: len(flat)], absmax


def _blocks(flat: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """`_scaled`, to the last bit as bitsandbytes: a shorter last block divides, and keeps 1e-38 if it is all zeros."""
    full = len(flat) - len(flat) % block
    scaled, absmax = _scaled(flat[:full], block)
    if full == len(flat):
        return scaled, absmax
    last = flat[full:].abs().amax().clamp(min=SMALLEST)
    return torch.cat([scaled, (flat[full:] / last).clamp(-1, 1)]), torch.cat([absmax, last[None]])


def _times(values: Tensor, scales: Tensor, block: int) -> Tensor:
    """Every value times the scale of its block, FP32."""
    padded = F.pad(values, (0, -len(values) % block)).reshape(-1, block)
    return (padded * scales[:, None]).reshape(-1)[: len(values)]
