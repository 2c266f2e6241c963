"""Times against length on log axes, and the lengths at which lines cross: from there on another takes longer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, log2, log10

from ..units import si
from .axes import Axis, Plane
from .contexts import LEFT, RIGHT, names_at_ends
from .labels import Bounds, Labels
from .marks import CARD, FAINT, INK, LINES, Dot, Line, Mark, TextMark
from .pictures import Card
from .words import of_curve, over

HEIGHT, TOP, FOOT = 330, 58, 286


@dataclass(frozen=True)
class TimeCurve:
    """(tokens, seconds) in order, under one name."""

    name: str
    points: tuple[tuple[int, float], ...]


def crossings(title: str, times: Sequence[TimeCurve], crossed: Mapping[str, tuple[int, float]], here: int) -> Card:
    """One line per name, the first of them dashed: what the others are compared with.

    `crossed` is where a line meets the first, a ring with its text; `here` is a length that is marked across.
    """
    tokens = [at for line in times for at, _ in line.points]
    seconds = [took for line in times for _, took in line.points]
    up = Axis(10 ** floor(log10(min(seconds))), 10 ** ceil(log10(max(seconds))), FOOT, TOP, log=True)
    plane = Plane(Axis(min(tokens), max(tokens), LEFT, RIGHT, log=True), up)
    labels = Labels(Bounds(LEFT, TOP - 12, RIGHT, FOOT))
    coloured = list(zip(times, (FAINT, *LINES), strict=False))
    body: list[Mark] = [*_axes(plane), *_here(plane, here)]
    labels.avoid_line((plane.at(here, plane.y.low), plane.at(here, plane.y.high)))
    for line, colour in coloured:
        points = tuple(plane.at(*point) for point in line.points)
        body.append(Line(points, colour, 2.5, "" if colour != FAINT else "6 4", kind="times", tooltip=line.name))
        labels.avoid_line(points)
    ends = [(plane.y.at(line.points[-1][1]), line.name, colour) for line, colour in coloured]
    body += names_at_ends(ends, FOOT)
    for at in crossed.values():
        body.append(Dot(*plane.at(*at), CARD, INK, kind="crossing"))
        labels.avoid_point(*plane.at(*at))
    for text, at in crossed.items():
        body += labels.place(plane.at(*at), text, INK)
    return Card(title, HEIGHT, tuple(body), _words(times, crossed, here))


def _axes(plane: Plane) -> Iterator[Mark]:
    across = [2**power for power in range(ceil(log2(plane.x.low)), floor(log2(plane.x.high)) + 1, 2)]
    x_ticks = {tokens: f"{tokens // 1024:,} k" if tokens >= 1024 else f"{tokens}" for tokens in across}
    decades = range(round(log10(plane.y.low)), round(log10(plane.y.high)) + 1)
    y_ticks = {10.0**power: si(10.0**power, "s", whole=True) for power in decades[:: -ceil(len(decades) / 8)]}
    yield from plane.frame(x_ticks, y_ticks, "tokens (log scale)", "least time of one layer")


def _here(plane: Plane, tokens: int) -> Iterator[Mark]:
    x = plane.x.at(tokens)
    yield Line(((x, plane.y.start), (x, plane.y.end)), FAINT, 1, "2 3", kind="here")
    yield TextMark(x, plane.y.end - 6, f"{tokens:,} tokens", 11, FAINT, "middle")


def _words(times: Sequence[TimeCurve], crossed: Mapping[str, tuple[int, float]], here: int) -> str:
    lines = []
    for line in times:
        tokens, seconds = zip(*line.points, strict=True)
        lines.append(of_curve(line.name, tokens, seconds, "tokens", _seconds))
    across = over(sorted(at for line in times for at, _ in line.points), "tokens")
    rings = "".join(f" A ring at {at:,} tokens: {text}." for text, (at, _) in crossed.items())
    return f"{across}; up, the least seconds of one layer: {'; '.join(lines)}. {here:,} tokens are marked.{rings}"


def _seconds(value: float) -> str:
    return si(value, "s")
