"""Axes: from numbers to px, and their ticks as marks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil, floor, log10

from .marks import FAINT, INK, At, Line, Mark, TextMark

Ticks = Mapping[float, str]  # a number on the axis -> what is written at it
# Of a log axis, from coarse to fine; the last has three in every stretch whose end is 1.8 times its start.
DIGITS = ((1, 2, 3, 5), (1, 1.5, 2, 3, 4, 5, 7), (1, 1.2, 1.4, 1.6, 1.8, 2, 2.5, 3, 3.5, 4, 5, 6, 7, 8))
MOST_TICKS = 14


@dataclass(frozen=True)
class Axis:
    """Numbers from `low` to `high` between two places in px; with `log`, equal ratios are equally far apart."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def at(self, value: float) -> float:
        low, high = (log10(self.low), log10(self.high)) if self.log else (self.low, self.high)
        share = ((log10(value) if self.log else value) - low) / ((high - low) or 1)
        return self.start + share * (self.end - self.start)


@dataclass(frozen=True)
class Plane:
    """Two axes: `x` runs to the right, `y` upwards."""

    x: Axis
    y: Axis

    def at(self, x: float, y: float) -> At:
        return self.x.at(x), self.y.at(y)

    def level(self, y: float, width: float = 1, kind: str = "") -> Line:
        """A dashed line across at `y`."""
        return Line(((self.x.start, self.y.at(y)), (self.x.end, self.y.at(y))), INK, width, "5 3", kind)

    def frame(self, across: Ticks, up: Ticks, words: str, up_words: str = "") -> Iterator[Mark]:
        """Both axes with their ticks; `words` say what runs across, `up_words` what runs up."""
        left, top = self.x.start, self.y.end
        yield Line(((left, top), (left, self.y.start)), kind="axis")
        for value, text in up.items():
            y = self.y.at(value)
            yield Line(((left - 4, y), (left, y)), kind="axis")
            yield TextMark(left - 8, y + 4, text, 11, FAINT, "end")
        if up_words:
            yield TextMark(16, top - 9, up_words, 11, FAINT)
        yield from bottom(self.x, self.y.start, across, words)


def bottom(axis: Axis, y: float, ticks: Ticks, words: str) -> Iterator[Mark]:
    """An axis along the foot of a picture."""
    yield Line(((axis.start, y), (axis.end, y)), kind="axis")
    for value, text in ticks.items():
        x = axis.at(value)
        yield Line(((x, y), (x, y + 4)), kind="axis")
        yield TextMark(x, y + 17, text, 11, FAINT, "middle")
    yield TextMark((axis.start + axis.end) / 2, y + 35, words, 12, INK, "middle")


def round_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """At most `most` round numbers from `low` to `high`.

    >>> round_ticks(0, 27), round_ticks(3.2, 3.75)
    ([0.0, 5.0, 10.0, 15.0, 20.0, 25.0], [3.2, 3.3, 3.4, 3.5, 3.6, 3.7])
    """
    size = 10.0 ** floor(log10(high - low))
    steps = (factor * size for factor in (0.1, 0.2, 0.25, 0.5, 1, 2, 5))
    step = next(step for step in steps if floor(high / step) - ceil(low / step) < most)
    return [round(step * count, 10) + 0.0 for count in range(ceil(low / step), floor(high / step + 1e-9) + 1)]


def log_ticks(low: float, high: float, least: int = 3) -> list[float]:
    """1, 2, 3 and 5 times each power of ten, from `low` to `high`; finer steps where these are fewer than `least`, the
    powers alone where an axis has no room for all.

    >>> log_ticks(0.9, 10), log_ticks(0.9, 2.1), log_ticks(0.9, 1e4)
    ([1.0, 2.0, 3.0, 5.0, 10.0], [1.0, 1.5, 2.0], [1.0, 10.0, 100.0, 1000.0, 10000.0])
    """
    powers = range(floor(log10(low)), ceil(log10(high)) + 1)
    for digits in DIGITS:
        every = (round(digit * 10.0**power, 12) for power in powers for digit in digits)
        found = [value for value in every if low <= value <= high]
        if len(found) >= least:
            break
    return found if len(found) <= MOST_TICKS else [tick for tick in found if log10(tick).is_integer()]
