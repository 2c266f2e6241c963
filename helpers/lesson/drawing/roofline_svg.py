"""One operator under one roof, as SVG: quick enough to follow a slider, and no library behind it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from math import atan2, ceil, degrees, floor, log10

from ...memory.closed_form.work import COMPUTE, Roof, Work
from ..units import si, three_digits
from .pictures import CARD, FAINT, INK, LINES, Picture

WIDTH, HEIGHT = 760, 300
LEFT, RIGHT, TOP, BOTTOM = 96, 732, 44, 256
At = tuple[float, float]  # pixels, from the top left
MEMORY_COLOUR, COMPUTE_COLOUR = LINES[0], LINES[1]


@dataclass(frozen=True)
class Scale:
    """Log axes in whole decades: from a tenth of a FLOP per byte to 100,000, farther only where the work lies there."""

    x: tuple[int, int]
    y: tuple[int, int]

    @classmethod
    def of(cls, roof: Roof, work: Work) -> Scale:
        asked = log10(work.intensity) if work.flops else 0.0
        x = (min(-1, floor(asked)), max(5, ceil(asked), ceil(log10(roof.ridge)) + 1))
        return cls(x, (floor(log10(roof.attainable(10.0 ** x[0]))), ceil(log10(roof.flops_per_s) + 0.15)))

    def at(self, intensity: float, flops_per_s: float) -> At:
        across = (log10(intensity) - self.x[0]) / (self.x[1] - self.x[0])
        up = (log10(flops_per_s) - self.y[0]) / (self.y[1] - self.y[0])
        return LEFT + across * (RIGHT - LEFT), BOTTOM - up * (BOTTOM - TOP)


def roofline_svg(title: str, roof: Roof, name: str, work: Work) -> Picture:
    """The roof with its slopes and its ridge, and `name` as a ring where `work` meets it.

    Work of no FLOPs has no place on log axes: it is told in words where its slope begins.
    """
    scale = Scale.of(roof, work)
    head = f'<text x="16" y="24" font-size="15" font-weight="600" fill="{INK}">{escape(title)}</text>'
    body = "".join((*_axes(scale), *_roof(scale, roof), *_point(scale, roof, name, work)))
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
        f'style="max-width:100%" role="img" aria-label="{escape(title)}" font-family="sans-serif">'
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="6" fill="{CARD}"/>{head}{body}</svg>'
    )
    return Picture(title, svg=svg)


def _axes(scale: Scale) -> Iterator[str]:
    """Decades named: every one below, every second one or so on the left."""
    for power in range(scale.x[0], scale.x[1] + 1):
        x, _ = scale.at(10.0**power, 10.0 ** scale.y[0])
        yield _line("axis", (x, BOTTOM), (x, BOTTOM + 4), FAINT)
        yield _text((x, BOTTOM + 17), f"{10.0**power:,g}", FAINT, "middle", 11)
    step = ceil((scale.y[1] - scale.y[0]) / 5)
    for power in range(scale.y[1] - 1, scale.y[0] - 1, -step):
        _, y = scale.at(10.0 ** scale.x[0], 10.0**power)
        yield _line("axis", (LEFT - 4, y), (LEFT, y), FAINT)
        yield _text((LEFT - 8, y + 4), si(10.0**power, "FLOP/s", whole=True), FAINT, "end", 11)
    yield _line("axis", (LEFT, TOP), (LEFT, BOTTOM), FAINT)
    yield _line("axis", (LEFT, BOTTOM), (RIGHT, BOTTOM), FAINT)
    yield _text(((LEFT + RIGHT) / 2, BOTTOM + 35), "FLOPs per byte moved", INK, "middle", 12)


def _roof(scale: Scale, roof: Roof) -> Iterator[str]:
    start, end = 10.0 ** scale.x[0], 10.0 ** scale.x[1]
    low, ridge = scale.at(start, roof.attainable(start)), scale.at(roof.ridge, roof.flops_per_s)
    far = scale.at(end, roof.flops_per_s)
    for name, a, b, colour in (("memory", low, ridge, MEMORY_COLOUR), ("compute", ridge, far, COMPUTE_COLOUR)):
        under = f"{_xy(a)} {_xy(b)} {b[0]:.1f},{BOTTOM} {a[0]:.1f},{BOTTOM}"
        yield f'<polygon points="{under}" fill="{colour}" fill-opacity="0.07"/>'
        yield _line(name, a, b, colour, 3.5)
    yield _line("ridge", ridge, (ridge[0], BOTTOM), FAINT, 1, ' stroke-dasharray="2 3"')
    yield _text((ridge[0] + 6, BOTTOM - 8), f"ridge: {three_digits(roof.ridge)} FLOPs per byte", FAINT, "start", 12)
    x, y, angle = (low[0] + ridge[0]) / 2, (low[1] + ridge[1]) / 2, degrees(atan2(ridge[1] - low[1], ridge[0] - low[0]))
    bold, turned = ' font-weight="600"', f' transform="rotate({angle:.1f} {x:.1f} {y:.1f})"'
    yield _text((x, y - 13), f"memory: {si(roof.bytes_per_s, 'B/s')}", MEMORY_COLOUR, "middle", 13, bold + turned)
    yield _text((RIGHT, far[1] - 13), f"compute: {si(roof.flops_per_s, 'FLOP/s')}", COMPUTE_COLOUR, "end", 13, bold)


def _point(scale: Scale, roof: Roof, name: str, work: Work) -> Iterator[str]:
    if not work.flops:
        yield _text((LEFT + 8, BOTTOM - 8), f"← {name}: 0 FLOPs", INK, "start", 13)
        return
    x, y = scale.at(work.intensity, roof.attainable(work.intensity))
    colour = COMPUTE_COLOUR if roof.bound(work) == COMPUTE else MEMORY_COLOUR
    yield (
        f'<circle class="point" cx="{x:.1f}" cy="{y:.1f}" r="6.5" fill="{CARD}" stroke="{colour}" stroke-width="3"/>'
    )
    text = f"{name}: {three_digits(work.intensity)} FLOP/B"
    yield _text((min(x + 12, RIGHT - 7.4 * len(text)), y + 24), text, INK, "start", 13)


def _xy(at: At) -> str:
    return f"{at[0]:.1f},{at[1]:.1f}"


def _line(name: str, a: At, b: At, colour: str, width: float = 1, more: str = "") -> str:
    return (
        f'<line class="{name}" x1="{a[0]:.1f}" y1="{a[1]:.1f}" x2="{b[0]:.1f}" y2="{b[1]:.1f}" stroke="{colour}" '
        f'stroke-width="{width}"{more}/>'
    )


def _text(at: At, text: str, colour: str, anchor: str, size: float, more: str = "") -> str:
    return (
        f'<text x="{at[0]:.1f}" y="{at[1]:.1f}" font-size="{size}" fill="{colour}" text-anchor="{anchor}"{more}>'
        f"{escape(text)}</text>"
    )
