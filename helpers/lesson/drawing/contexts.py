"""KV bytes against context on log axes, as SVG: a window bends its line, a smaller format shifts it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from math import log2

from .pictures import CARD, FAINT, INK, LINES, Picture
from .segments_svg import short

WIDTH, HEIGHT = 760, 270
LEFT, RIGHT, TOP, BOTTOM = 84, 580, 44, 226
NAME_HEIGHT = 14
COLOURS = (FAINT, LINES[0], LINES[1])


@dataclass(frozen=True)
class Curve:
    """(tokens, bytes) in order, under one name."""

    name: str
    points: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Scale:
    """Powers of two on both axes."""

    x: tuple[float, float]
    y: tuple[float, float]

    @classmethod
    def of(cls, curves: Sequence[Curve]) -> Scale:
        tokens = [log2(at) for curve in curves for at, _ in curve.points]
        sizes = [log2(size) for curve in curves for _, size in curve.points]
        return cls((min(tokens), max(tokens)), (min(sizes) - 0.5, max(sizes) + 0.5))

    def at(self, tokens: float, size_bytes: float) -> tuple[float, float]:
        across = (log2(tokens) - self.x[0]) / ((self.x[1] - self.x[0]) or 1)
        up = (log2(size_bytes) - self.y[0]) / (self.y[1] - self.y[0])
        return LEFT + across * (RIGHT - LEFT), BOTTOM - up * (BOTTOM - TOP)


def contexts_svg(title: str, curves: Sequence[Curve], here: tuple[int, int], room_bytes: int | None = None) -> Picture:
    """One line per curve with its name at its end, a ring at `here`, dashed where `room_bytes` is full."""
    scale = Scale.of(curves)
    body = [*_axes(scale), *_room(scale, room_bytes), *_lines(scale, curves), *_names(scale, curves)]
    x, y = scale.at(*here)
    body.append(
        f'<circle class="here" cx="{x:.1f}" cy="{y:.1f}" r="5.5" fill="{CARD}" stroke="{INK}" stroke-width="2.5"/>'
    )
    head = _text(16, 24, title, INK, 15, "start", ' font-weight="600"')
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
        f'style="max-width:100%" role="img" aria-label="{escape(title)}" font-family="sans-serif">'
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="6" fill="{CARD}"/>{head}{"".join(body)}</svg>'
    )
    return Picture(title, svg=svg)


def _axes(scale: Scale) -> Iterator[str]:
    yield _line(LEFT, BOTTOM, RIGHT, BOTTOM, FAINT)
    yield _line(LEFT, TOP, LEFT, BOTTOM, FAINT)
    for power in range(int(scale.x[0]), int(scale.x[1]) + 1, 2):
        x, _ = scale.at(2**power, 2 ** scale.y[0])
        tokens = f"{2**power // 1024:,} k" if power >= 10 else f"{2**power}"
        yield _line(x, BOTTOM, x, BOTTOM + 4, FAINT)
        yield _text(x, BOTTOM + 17, tokens, FAINT, 11, "middle")
    for power in range(0, 61, 5 if scale.y[1] - scale.y[0] > 10 else 2):
        if scale.y[0] <= power <= scale.y[1]:
            _, y = scale.at(2 ** scale.x[0], 2**power)
            yield _line(LEFT - 4, y, LEFT, y, FAINT)
            yield _text(LEFT - 8, y + 4, short(2**power), FAINT, 11, "end")
    words = "tokens of context; KV cache on the left, both by powers of two"
    yield _text((LEFT + RIGHT) / 2, BOTTOM + 34, words, INK, 12, "middle")


def _room(scale: Scale, room_bytes: int | None) -> Iterator[str]:
    if room_bytes is None or room_bytes <= 0 or not scale.y[0] <= log2(room_bytes) <= scale.y[1]:
        return
    _, y = scale.at(2 ** scale.x[0], room_bytes)
    yield _line(LEFT, y, RIGHT, y, INK, ' class="room" stroke-dasharray="5 3"')
    yield _text(LEFT + 6, y - 5, f"room beside the weights: {short(room_bytes)}", INK, 11, "start")


def _lines(scale: Scale, curves: Sequence[Curve]) -> Iterator[str]:
    for curve, colour in zip(curves, _colours(curves), strict=True):
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (scale.at(*point) for point in curve.points))
        yield (
            f'<polyline class="curve" points="{path}" fill="none" stroke="{colour}" stroke-width="2.5">'
            f"<title>{escape(curve.name)}</title></polyline>"
        )


def _names(scale: Scale, curves: Sequence[Curve]) -> Iterator[str]:
    """At the lines' ends, the lower ones pushed down where they would overlap, all of them up where the axis ends."""
    ends = sorted(
        (scale.at(*curve.points[-1])[1], curve.name, colour)
        for curve, colour in zip(curves, _colours(curves), strict=True)
    )
    spots: list[float] = []
    for y, _, _ in ends:
        spots.append(max(y, spots[-1] + NAME_HEIGHT) if spots else y)
    lift = max(0.0, spots[-1] - BOTTOM)
    for (_, name, colour), y in zip(ends, spots, strict=True):
        yield _text(RIGHT + 8, y - lift + 4, name, colour, 12, "start", ' font-weight="600"')


def _colours(curves: Sequence[Curve]) -> tuple[str, ...]:
    """The last curve, which was chosen, is always of the same colour."""
    return (*COLOURS[: len(curves) - 1], COLOURS[-1])


def _line(x0: float, y0: float, x1: float, y1: float, colour: str, more: str = "") -> str:
    return f'<line x1="{x0:.1f}" y1="{y0:.1f}" x2="{x1:.1f}" y2="{y1:.1f}" stroke="{colour}"{more}/>'


def _text(x: float, y: float, text: str, colour: str, size: float, anchor: str, more: str = "") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{colour}" text-anchor="{anchor}"{more}>'
        f"{escape(text)}</text>"
    )
