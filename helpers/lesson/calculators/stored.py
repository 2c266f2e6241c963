"""What a format stores for a number: its bits, the numbers beside it, the error, and what happened in two words."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ...catalog.floats import FLOAT_FORMATS, FloatFormat
from ...memory.breakdown import TextEnum
from .blocks import BLOCKS

PLAIN = tuple(name for name in FLOAT_FORMATS if name != "e8m0")
FORMATS = (*PLAIN, *BLOCKS)


class StoredOutcome(TextEnum):
    """What becomes of a number in a format, in two words."""

    EXACT = "exact"
    ROUNDS = "rounds"
    TO_ZERO = "becomes 0"
    TO_LARGEST = "becomes largest"  # of NaN, where the format has no code for it
    SATURATES = "saturates"
    TO_INF = "overflows to inf"
    TO_NAN = "overflows to NaN"
    INFINITE = "infinite"
    NAN = "NaN"


@dataclass(frozen=True)
class StoredValue:
    """What a format makes of `given`: a code, and what codes are multiplied by, which is 1 without a block's scale."""

    name: str
    given: Fraction | float
    code: int
    fmt: FloatFormat
    factor: Fraction = Fraction(1)
    scale_bits: str = ""
    cut: bool = False  # too large, and stored as the largest

    @property
    def value(self) -> float:
        return self._scaled(self.fmt.decode(self.code))

    @property
    def bits(self) -> tuple[tuple[str, str], ...]:
        """(what it is, its bits) from the highest bit on; a block's scale before them."""
        named = zip(("sign", "exponent", "mantissa"), self.fmt.bits_of(self.code), strict=True)
        return tuple(pair for pair in (("scale", self.scale_bits), *named) if pair[1])

    @property
    def neighbours(self) -> tuple[float, float]:
        """The numbers that could be stored next below and above."""
        return self.numbers_around(self.given)

    def numbers_around(self, value: Fraction | float) -> tuple[float, float]:
        wanted = Fraction(value) / self.factor if math.isfinite(value) and self.factor else value
        below, above = self.fmt.neighbours(wanted)
        return self._scaled(below), self._scaled(above)

    @property
    def error(self) -> float | None:
        """Relative, with its sign; None of 0, and where what is stored or was given is no finite number."""
        if not math.isfinite(self.given) or not self.given or not math.isfinite(self.value):
            return None
        return float(Fraction(self.value) / Fraction(self.given) - 1)

    @property
    def is_subnormal(self) -> bool:
        size = abs(self.fmt.decode(self.code))
        return 0 < size < self.fmt.smallest_normal

    @property
    def outcome(self) -> StoredOutcome:
        if math.isnan(self.value):
            return StoredOutcome.NAN if math.isnan(self.given) else StoredOutcome.TO_NAN
        if math.isinf(self.value):
            return StoredOutcome.INFINITE if math.isinf(self.given) else StoredOutcome.TO_INF
        if math.isnan(self.given):
            return StoredOutcome.TO_LARGEST
        if self.cut:
            return StoredOutcome.SATURATES
        if self.given and not self.value:
            return StoredOutcome.TO_ZERO
        return StoredOutcome.EXACT if self.value == self.given else StoredOutcome.ROUNDS

    @property
    def happened(self) -> str:
        """The outcome, and whether bits are missing in front."""
        return f"{self.outcome}, subnormal" if self.is_subnormal and not self.cut else str(self.outcome)

    @property
    def figures(self) -> dict[str, Any]:
        """JSON has no infinity and no NaN: they are words."""
        below, above = map(json_number, self.neighbours)
        bits = dict(self.bits)
        return {
            "bits": bits,
            "stored": json_number(self.value),
            "below": below,
            "above": above,
            "happened": self.happened,
        } | {"relative_error": self.error}

    def _scaled(self, number: float) -> float:
        return float(Fraction(number) * self.factor) if math.isfinite(number) else number


def stored_as(
    name: str, given: Fraction | float, overflow: str = "ieee", largest: Fraction = Fraction(0)
) -> StoredValue:
    """`given` in the format `name`; in one with blocks, beside a value as large as `largest`, and cut to the format."""
    if name in BLOCKS:
        block = BLOCKS[name]
        scale_bits, factor = block.scale_of(largest)
        scaled = Fraction(given) / factor if factor else Fraction(0)
        code = block.element.encode(scaled, "saturate")
        return StoredValue(name, given, code, block.element, factor, scale_bits, block.element.overflows(scaled))
    fmt = FLOAT_FORMATS[name]
    code = fmt.encode(given, overflow)
    return StoredValue(name, given, code, fmt, cut=fmt.overflows(given) and math.isfinite(fmt.decode(code)))


def json_number(number: float) -> float | str:
    """As JSON has it, which knows no infinity and no NaN: those are words."""
    return number if math.isfinite(number) else str(number)
