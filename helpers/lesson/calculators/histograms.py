"""Whole tensors by powers of two: how many of their values lie in each; those of the small model are stored."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ...catalog.errors import WorkbookError, require_name, require_whole
from ...catalog.floats import FloatFormat

ZERO = -9999  # no float has this power
_STORED = Path(__file__).parent.parent / "data" / "histograms.json"
_DO = 'pass Histogram.of("my gradients", values)'


@dataclass(frozen=True)
class Histogram:
    """`counts[e]` values have a size from 2**e up to 2**(e+1), and `zeros` are 0.

    >>> Histogram.of("three", [0.75, -0.5, 0.0]).counts
    {-1: 2}
    """

    name: str
    counts: Mapping[int, int]
    zeros: int = 0
    source: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.counts, Mapping):
            raise WorkbookError(f"counts is {self.counts!r}", "a mapping from powers of two to counts", _DO)
        for exponent, count in self.counts.items():
            require_whole("a power of two", exponent, -1100, 1100)
            require_whole(f"the count of 2**{exponent}", count, 0)
        require_whole("zeros", self.zeros, 0)
        if not any(self.counts.values()):
            raise WorkbookError(f"{self.name} has no value but 0", "a tensor with other values", _DO)

    @classmethod
    def of(cls, name: str, values: Any, source: str = "") -> Histogram:
        """Of numbers, or of a tensor or an array, whose shape does not matter. WorkbookError for inf, NaN and text."""
        numbers: Iterable[Any] = values.flatten().tolist() if hasattr(values, "flatten") else values
        counts: Counter[int] = Counter()
        try:
            for number in numbers:
                counts[_power(number) if number else ZERO] += 1
        except (TypeError, ValueError, OverflowError):
            raise WorkbookError(f"{name} holds what is no finite number", "finite numbers", _DO) from None
        zeros = counts.pop(ZERO, 0)
        return cls(name, dict(sorted(counts.items())), zeros, source)

    @property
    def nonzero(self) -> int:
        return sum(self.counts.values())

    @property
    def span(self) -> tuple[int, int]:
        """The powers of two of the smallest value and of the largest."""
        there = [exponent for exponent, count in self.counts.items() if count]
        return min(there), max(there)

    def share(self, low: float, high: float) -> float:
        """Of the values that are not 0, those whose power of two is from `low` to `high`."""
        return sum(count for exponent, count in self.counts.items() if low <= exponent <= high) / self.nonzero

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Reach:
    """The powers of two that a format tells apart: below `least` all becomes 0, above `most` all is too large.

    Up to `normal` numbers lose bits. Of those in `most` itself a part can be too large: 449 is in 2**8, as 448 is.
    """

    least: int
    normal: int
    most: int

    @classmethod
    def of(cls, fmt: FloatFormat) -> Reach:
        """
        >>> from helpers.catalog import float_format
        >>> Reach.of(float_format("fp16"))
        Reach(least=-25, normal=-14, most=15)
        """
        ends = (fmt.smallest_subnormal / 2, fmt.smallest_normal, fmt.largest)
        return cls(*map(_power, ends))

    def fate(self, exponent: int) -> str:
        """What becomes of values in 2**exponent."""
        if exponent < self.least:
            return "becomes 0"
        return "subnormal" if exponent < self.normal else "too large" if exponent > self.most else "normal"


@dataclass(frozen=True)
class Fates:
    """Shares of a tensor's values other than 0; `at_the_edge` are in the power of two of the largest number."""

    zero: float
    subnormal: float
    too_large: float
    at_the_edge: float

    @classmethod
    def of(cls, histogram: Histogram, reach: Reach, scale: int) -> Fates:
        """Of the tensor times 2**scale."""
        least, normal, most = (end - scale for end in (reach.least, reach.normal, reach.most))
        share = histogram.share
        edges = (-math.inf, least - 1), (least, normal - 1), (most + 1, math.inf), (most, most)
        return cls(*(share(*edge) for edge in edges))


@cache
def stored_histograms() -> dict[str, Histogram]:
    """By name: tensors of the small model, each with its source."""
    entries = json.loads(_STORED.read_text(encoding="utf-8"))
    source = entries["source"]
    return {
        name: Histogram(
            name, dict(enumerate(entry["counts"], entry["first"])), entry["zeros"], f"{entry['what']}; {source}"
        )
        for name, entry in entries["tensors"].items()
    }


def histogram_of(tensor: str | Histogram) -> Histogram:
    """The one that is stored under a name, or the one that is given."""
    if isinstance(tensor, Histogram):
        return tensor
    return stored_histograms()[require_name("tensor", tensor, stored_histograms())]


def _power(number: float) -> int:
    """Of two, at or below the size of `number`."""
    if not math.isfinite(number):
        raise ValueError(number)
    return math.frexp(number)[1] - 1
