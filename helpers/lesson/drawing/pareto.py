"""Memory against FLOPs: policies as points, and the line through those that no other beats. SVG, and PNG."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from math import floor, log10

from ...memory.closed_form.breakdown import GIB, format_bytes
from .figures import as_picture, new_figure
from .labels import Labels
from .pictures import CARD, FAINT, INK, LINES, Picture

WIDTH, HEIGHT = 760, 300
LEFT, RIGHT, TOP, BOTTOM = 74, 736, 44, 256
ON, CHOSEN = LINES[0], LINES[1]
LETTER, LINE = 6.1, 14  # pixels of a name's letter, and from one line of text to the next
Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class Point:
    """One policy: FLOPs beyond those of a plain step, as a share of them, and the peak."""

    name: str
    extra_share: float
    peak_bytes: int
    on_front: bool
    chosen: bool

    @property
    def colour(self) -> str:
        return CHOSEN if self.chosen else ON if self.on_front else FAINT


@dataclass(frozen=True)
class Scale:
    """Linear axes from nothing up: shares of FLOPs across, bytes up."""

    across: float
    up: float

    @classmethod
    def of(cls, points: Sequence[Point]) -> Scale:
        return cls(max([0.1, *(point.extra_share for point in points)]), 1.08 * max(p.peak_bytes for p in points))

    def x(self, share: float) -> float:
        return LEFT + 14 + share / self.across * (RIGHT - LEFT - 120)

    def y(self, size_bytes: float) -> float:
        return BOTTOM - size_bytes / self.up * (BOTTOM - TOP)

    def at(self, point: Point) -> tuple[float, float]:
        return self.x(point.extra_share), self.y(point.peak_bytes)


def front_svg(title: str, points: Sequence[Point], capacity_bytes: int | None = None, device: str = "") -> Picture:
    """Every point with its name, the front as steps, and a dashed line at the capacity where it is within reach."""
    scale = Scale.of(points)
    placed = [(point, scale.at(point)) for point in sorted(points, key=lambda point: point.chosen)]
    taken = [(x - 6, y - 6, x + 6, y + 6) for _, (x, y) in placed]
    corners = sorted(at for point, at in placed if point.on_front)
    body = [*_axes(scale), _steps(corners)]
    for (x, y), (to_x, to_y) in pairwise(corners):
        taken += [(x, y - 1, to_x, y + 1), (to_x - 1, y, to_x + 1, to_y)]
    if capacity_bytes and capacity_bytes <= scale.up:
        y = scale.y(capacity_bytes)
        body += _capacity(y, f"{device} {format_bytes(capacity_bytes)}")
        taken += [(LEFT, y - 1, RIGHT, y + 1), (RIGHT - 260, y - 18, RIGHT, y)]
    body += _names(placed, taken)
    head = _text(16, 24, title, INK, 15, "start", ' font-weight="600"')
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
        f'style="max-width:100%" role="img" aria-label="{escape(title)}" font-family="sans-serif">'
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="6" fill="{CARD}"/>{head}{"".join(body)}</svg>'
    )
    return Picture(title, svg=svg)


def one_below_another(*pictures: Picture) -> Picture:
    """SVG cards of one width as one picture, with the first one's title."""
    parts, y = [], 0
    for picture in pictures:
        height = int(picture.svg.split('viewBox="0 0 ', 1)[1].split('"', 1)[0].split()[1])
        parts.append(picture.svg.replace("<svg ", f'<svg y="{y}" height="{height}" ', 1))
        y += height + 6
    title = pictures[0].title
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" width="{WIDTH}" style="max-width:100%" '
    return Picture(title, svg=f'{head}role="img" aria-label="{escape(title)}">{"".join(parts)}</svg>')


def _ticks(most: float) -> list[float]:
    """At most six round numbers from nothing to `most`."""
    size = 10.0 ** floor(log10(most))
    step = next(step for step in (size / 10, size / 5, size / 4, size / 2, size, 2 * size) if most / step <= 5)
    return [step * count for count in range(int(most / step) + 1)]


def _axes(scale: Scale) -> Iterator[str]:
    yield _line(LEFT, BOTTOM, RIGHT, BOTTOM, FAINT)
    yield _line(LEFT, TOP, LEFT, BOTTOM, FAINT)
    for percent in _ticks(100 * scale.across):
        yield _text(scale.x(percent / 100), BOTTOM + 17, f"{percent:g} %", FAINT, 11, "middle")
    unit, name = (GIB, "GiB") if scale.up >= GIB else (2**20, "MiB")
    for size in _ticks(scale.up / unit):
        y = scale.y(size * unit)
        yield _line(LEFT - 4, y, LEFT, y, FAINT)
        yield _text(LEFT - 8, y + 4, f"{size:g} {name}", FAINT, 11, "end")
    yield _text(
        (LEFT + RIGHT) / 2,
        BOTTOM + 35,
        "more FLOPs than without checkpointing; the peak on the left",
        INK,
        12,
        "middle",
    )


