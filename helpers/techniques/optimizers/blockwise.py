"""Block-wise 8 bits: 256 neighbours share an FP32 absmax, and each is one of 256 levels between -1 and 1.

Dettmers et al. 2021, "8-bit Optimizers via Block-wise Quantization", arXiv:2110.02861. A state takes 1 + 4/256 bytes a
value, and one outlier spoils the other 255 values of its block, not the whole tensor. The levels are dense near 0,
because the second moments of a block lie many decades apart.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ...catalog.errors import WorkbookError, require_name, require_whole

BLOCK = 256
TABLE = 65_536  # even steps from -1 to 1
SMALLEST = 1e-38  # what is divided by where a block is all zeros
ROUNDINGS = ("nearest", "table")


def dynamic_map(signed: bool = True) -> Tensor:
    """The 256 levels of the dynamic type, FP32 and sorted: seven decades with 1, 2, 4 … 64 levels of either sign.

    Unsigned there are twice as many in a decade, all positive. 0 and 1 come on top. Equal to bitsandbytes'
    `create_dynamic_map`. Dettmers 2015, "8-Bit Approximations for Parallelism in Deep Learning", arXiv:1511.04561.

    >>> dynamic_map()[[0, 126, 127, 128, 255]]
    tensor([-9.9297e-01, -5.5000e-07,  0.0000e+00,  5.5000e-07,  1.0000e+00])
    """
    decades = []
    for decade in range(7):
        edges = torch.linspace(0.1, 1, 2 ** (decade if signed else decade + 1) + 1)
        decades.append(10.0 ** (decade - 6) * (edges[:-1] + edges[1:]) / 2)
    positive = torch.cat(decades)
    negative = -positive if signed else positive[:0]
    return torch.cat([negative, torch.tensor([0.0, 1.0]), positive]).sort().values


def quantized(x: Tensor, levels: Tensor, block: int = BLOCK, rounding: str = "nearest") -> tuple[Tensor, Tensor]:
    """(codes uint8 in the shape of `x`, absmax FP32 of every `block` neighbours); the last block may be shorter.

    >>> codes, absmax = quantized(torch.tensor([0.5, -2.0]), dynamic_map())
    >>> dequantized(codes, absmax, dynamic_map())
    tensor([ 0.4953, -1.9859])
    """
    require_whole("block", block)
    if not x.numel():
        raise WorkbookError("a tensor of no values", "one value or more", "leave it out")
    blocks = F.pad(x.float().reshape(-1), (0, -x.numel() % block)).reshape(-1, block)
    absmax = blocks.abs().amax(-1, keepdim=True)
    scaled = (blocks * (1.0 / absmax.clamp(min=SMALLEST))).clamp(-1, 1)
    rounded = nearest if require_name("rounding", rounding, ROUNDINGS) == "nearest" else by_table
    codes = rounded(scaled, levels).masked_fill(absmax == 0, 0)  # any code will do, for all of them decode to 0
    return codes.reshape(-1)[: x.numel()].reshape(x.shape), absmax.reshape(-1)


def dequantized(codes: Tensor, absmax: Tensor, levels: Tensor, block: int = BLOCK) -> Tensor:
    """The values that `quantized` packed, FP32, in the shape of `codes`."""
    values = levels.index_select(0, codes.reshape(-1).int())
    blocks = F.pad(values, (0, -len(values) % block)).reshape(-1, block) * absmax[:, None]
    return blocks.reshape(-1)[: len(values)].reshape(codes.shape)


def nearest(scaled: Tensor, levels: Tensor) -> Tensor:
    """Index of the nearest of the sorted `levels`, uint8; halfway goes to the lower one."""
    return torch.bucketize(scaled, (levels[:-1] + levels[1:]) / 2, out_int32=True).to(torch.uint8)


def by_table(scaled: Tensor, levels: Tensor) -> Tensor:
    """As bitsandbytes 0.50 on an x86 CPU: the nearest of 65,536 even steps, and the level that is nearest to that step.

    It spares a search for each value. The two steps around 0 are 1.5e-5 away from it, so no smaller level is ever used
    and a second moment of 0 becomes 1.56e-5 of its block's absmax. A GPU takes the nearest level, and then for a signed
    state the nearest of the same sign.
    """
    steps = torch.arange(TABLE, device=levels.device) * 2.0 / (TABLE - 1) - 1.0
    table = nearest(steps, levels)
    return table[((scaled + 1) * 0.5 * (TABLE - 1) + 0.5).int()]
