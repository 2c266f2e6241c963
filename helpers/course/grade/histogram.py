"""How many scores fall where, with the geometry of the picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, HEIGHT, LEFT, TOP, FOOT = 720, 190, 8, 24, 44
MOST_BARS = 21


@dataclass(frozen=True)
class Bar:
    """One bar: which scores, how many, and where it is drawn (px)."""

    label: str
    count: int
    x: float
    y: float
    width: float
    height: float

    @property
    def middle(self) -> float:
        return self.x + self.width / 2


@dataclass(frozen=True)
class Histogram:
    """The bars from score 0 to the lab's points, and the size of the picture (px)."""

    bars: tuple[Bar, ...]
    width: int = WIDTH
    height: int = HEIGHT
    base: int = HEIGHT - FOOT


def histogram(scores: Sequence[float], points: float) -> Histogram:
    """A bar for each whole score where they fit, else for equal steps of whole points; the last holds full marks.

    >>> [(bar.label, bar.count) for bar in histogram([0, 1, 1.5, 2], 2).bars]
    [('0', 1), ('1', 2), ('2', 1)]
    >>> [bar.label for bar in histogram([], 40).bars][:3]
    ['0–1', '2–3', '4–5']
    """
    step = max(1, math.ceil((points + 1) / MOST_BARS))
    last = math.floor(points / step)
    counts = [0] * (last + 1)
    for score in scores:
        counts[min(last, max(0, math.floor(score / step)))] += 1
    across, highest = (WIDTH - 2 * LEFT) / len(counts), max(1, *counts)
    return Histogram(
        tuple(
            _bar(_label(at, step, points), count, LEFT + at * across, across, count / highest)
            for at, count in enumerate(counts)
        )
    )


def _bar(label: str, count: int, x: float, across: float, share: float) -> Bar:
    tall = HEIGHT - TOP - FOOT
    return Bar(
        label, count, round(x + 2, 1), round(TOP + tall * (1 - share), 1), round(across - 4, 1), round(tall * share, 1)
    )


def _label(at: int, step: int, points: float) -> str:
    first, last = at * step, min(at * step + step - 1, math.ceil(points))
    return f"{first}" if first >= last else f"{first}–{last}"
