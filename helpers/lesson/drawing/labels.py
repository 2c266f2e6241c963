"""Names beside points: none over another, over a mark or over a line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise, product
from math import atan2, cos, degrees, dist, hypot, sin
from typing import NamedTuple

from .marks import INK, Anchor, At, Line, Mark, TextMark, text_width

# Where a name is tried, in px right of and above its mark: beside it first, then farther and farther below or above,
# at the end of a thin line.
NEAR = ((12, 0), (-12, 0), (11, -15), (-11, 15), (11, 15), (-11, -15))
_CORNERS = ((1, -1), (-1, 1), (-1, -1), (1, 1))
_AROUND = product(range(24, 160, 7), (16, 36, 70, 110), _CORNERS)
FAR = tuple(sorted(((x * side, y * up) for y, x, (side, up) in _AROUND), key=lambda spot: hypot(*spot)))
MARK, STROKE = 8, 2  # px that a name keeps from a mark's middle and from a line


class Bounds(NamedTuple):
    left: float
    top: float
    right: float
    bottom: float


class Labels:
    """Places text within `room`; what it must keep off is told first."""

    def __init__(self, room: Bounds) -> None:
        self.room = room
        self._marks: list[At] = []
        self._boxes: list[Bounds] = []  # marks, and text that is placed
        self._text: list[Bounds] = []  # of these boxes the text: no thin line may cross it
        self._lines: list[tuple[At, At]] = []

    def avoid_point(self, x: float, y: float) -> None:
        """Keeps text off the mark at (x, y)."""
        self._marks.append((x, y))
        self._boxes.append(Bounds(x - MARK, y - MARK, x + MARK, y + MARK))

    def avoid_line(self, points: Sequence[At]) -> None:
        """Keeps text off the straight pieces between points."""
        self._lines += pairwise(points)

    def avoid_box(self, box: Bounds) -> None:
        """Keeps text and thin lines off other text."""
        self._boxes.append(box)
        self._text.append(box)

    def along(self, start: At, end: At, text: str, colour: str, size: float = 13) -> TextMark:
        """`text` above a line: turned with a slope, right of its middle; at the far end of a level one."""
        (x0, y0), (x1, y1) = start, end
        angle, level = atan2(y1 - y0, x1 - x0), abs(y1 - y0) < 1
        share = 1 if level else 0.62  # what a machine runs lies mostly at the low end of its slope
        x, y = x0 + share * (x1 - x0) + 7 * sin(angle), y0 + share * (y1 - y0) - 7 * cos(angle)
        width = text_width(text, size, bold=True)
        first, last = (-width, 0.0) if level else (-width / 2, width / 2)
        for step in range(9):  # a turned box is avoided as squares along it
            along = first + (last - first) * step / 8
            self.avoid_box(_text_box(x + along * cos(angle), y + along * sin(angle), size, size, 0.5))
        return TextMark(x, y, text, size, colour, "end" if level else "middle", bold=True, angle=degrees(angle))

    def place(
        self, at: At, text: str, colour: str = INK, size: float = 12.5, spots: Sequence[tuple[int, int]] = (*NEAR, *FAR)
    ) -> Iterator[Mark]:
        """`text` at the first of `spots` near `at` where it covers nothing, or where it covers least."""
        width = text_width(text, size)
        best, least = spots[0], 1e9
        for spot in spots:
            cost = self._cost(at, spot, self._box(at, spot, width, size), least)
            if cost < least:
                best, least = spot, cost
            if not cost:
                break
        box = self._box(at, best, width, size)
        self.avoid_box(box)
        if best in FAR:
            leader = (at, _near_end(box, best))
            self._lines.append(leader)
            yield Line(leader, colour, 0.8)
        anchor: Anchor = "start" if best[0] > 0 else "end"
        yield TextMark(at[0] + best[0], at[1] - best[1] + 0.35 * size, text, size, colour, anchor)

    def _box(self, at: At, spot: tuple[int, int], width: float, size: float) -> Bounds:
        x, y = at[0] + spot[0], at[1] - spot[1] + 0.35 * size
        return _text_box(x, y, width, size, 0 if spot[0] > 0 else 1)

    def _cost(self, at: At, spot: tuple[int, int], box: Bounds, most: float) -> float:
        """How bad a place is; 0 covers nothing and misleads nobody. What is worse than `most` is not told apart."""
        left, top, right, bottom = box
        room = self.room
        cost = 100.0 * (left < room.left or right > room.right or top < room.top or bottom > room.bottom)
        cost += sum([a < right and left < c and b < bottom and top < d for a, b, c, d in self._boxes])
        cost += 20 * sum([a < right and left < c and b < bottom and top < d for a, b, c, d in self._text])
        if cost >= most:
            return cost
        wide = Bounds(left - STROKE, top - STROKE, right + STROKE, bottom + STROKE)
        cost += sum([_crosses(wide, start, end) for start, end in self._lines])
        end = _near_end(box, spot)
        if spot in FAR:
            return cost + 20 * sum([_crosses(text, at, end) for text in self._text])
        return cost + sum([dist(mark, end) < dist(at, end) - 0.5 for mark in self._marks])


def _text_box(x: float, y: float, width: float, size: float, anchor: float) -> Bounds:
    """What a line of text takes that begins (`anchor` 0), is centred (0.5) or ends (1) at `x` on the base line `y`."""
    left = x - anchor * width
    return Bounds(left - 1.5, y - 0.85 * size, left + width + 1.5, y + 0.3 * size)


def _near_end(box: Bounds, spot: tuple[int, int]) -> At:
    """Where a thin line from the mark meets the text."""
    return box.left if spot[0] > 0 else box.right, (box.top + box.bottom) / 2


def _crosses(box: Bounds, start: At, end: At) -> bool:
    """Whether the straight piece from `start` to `end` runs through the box.

    >>> _crosses(Bounds(0, 0, 10, 10), (-5, 5), (15, 6)), _crosses(Bounds(0, 0, 10, 10), (-5, 0), (5, 20))
    (True, False)
    """
    (x0, y0), (x1, y1) = start, end
    first, last = 0.0, 1.0
    for begin, step, low, high in ((x0, x1 - x0, box.left, box.right), (y0, y1 - y0, box.top, box.bottom)):
        if not step:
            if not low <= begin <= high:
                return False
            continue
        enter, leave = (low - begin) / step, (high - begin) / step
        if step < 0:
            enter, leave = leave, enter
        first, last = (enter if enter > first else first), (leave if leave < last else last)
    return first < last
