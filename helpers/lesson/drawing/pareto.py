"""Bargains: named points where less of both is better, and the line through those that no other beats."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ...catalog import pareto
from .axes import Axis, Plane, Ticks, log_ticks, round_ticks
from .labels import Bounds, Labels
from .marks import CARD, FAINT, INK, LINES, At, Dot, Line, Mark, TextMark, text_width
from .pictures import WIDTH, Card
from .words import listed

LEFT, RIGHT, TOP, FOOT = 74, 736, 58, 44
MB = 1e6


@dataclass(frozen=True)
class ParetoPoint:
    """A choice and what it costs of two things. `important` ones get the better places for their names."""

    name: str
    x: float
    y: float
    colour: str
    filled: bool = True
    important: bool = False
    tooltip: str = ""


@dataclass(frozen=True)
class Measure:
    """What an axis counts, how its ticks are written, and its scale: linear, from zero up, or log."""

    words: str
    written: Callable[[float], str] = "{:g}".format
    from_zero: bool = False
    log: bool = False

    def axis(self, values: Sequence[float], start: float, end: float) -> Axis:
        low, high = min(values), max(values)
        if self.log:
            return Axis(low / 1.2, high * 1.5, start, end, log=True)
        if self.from_zero:
            return Axis(-0.02 * high, 1.15 * high or 1, start, end)
        margin = 0.14 * (high - low) or 0.1 * abs(high) or 1
        return Axis(low - margin, high + margin, start, end)

    def ticks(self, axis: Axis) -> Ticks:
        values = log_ticks(axis.low, axis.high) if self.log else round_ticks(axis.low, axis.high)
        return {value: self.written(value) for value in values}


def unbeaten(points: Mapping[str, tuple[float, float]]) -> list[str]:
    """The names that no other beats by being as low in both numbers and lower in one; by the first number.

    >>> unbeaten({"a": (1, 9.0), "b": (2, 5.0), "c": (3, 6.0)})
    ['a', 'b']
    """
    return pareto.unbeaten(points, points.__getitem__, ties=True)


def front(title: str, points: Mapping[str, tuple[float, float]], y_label: str, best: Sequence[str] = ()) -> Card:
    """Quality against bytes: a named dot for each of `points` (bytes, score; less is better), with `best` joined.

    With `best` those are blue and full, the others grey and hollow; without, each has its own colour.
    """
    joined = sorted((points[name][0] / MB, points[name][1]) for name in best)
    in_mb = {name: (size / MB, score) for name, (size, score) in points.items()}
    return bargain(title, _dots_of(in_mb, best), Measure("MB of weights", log=True), Measure(y_label), joined)


def trade(
    title: str,
    points: Mapping[str, tuple[float, float]],
    curve: Sequence[At],
    x_label: str,
    y_label: str,
    best: Sequence[str] = (),
) -> Card:
    """Named dots (x, y), both better when lower, over the curve of the best that can be had.

    With `best` those are blue and full, the others grey and hollow, over a thin line; else each has its own colour.
    """
    width = 1.5 if best else 5
    return bargain(title, _dots_of(points, best), Measure(x_label), Measure(y_label), curve, width=width)


def bargain(
    title: str,
    points: Sequence[ParetoPoint],
    x: Measure,
    y: Measure,
    curve: Sequence[At] = (),
    steps: bool = False,
    limit: tuple[float, str] | None = None,
    width: float = 1.5,
    height: float = 360,
) -> Card:
    """The points with their names over `curve`, which goes straight from corner to corner or in `steps`.

    `limit` is a dashed line at some y with its text, drawn where it is within reach.
    """
    corners = [*curve, *((point.x, point.y) for point in points)]
    plane = Plane(x.axis([a for a, _ in corners], LEFT, RIGHT), y.axis([b for _, b in corners], height - FOOT, TOP))
    labels = Labels(Bounds(LEFT + 2, TOP - 14, WIDTH, plane.y.start))
    body = list(plane.frame(x.ticks(plane.x), y.ticks(plane.y), x.words, y.words))
    if len(curve) > 1:
        line = tuple(plane.at(*corner) for corner in (_stepped(curve) if steps else curve))
        body.append(Line(line, LINES[0] if steps else "#bbbbbb", width, kind="front"))
        labels.avoid_line(line)
    if limit and plane.y.low <= limit[0] <= plane.y.high:
        body += _limit(plane.y.at(limit[0]), limit[1], labels)
    body += _dots(plane, points, labels)
    for point in sorted(points, key=lambda point: not point.important):
        body += labels.place(plane.at(point.x, point.y), point.name, point.colour)
    return Card(title, height, tuple(body), _words(points, x, y, curve, limit))


def _words(
    points: Sequence[ParetoPoint], x: Measure, y: Measure, curve: Sequence[At], limit: tuple[float, str] | None
) -> str:
    """Each point by its two numbers, and where the line of the best begins and ends."""
    named = (f"{point.name} at {point.x:,.4g} and {point.y:,.4g}" for point in sorted(points, key=lambda one: one.x))
    ends = [f"({at:,.4g}, {height:,.4g})" for at, height in (curve[0], curve[-1])] if len(curve) > 1 else []
    front = f" A line through the best choices runs from {' to '.join(ends)}." if ends else ""
    edge = f" A dashed line at {limit[0]:,.4g}: {limit[1]}." if limit else ""
    return f"Points by {x.words} and {y.words}, less of both is better: {listed(named, 24)}.{front}{edge}"


def _dots_of(points: Mapping[str, tuple[float, float]], best: Sequence[str]) -> list[ParetoPoint]:
    """The best in blue and full, the others in grey and hollow; where none is best, each in a colour of its own."""
    if best:
        inks = {True: LINES[0], False: FAINT}
        return [ParetoPoint(name, *at, inks[name in best], name in best, name in best) for name, at in points.items()]
    return [ParetoPoint(name, *at, LINES[number % len(LINES)]) for number, (name, at) in enumerate(points.items())]


def _stepped(curve: Sequence[At]) -> Iterator[At]:
    """From one corner to the next: right at the same height, then down."""
    yield curve[0]
    for (_, y), (to_x, to_y) in pairwise(curve):
        yield from ((to_x, y), (to_x, to_y))


def _limit(y: float, text: str, labels: Labels) -> Iterator[Mark]:
    yield Line(((LEFT, y), (RIGHT, y)), INK, 1, "5 3", kind="limit")
    yield TextMark(RIGHT, y - 5, text, 11, INK, "end")
    labels.avoid_line(((LEFT, y), (RIGHT, y)))
    labels.avoid_box(Bounds(RIGHT - text_width(text, 11), y - 16, RIGHT, y))


def _dots(plane: Plane, points: Sequence[ParetoPoint], labels: Labels) -> Iterator[Mark]:
    """The filled ones last, over the others."""
    for point in sorted(points, key=lambda point: point.filled):
        at = plane.at(point.x, point.y)
        fill, edge = (point.colour, point.colour) if point.filled else (CARD, point.colour)
        yield Dot(*at, fill, edge, 5, kind="point", tooltip=point.tooltip or point.name)
        labels.avoid_point(*at)
