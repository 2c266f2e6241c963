"""Floating-point formats bit by bit: what each code means, and which code a number gets. Exact, and no torch.

fp16 = float_format("fp16")
fp16.encode(0.1)                 # 11878
fp16.decode(11878)               # 0.0999755859375
fp16.bits_of(11878)              # ("0", "01011", "1001100110")
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from .errors import WorkbookError, require_name, require_whole, unknown_name
from .formats import number_format

OVERFLOWS = ("ieee", "saturate")
_NUMBER = "an int, a float or a Fraction"


@dataclass(frozen=True)
class FloatFormat:
    """A sign, an exponent and a mantissa in `bits` bits, and which codes are no finite number.

    `specials` is "ieee" (the highest exponent is infinity and NaN), "nan" (NaN is the highest code of each sign alone,
    and there is no infinity), "none" (every code is a number) or "scale" (no sign, no zero, no subnormals: each code
    is a power of two, and the highest is NaN).

    >>> e4m3, e5m2 = float_format("fp8-e4m3"), float_format("fp8-e5m2")
    >>> e4m3.largest, e4m3.finite_codes, e5m2.largest, e5m2.finite_codes
    (448.0, 254, 57344.0, 248)
    """

    name: str
    exponent_bits: int
    mantissa_bits: int
    bias: int
    specials: str
    source: str

    @property
    def sign_bits(self) -> int:
        return 0 if self.specials == "scale" else 1

    @property
    def bits(self) -> int:
        """TF32 has 19 and is stored in 32."""
        return self.sign_bits + self.exponent_bits + self.mantissa_bits

    @property
    def codes(self) -> int:
        return 2**self.bits

    @property
    def finite_codes(self) -> int:
        """Codes that are finite numbers; +0 and −0 are two."""
        return (1 + self.sign_bits) * (self.largest_code + 1)

    @property
    def largest_code(self) -> int:
        """The code of `largest`. Codes of numbers from zero up count in the numbers' order."""
        below_sign = 2 ** (self.exponent_bits + self.mantissa_bits)
        return below_sign - {"ieee": 2**self.mantissa_bits, "nan": 1, "scale": 1, "none": 0}[self.specials] - 1

    @property
    def largest(self) -> float:
        return self.decode(self.largest_code)

    @property
    def smallest_normal(self) -> float:
        return math.ldexp(1.0, self.least_exponent)

    @property
    def smallest_subnormal(self) -> float:
        """The smallest number above zero."""
        return math.ldexp(1.0, self.least_exponent - self.mantissa_bits)

    @property
    def least_exponent(self) -> int:
        """Of a normal number. Exponent code 0 means subnormals, but for scales, which have none."""
        return self.sign_bits - self.bias

    @property
    def epsilon(self) -> float:
        """The distance from 1 to the next number above it."""
        return math.ldexp(1.0, -self.mantissa_bits)

    @property
    def has_infinity(self) -> bool:
        return self.specials == "ieee"

    @property
    def nan_code(self) -> int | None:
        """The usual one of the codes that are NaN: quiet and positive. None where there is none."""
        if self.specials == "none":
            return None
        quiet = 2 ** (self.mantissa_bits - 1) if self.has_infinity else 0
        return self.largest_code + 1 + quiet

    def encode(self, value: float | Fraction, overflow: str = "ieee") -> int:
        """The code nearest to `value`, of two that are as near the even one; a scale between two then goes up.

        What rounds beyond `largest` becomes infinity, or NaN in a format without one; with overflow="saturate", and
        in a format that has neither, it becomes `largest`, and so does infinity. NaN stays NaN, and where a format has
        none it becomes the positive `largest`, as in NVIDIA's conversions. No scale is negative: that is NaN.
        WorkbookError for what is no number.

        >>> float_format("fp8-e4m3").encode(1e9), float_format("fp8-e4m3").encode(1e9, "saturate")
        (127, 126)
        """
        require_name("overflow", overflow, OVERFLOWS)
        _require_number(value)
        if _is_nan(value) or (value < 0 and not self.sign_bits):
            return self.largest_code if self.nan_code is None else self.nan_code
        code = self._nearest(self._place(value))
        if code > self.largest_code:
            code = self._beyond(overflow)
        return code + self._sign(value)

    def overflows(self, value: float | Fraction) -> bool:
        """Whether `value` rounds beyond `largest`: it is past it by half a step or more. An infinity does.

        >>> float_format("fp8-e4m3").overflows(464), float_format("fp8-e4m3").overflows(465)
        (False, True)
        """
        _require_number(value)
        return not _is_nan(value) and self._nearest(self._place(value)) > self.largest_code

    def decode(self, code: int) -> float:
        """The number that `code` stands for; a Python float holds it exactly. WorkbookError for no code of the format.

        >>> float_format("fp4-e2m1").decode(15), float_format("e8m0").decode(0) == 2.0**-127
        (-6.0, True)
        """
        require_whole("code", code, 0, self.codes - 1)
        negative, magnitude = divmod(code, 2 ** (self.exponent_bits + self.mantissa_bits))
        sign = -1.0 if negative else 1.0
        if magnitude > self.largest_code:
            infinite = self.has_infinity and magnitude == self.largest_code + 1
            return sign * math.inf if infinite else math.nan
        exponent, mantissa = divmod(magnitude, 2**self.mantissa_bits)
        if exponent or not self.sign_bits:
            mantissa += 2**self.mantissa_bits  # the leading one, which is not stored
            exponent -= self.sign_bits
        return sign * math.ldexp(mantissa, self.least_exponent + exponent - self.mantissa_bits)

    def bits_of(self, code: int) -> tuple[str, str, str]:
        """The bits of `code`: sign, exponent, mantissa, each the highest first; "" where there are none.

        >>> float_format("bf16").bits_of(float_format("bf16").encode(-2.5))
        ('1', '10000000', '0100000')
        """
        require_whole("code", code, 0, self.codes - 1)
        bits, ends = f"{code:0{self.bits}b}", self.sign_bits + self.exponent_bits
        return bits[: self.sign_bits], bits[self.sign_bits : ends], bits[ends:]

    def neighbours(self, value: float | Fraction) -> tuple[float, float]:
        """The nearest numbers of the format strictly below and strictly above `value`.

        An infinity where there is none on that side, be it a code of the format or not; two NaN for NaN.

        >>> float_format("fp8-e4m3").neighbours(17)
        (16.0, 18.0)
        >>> float_format("fp8-e4m3").neighbours(448)
        (416.0, inf)
        """
        _require_number(value)
        if _is_nan(value):
            return math.nan, math.nan
        if not self.sign_bits:
            value = max(value, 0)  # no scale is below zero, and none is zero
        place = self._place(value) * (-1 if value < 0 else 1)
        return self._number(math.ceil(place) - 1), self._number(math.floor(place) + 1)

    def _place(self, value: float | Fraction) -> Fraction:
        """Where |value| stands among the codes: halfway between two of them is halfway between their numbers.

        At most one past the largest. What is below the smallest scale stands before code 0, and so does 0.
        """
        if value in (math.inf, -math.inf):
            return Fraction(self.largest_code + 1)
        size = abs(Fraction(value))
        exponent = max(exponent_of(size), self.least_exponent) if size else self.least_exponent
        steps = size / Fraction(2) ** (exponent - self.mantissa_bits)
        codes_below = (exponent - self.least_exponent - 1 + self.sign_bits) * 2**self.mantissa_bits
        return min(steps + codes_below, Fraction(self.largest_code + 1))

    def _number(self, place: int) -> float:
        """The number with the code `place`, below zero that of its negative; an infinity where there is none."""
        if -self.sign_bits * self.largest_code <= place <= self.largest_code:
            return math.copysign(self.decode(abs(place)), place)
        return math.copysign(math.inf, place)

    def _nearest(self, place: Fraction) -> int:
        """A half goes to the even mantissa: to the even code, but for scales, whose mantissa is an odd 1 always."""
        return round(place) if self.mantissa_bits else max(0, math.floor(place + Fraction(1, 2)))

    def _beyond(self, overflow: str) -> int:
        """The positive code of what is too large."""
        if overflow == "saturate" or self.nan_code is None:
            return self.largest_code
        return self.largest_code + 1  # infinity comes first, and NaN where there is none

    def _sign(self, value: float | Fraction) -> int:
        negative = value < 0 or (isinstance(value, float) and math.copysign(1, value) < 0)  # −0.0 is not below 0
        return 2 ** (self.bits - 1) if self.sign_bits and negative else 0


