"""Numbers into codes and back, written out on the bits of FP32, and equal to torch's own casts code for code.

An FP32 is a sign, 8 bits of exponent and 23 of mantissa. A format with `m` bits of mantissa keeps the first of them
and rounds by the rest: up above half, down below it, and from half to the even code. What is carried out of the
mantissa lies in the exponent's lowest bit, so the exponent grows by itself. Below the smallest normal number the
exponent stays, and one more bit of the mantissa is dropped for each power of two: these are the subnormals.
`helpers.catalog.floats` has the formats, and the same for one number, without torch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...catalog.errors import WorkbookError, require_name
from ...catalog.floats import OVERFLOWS, FloatFormat, float_format

FP32_MANTISSA, FP32_BIAS, FP32_INFINITY = 23, 127, 0x7F800000


def encode(x: Tensor, fmt: FloatFormat | str, overflow: str = "ieee") -> Tensor:
    """The codes (int64, of the shape of `x`) of the numbers nearest to `x`, which has 32 bits or fewer.

    Beyond the largest number "ieee" gives infinity, or NaN in a format that has no infinity; "saturate" gives the
    largest number, for infinity as well. Any NaN becomes the format's usual one. E2M1 has neither infinity nor NaN:
    it saturates, and NaN becomes its largest number.

    The trap: `x.to(torch.float8_e4m3fn)` makes NaN of 500 and of infinity in torch 2.11, and 448 of both in 2.13
    (pytorch/pytorch#178817; on a GPU as well, pytorch/ao#4359). To E5M2, FP16 and BF16 both do what "ieee" says.

    >>> encode(torch.tensor([1.0, 464.0, 500.0, -0.001]), "fp8-e4m3")
    tensor([ 56, 126, 127, 129])
    """
    fmt = _signed(fmt)
    sign, exponent, significand = _parts(_require_narrow(x))
    below_normal = (1 - fmt.bias + FP32_BIAS - exponent).clamp(min=0)  # powers of two
    dropped = (FP32_MANTISSA - fmt.mantissa_bits + below_normal).clamp(max=FP32_MANTISSA + 2)  # all of it, and half
    field = (exponent - FP32_BIAS + fmt.bias).clamp(min=1)
    code = ((field - 1) << fmt.mantissa_bits) + _shifted(significand, dropped)  # the leading one adds the last 1
    code = code.clamp(max=_beyond(fmt, require_name("overflow", overflow, OVERFLOWS)))
    code = code.long() | sign.long() << fmt.bits - 1
    return code.where(~x.isnan(), fmt.largest_code if fmt.nan_code is None else fmt.nan_code)


def decode(codes: Tensor, fmt: FloatFormat | str) -> Tensor:
    """The numbers, in FP32, that whole-number `codes` stand for. WorkbookError for codes that the format has not.

    >>> decode(torch.tensor([1, 126, 127, 184]), "fp8-e4m3")
    tensor([ 1.9531e-03,  4.4800e+02,         nan, -1.0000e+00])
    """
    fmt = _signed(fmt)
    codes = _require_codes(codes, fmt).long()
    sign, magnitude = codes >> fmt.bits - 1, codes & (1 << fmt.bits - 1) - 1
    field, mantissa = magnitude >> fmt.mantissa_bits, magnitude & (1 << fmt.mantissa_bits) - 1
    significand = mantissa + (field.clamp(max=1) << fmt.mantissa_bits)  # subnormals have no leading one
    # In FP64, where 2 to the power of -149 is no subnormal number yet, which some devices would make 0.
    values = torch.ldexp(significand.double(), field.clamp(min=1) - fmt.bias - fmt.mantissa_bits).float()
    infinite = (magnitude == fmt.largest_code + 1) & fmt.has_infinity
    values = values.masked_fill(magnitude > fmt.largest_code, torch.nan).masked_fill(infinite, torch.inf)
    return torch.where(sign == 1, -values, values)


def rounded(x: Tensor, fmt: FloatFormat | str, overflow: str = "ieee") -> Tensor:
    """`x` as `fmt` would keep it, in FP32: encoded and decoded.

    >>> rounded(torch.tensor([0.1, 1e-8, 7e4]), "fp16")
    tensor([0.1000, 0.0000,    inf])
    """
    return decode(encode(x, fmt, overflow), fmt)


def _parts(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Sign (0 or 1), exponent and significand of 24 bits; FP32's own subnormals have exponent 1 and no leading one."""
    bits = x.detach().float().view(torch.int32)
    exponent, mantissa = bits >> FP32_MANTISSA & 0xFF, bits & 0x7FFFFF
    leading = exponent.clamp(max=1) << FP32_MANTISSA
    return bits >> 31 & 1, exponent.clamp(min=1), mantissa + leading


def _shifted(significand: Tensor, dropped: Tensor) -> Tensor:
    """`significand` without its lowest `dropped` bits, rounded to nearest, halves to even."""
    kept, unit = significand >> dropped, 1 << dropped
    twice = 2 * (significand - kept * unit)
    return kept + ((twice > unit) | (twice == unit) & (kept % 2 == 1))


def _beyond(fmt: FloatFormat, overflow: str) -> int:
    """The code of what is too large. After the largest number comes infinity, or NaN where there is no infinity."""
    return fmt.largest_code + (overflow == "ieee" and fmt.nan_code is not None)


def _signed(fmt: FloatFormat | str) -> FloatFormat:
    fmt = float_format(fmt) if isinstance(fmt, str) else fmt
    if not fmt.sign_bits:
        do = "use float_format(name).encode for one scale, or quantization.blocks for whole blocks"
        raise WorkbookError(f"{fmt.name} has scales alone: no sign and no zero", "a format of values", do)
    return fmt


def _require_narrow(x: Tensor) -> Tensor:
    """FP64 is refused: it would be rounded twice, first to FP32."""
    if not x.is_floating_point() or x.element_size() > 4:
        raise WorkbookError(f"a tensor of {x.dtype}", "floating point of 32 bits or fewer", "pass x.float()")
    return x


def _require_codes(codes: Tensor, fmt: FloatFormat) -> Tensor:
    if codes.is_floating_point() or codes.is_complex():
        raise WorkbookError(f"codes of {codes.dtype}", "whole numbers", f"encode(x, {fmt.name!r}) makes codes")
    if codes.numel() and not 0 <= int(codes.min()) <= int(codes.max()) < fmt.codes:
        what = f"codes from {int(codes.min())} to {int(codes.max())} in {fmt.name}"
        do = "view a signed tensor as unsigned: codes.view(torch.uint8)"
        raise WorkbookError(what, f"0 to {fmt.codes - 1}", do)
    return codes
