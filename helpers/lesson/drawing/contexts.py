"""KV bytes against context on log axes: a window bends its line, a smaller format shifts it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil, floor, log2

from ..units import short_bytes
from .axes import Axis, Plane
from .marks import CARD, FAINT, INK, LINES, Dot, Line, Mark, TextMark
from .pictures import Card
from .words import of_curve, over

HEIGHT, LEFT, RIGHT, TOP, FOOT = 276, 84, 568, 58, 232
NAME_HEIGHT = 14
COLOURS = (FAINT, LINES[0], LINES[1])


@dataclass(frozen=True)
class Curve:
    """(tokens, bytes) in order, under one name."""

    name: str
    points: tuple[tuple[int, int], ...]


def contexts(title: str, curves: Sequence[Curve], here: tuple[int, int], room_bytes: int | None = None) -> Card:
    """One line per curve with its name at its end, a ring at `here`, dashed where `room_bytes` is full."""
    tokens = [at for curve in curves for at, _ in curve.points]
    sizes = [size for curve in curves for _, size in curve.points]
    up = Axis(min(sizes) / 2**0.5, max(sizes) * 2**0.5, FOOT, TOP, log=True)
    plane = Plane(Axis(min(tokens), max(tokens), LEFT, RIGHT, log=True), up)
    colours = (*COLOURS[: len(curves) - 1], COLOURS[-1])  # the last curve, which was chosen, always has the same one
    coloured = list(zip(curves, colours, strict=True))
    body: list[Mark] = [*_axes(plane), *_room(plane, room_bytes)]
    for curve, colour in coloured:
        line = tuple(plane.at(*point) for point in curve.points)
        body.append(Line(line, colour, 2.5, kind="curve", tooltip=curve.name))
    ends = [(plane.y.at(curve.points[-1][1]), curve.name, colour) for curve, colour in coloured]
    body += [*names_at_ends(ends), Dot(*plane.at(*here), CARD, INK, kind="here")]
    return Card(title, HEIGHT, tuple(body), _words(curves, here, room_bytes))


def _words(curves: Sequence[Curve], here: tuple[int, int], room_bytes: int | None) -> str:
    lines = []
    for curve in curves:
        tokens, sizes = zip(*curve.points, strict=True)
        lines.append(of_curve(curve.name, tokens, sizes, "tokens", short_bytes))
    across = over(sorted(at for curve in curves for at, _ in curve.points), "tokens of context")
    room = f" Beside the weights there is room for {short_bytes(room_bytes)}." if room_bytes else ""
    ring = f"A ring at {here[0]:,} tokens, {short_bytes(here[1])}."
    return f"{across}; up, bytes of KV cache: {'; '.join(lines)}. {ring}{room}"


def _axes(plane: Plane) -> Iterator[Mark]:
    across = [2**power for power in range(ceil(log2(plane.x.low)), floor(log2(plane.x.high)) + 1, 2)]
    step = 5 if plane.y.high / plane.y.low > 2**10 else 2
    up = [2**power for power in range(0, 61, step) if plane.y.low <= 2**power <= plane.y.high]
    x_ticks = {tokens: f"{tokens // 1024:,} k" if tokens >= 1024 else f"{tokens}" for tokens in across}
    y_ticks = {size: short_bytes(size) for size in up}
    yield from plane.frame(x_ticks, y_ticks, "tokens of context; both axes by powers of two", "KV cache")


def _room(plane: Plane, room_bytes: int | None) -> Iterator[Mark]:
    if room_bytes is None or not plane.y.low <= room_bytes <= plane.y.high:
        return
    yield plane.level(room_bytes, kind="room")
    words = f"room beside the weights: {short_bytes(room_bytes)}"
    yield TextMark(LEFT + 6, plane.y.at(room_bytes) - 5, words, 11, halo=True)


def names_at_ends(ends: Sequence[tuple[float, str, str]], foot: float = FOOT) -> Iterator[Mark]:
    """(y, name, colour) of lines that end at RIGHT; the lower ones are pushed down where they would overlap, all of
    them up where the axis ends, at `foot`."""
    spots: list[float] = []
    for y, _, _ in sorted(ends):
        spots.append(max(y, spots[-1] + NAME_HEIGHT) if spots else y)
    lift = max(0.0, spots[-1] - foot)
    for (_, name, colour), y in zip(sorted(ends), spots, strict=True):
        yield TextMark(RIGHT + 8, y - lift + 4, name, 12, colour, bold=True)