def float_format(name: str) -> FloatFormat:
    """The format called `name` (any case); WorkbookError with the nearest match otherwise."""
    found = FLOAT_FORMATS.get(name.lower()) if isinstance(name, str) else None
    if found is None:
        raise unknown_name("float format", name, FLOAT_FORMATS)
    return found


def exponent_of(size: Fraction) -> int:
    """The exponent of the power of two at or below `size`, which is above 0; math.log2 would round.

    >>> exponent_of(Fraction(1, 10)), exponent_of(Fraction(8))
    (-4, 3)
    """
    guess = size.numerator.bit_length() - size.denominator.bit_length()
    return guess if size >= Fraction(2) ** guess else guess - 1


def _is_nan(value: float | Fraction) -> bool:
    """math.isnan fails where `value` is larger than any Python float."""
    return isinstance(value, float) and math.isnan(value)


def _require_number(value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float, Fraction)):
        raise WorkbookError(f"value is {value!r}", _NUMBER, "pass a number, as in encode(0.1)")


_MX = "OCP Microscaling Formats (MX) Specification 1.0 (2023)"


def _float(name: str, exponent_bits: int, mantissa_bits: int, specials: str, source: str = "") -> FloatFormat:
    bias = 2 ** (exponent_bits - 1) - 1
    return FloatFormat(name, exponent_bits, mantissa_bits, bias, specials, source or number_format(name).source)


FLOAT_FORMATS: dict[str, FloatFormat] = {
    float_format.name: float_format
    for float_format in (
        _float("fp32", 8, 23, "ieee"),
        _float("tf32", 8, 10, "ieee"),
        _float("bf16", 8, 7, "ieee"),
        _float("fp16", 5, 10, "ieee"),
        _float("fp8-e4m3", 4, 3, "nan"),
        _float("fp8-e5m2", 5, 2, "ieee"),
        _float("fp4-e2m1", 2, 1, "none", _MX),
        _float("e8m0", 8, 0, "scale", _MX),
    )
}
