"""The block formats of today's files and chips: FP8, MXFP8, MXFP4, NVFP4, and GGUF's Q8_0, Q4_K and Q4_0.

Neighbours share a scale that is itself in few bits: a power of two, an FP8, or a whole number of a larger block's FP16.
Blocks are neighbours in a row, so rows are whole blocks. Codes lie here in an order of our own; files have theirs.
Sources stand in helpers.catalog.formats: OCP's specifications, NVIDIA's description, llama.cpp's ggml-common.h.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ...catalog.errors import WorkbookError, require_name
from ..precision.codes import decode, encode
from .grids import require_finite, require_matrix
from .packing import pack, storage_bytes

E4M3_MOST = 448.0
SMALLEST = 1e-30  # what is divided by where a whole weight is zeros


@dataclass(frozen=True, eq=False)
class Blocks:
    """A weight in a block format: the tensors that are stored, and the FP32 values that they stand for.

    >>> Blocks.of(torch.ones(4, 256), "q4_k").nbytes * 8 / (4 * 256)
    4.5
    """

    name: str
    stored: dict[str, Tensor]
    values: Tensor

    @classmethod
    def of(cls, weight: Tensor, name: str) -> Blocks:
        """`weight` [rows, columns] in the format `name`, one of ENCODERS. WorkbookError where rows end in a block."""
        encoder, block = ENCODERS[require_name("block format", name, ENCODERS)]
        if require_matrix(require_finite(weight)).shape[1] % block:
            what = f"blocks of {block} in rows of {weight.shape[1]} values"
            raise WorkbookError(what, f"rows that {block} divides", "pass another weight, or another format")
        stored, values = encoder(weight.detach().float().reshape(-1, block))
        return cls(name, stored, values.reshape(weight.shape))

    @property
    def nbytes(self) -> int:
        """Bytes of codes and scales, measured on their storages."""
        return storage_bytes(self.stored.values())


Encoded = tuple[dict[str, Tensor], Tensor]


def _fp8(blocks: Tensor) -> Encoded:
    """E4M3 with one FP32 scale for the whole weight: the largest value becomes 448."""
    scale = blocks.abs().amax().clamp(min=SMALLEST) / E4M3_MOST
    codes = (blocks / scale).clamp(-E4M3_MOST, E4M3_MOST).to(torch.float8_e4m3fn)  # beyond 448 torch 2.11 makes NaN
    return {"codes": codes, "scale": scale}, codes.float() * scale


def _mxfp8(blocks: Tensor) -> Encoded:
    """32 values of E4M3 share a power of two, which brings the largest to 256 or more. Above 448 it is cut to 448."""
    exponent = (torch.frexp(blocks.abs().amax(-1, keepdim=True)).exponent - 9).clamp(-127, 127)
    codes = encode(torch.ldexp(blocks, -exponent), "fp8-e4m3", "saturate")
    stored = {"codes": codes.to(torch.uint8), "exponents": (exponent + 127).to(torch.uint8)}
    return stored, torch.ldexp(decode(codes, "fp8-e4m3"), exponent)


def _mxfp4(blocks: Tensor) -> Encoded:
    """32 values share a power of two, which brings the largest to 4 or more and below 8. Above 6 it is cut to 6."""
    exponent = torch.frexp(blocks.abs().amax(-1, keepdim=True)).exponent - 3
    exponent = exponent.clamp(-127, 127)
    codes, values = _e2m1(torch.ldexp(blocks, -exponent))
    return {"codes": pack(codes, 4), "exponents": (exponent + 127).to(torch.uint8)}, torch.ldexp(values, exponent)


def _nvfp4(blocks: Tensor) -> Encoded:
    """16 values share an E4M3 scale, which brings the largest to about 6; one FP32 brings those scales below 448."""
    largest = blocks.abs().amax(-1, keepdim=True)
    whole = largest.amax().clamp(min=SMALLEST) / (6 * E4M3_MOST)
    scales = (largest / 6 / whole).clamp(max=E4M3_MOST).to(torch.float8_e4m3fn)
    step = scales.float() * whole
    codes, values = _e2m1(blocks / step.where(step > 0, torch.inf))
    return {"codes": pack(codes, 4), "scales": scales, "whole": whole}, values * step


def _q8_0(blocks: Tensor) -> Encoded:
    """32 values over their absmax, in int8."""
    step = blocks.abs().amax(-1, keepdim=True) / 127
    codes = (blocks / step.clamp(min=SMALLEST)).round()
    return {"codes": codes.to(torch.int8), "scales": _half(step)}, codes * _half(step).float()


def _q4_0(blocks: Tensor) -> Encoded:
    """32 values share a step, that of the extreme value over -8: so the extreme is exact, whatever its sign."""
    step = _extreme(blocks) / -8
    codes = (blocks * _inverse(step) + 8.5).floor().clamp(0, 15)
    return {"codes": pack(codes.to(torch.uint8), 4), "scales": _half(step)}, (codes - 8) * _half(step).float()


def _q4_k(blocks: Tensor) -> Encoded:
    """Eight blocks of 32, value = step * code - low: step and low are whole numbers, in 6 bits, of two FP16.

    llama.cpp searches for a better step and low, in the same bytes.
    """
    small = blocks.reshape(-1, 8, 32)
    low, high = small.amin(-1, keepdim=True).clamp(max=0), small.amax(-1, keepdim=True).clamp(min=0)
    wanted = torch.stack([(high - low) / 15, -low])
    units = _half(wanted.amax(2, keepdim=True) / 63)
    whole = (wanted * _inverse(units.float())).round().clamp(0, 63).to(torch.uint8)
    step, offset = whole * units.float()
    codes = ((small + offset) * _inverse(step)).round().clamp(0, 15)
    planes = {"low_bits": pack(whole & 15, 4), "high_bits": pack(whole >> 4, 2)}  # 6 = 4 + 2, as in the files
    return {"codes": pack(codes.to(torch.uint8), 4), "units": units, **planes}, codes * step - offset


def _e2m1(scaled: Tensor) -> tuple[Tensor, Tensor]:
    """Codes and values of the nearest 4-bit floats; halfway goes to the even code, beyond 6 to 6."""
    codes = encode(scaled, "fp4-e2m1").to(torch.uint8)
    return codes, decode(codes, "fp4-e2m1")


def _extreme(blocks: Tensor) -> Tensor:
    """The value of the largest magnitude in each block, with its sign."""
    return blocks.gather(-1, blocks.abs().argmax(-1, keepdim=True))


def _inverse(step: Tensor) -> Tensor:
    """One over the step, and 0 where the step is 0: all codes are those of zero there."""
    return torch.where(step == 0, 0.0, 1 / step)


def _half(scale: Tensor) -> Tensor:
    if not (kept := scale.half()).isfinite().all():
        do = "look for the weight that is so large"
        raise WorkbookError(f"a scale of {scale.abs().max():g} in FP16", "at most 65,504", do)
    return kept


ENCODERS: dict[str, tuple[Callable[[Tensor], Encoded], int]] = {
    "fp8-e4m3": (_fp8, 1),
    "mxfp8": (_mxfp8, 32),
    "mxfp4": (_mxfp4, 32),
    "nvfp4": (_nvfp4, 16),
    "q8_0": (_q8_0, 32),
    "q4_k": (_q4_k, 256),
    "q4_0": (_q4_0, 32),
}