def _steps(corners: Sequence[tuple[float, float]]) -> str:
    """From one on the front to the next: right at the same memory, then down."""
    path = "".join(f" H {x:.1f} V {y:.1f}" for x, y in corners[1:])
    return (
        f'<path class="front" d="M {corners[0][0]:.1f} {corners[0][1]:.1f}{path}" fill="none" stroke="{ON}" '
        f'stroke-width="1.5"/>'
    )


def _names(placed: Sequence[tuple[Point, tuple[float, float]]], taken: list[Box]) -> Iterator[str]:
    """Marks first; then names, the chosen one's and those on the front before the others, where they cover nothing."""
    for point, (x, y) in placed:
        fill = point.colour if point.chosen else CARD
        yield (
            f'<circle class="policy" cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{fill}" '
            f'stroke="{point.colour}" stroke-width="2.5"><title>{escape(point.name)}: '
            f"{format_bytes(point.peak_bytes)}, {100 * point.extra_share:.1f} % more FLOPs</title></circle>"
        )
    for point, (x, y) in sorted(placed, key=lambda one: (not one[0].chosen, not one[0].on_front)):
        box = _free_box(x, y, LETTER * len(point.name), taken)
        if box is None:
            continue  # its mark tells its name to who points at it, and the table has it
        taken.append(box)
        yield _text(box[0], box[3] - 3, point.name, point.colour, 11, "start")


def _free_box(x: float, y: float, width: float, taken: Sequence[Box]) -> Box | None:
    spots = [
        (x + 9, y - 7),
        (x - 9 - width, y - 7),
        *((x + 9, y - 7 + side * LINE) for side in (-1, 1, -2, 2)),
        *((x - 9 - width, y - 7 + side * LINE) for side in (-1, 1)),
    ]
    boxes = ((left, top, left + width, top + LINE) for left, top in spots)
    inside = (box for box in boxes if box[0] > LEFT + 2 and box[2] < WIDTH and box[1] > TOP - 14 and box[3] < BOTTOM)
    return next((box for box in inside if not any(_overlap(box, other) for other in taken)), None)


def _overlap(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _capacity(y: float, text: str) -> list[str]:
    return [_line(LEFT, y, RIGHT, y, INK, ' stroke-dasharray="5 3"'), _text(RIGHT, y - 5, text, INK, 11, "end")]


def _line(x0: float, y0: float, x1: float, y1: float, colour: str, more: str = "") -> str:
    return f'<line x1="{x0:.1f}" y1="{y0:.1f}" x2="{x1:.1f}" y2="{y1:.1f}" stroke="{colour}"{more}/>'


def _text(x: float, y: float, text: str, colour: str, size: float, anchor: str, more: str = "") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{colour}" text-anchor="{anchor}"{more}>'
        f"{escape(text)}</text>"
    )


def front_png(title: str, points: Sequence[Point], capacity_bytes: int | None = None, device: str = "") -> bytes:
    """The same as PNG, drawn by matplotlib."""
    figure, axes = new_figure(title, height=3.4)
    corners = sorted((point.extra_share, point.peak_bytes) for point in points if point.on_front)
    x, y = [100 * share for share, _ in corners], [size / GIB for _, size in corners]
    axes.step(x, y, where="post", color=ON, linewidth=1.5)
    for point in sorted(points, key=lambda point: point.chosen):
        axes.plot(
            [100 * point.extra_share],
            [point.peak_bytes / GIB],
            "o",
            markersize=7,
            markeredgewidth=1.8,
            color=point.colour if point.chosen else CARD,
            markeredgecolor=point.colour,
        )
    axes.margins(x=0.16)
    axes.set_ylim(0, 1.12 * max(point.peak_bytes for point in points) / GIB)
    if capacity_bytes and capacity_bytes / GIB <= axes.get_ylim()[1]:
        axes.axhline(capacity_bytes / GIB, color=INK, linestyle="--", linewidth=1.2)
        axes.text(axes.get_xlim()[1], capacity_bytes / GIB, f"{device} ", ha="right", va="bottom", fontsize=8.5)
    axes.set_xlabel("more FLOPs than without checkpointing, %", fontsize=9, color=INK)
    axes.set_ylabel("peak, GiB", fontsize=9, color=INK)
    figure.subplots_adjust(left=0.1)
    labels = Labels(axes)
    for point in points:
        labels.avoid_point(100 * point.extra_share, point.peak_bytes / GIB)
    for point in sorted(points, key=lambda one: (not one.chosen, not one.on_front)):
        labels.place((100 * point.extra_share, point.peak_bytes / GIB), point.name, point.colour)
    return as_picture(figure, title).png
