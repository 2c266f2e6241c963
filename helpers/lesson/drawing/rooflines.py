"""Rooflines: the FLOPs that operators do per byte, against what the machine gives.

    from helpers.lesson import rooflines
    rooflines.chart("Most operators sit under the slope", roof, {"softmax": (work, seconds), "GEMM": (other, None)})

A dot is measured, and the line above it is what the roof still allows; a ring on the roof is a prediction.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from math import ceil, floor, log10

from ...catalog.errors import WorkbookError
from ...memory.work import COMPUTE, Roof, Work
from ..units import percent, si, three_digits
from .axes import Axis, Plane, Ticks
from .labels import Bounds, Labels
from .marks import CARD, FAINT, INK, LINES, Area, Dot, Line, Mark, TextMark
from .pictures import MARGIN, WIDTH, Card
from .words import listed

Point = tuple[Work, float | None]  # and the seconds that it took, where somebody measured
LEFT, RIGHT, TOP, FOOT = 96, 732, 44, 44  # the last: under the axes
NOTE = 17  # height of a line of text below
MEMORY_COLOUR, COMPUTE_COLOUR = LINES[0], LINES[1]


def chart(
    title: str, roofs: Roof | Sequence[Roof], points: Mapping[str, Point], height: float = 390, decades: bool = False
) -> Card:
    """Points (work, and the seconds that it took or None) under the first of `roofs`; the others are drawn faint.

    The axes hold what is drawn; with `decades` they hold whole decades, from a tenth of a FLOP per byte to 100,000 or
    farther, and stand still while a slider moves. Work of no FLOPs has no place on these axes: a note below tells its
    share of the bandwidth. WorkbookError where there is no roof, or seconds are not above zero.
    """
    ordered = _checked(roofs, points)
    roof, placed = ordered[0], {name: point for name, point in points.items() if point[0].flops}
    notes = [_note(name, *point, roof) for name, point in points.items() if not point[0].flops]
    rates = [other.flops_per_s for other in ordered]
    axes_height = height if max(rates) < 100 * min(rates) else height + 130
    plane = _plane(ordered, placed.values(), axes_height - FOOT, decades)
    labels = Labels(Bounds(LEFT, TOP - 12, WIDTH, plane.y.start))
    share = "   (%: of what the roof allows there)" if any(seconds for _, seconds in placed.values()) else ""
    body = [
        *plane.frame(*_ticks(plane), f"FLOPs per byte moved{share}"),
        *(mark for other in ordered[1:] for mark in _faint(plane, other, labels)),
        *_roof(plane, roof, labels),
        *_points(plane, roof, placed, labels),
        *(TextMark(MARGIN, axes_height + 10 + NOTE * at, note) for at, note in enumerate(notes)),
    ]
    return Card(title, axes_height + (6 + NOTE * len(notes) if notes else 0), tuple(body), _words(roof, placed, notes))


def _words(roof: Roof, points: Mapping[str, Point], notes: Sequence[str]) -> str:
    """The roof by its two rates and its ridge, and each point by its place under it."""
    slopes = f"a slope at {si(roof.bytes_per_s, 'B/s')} up to {three_digits(roof.ridge)} FLOPs per byte"
    named = []
    for name, (work, seconds) in sorted(points.items(), key=lambda point: point[1][0].intensity):
        share = f", at {percent(_rate((work, seconds), roof) / roof.attainable(work.intensity))} of the roof"
        bound = f"{three_digits(work.intensity)} FLOPs per byte, {roof.bound(work)}-bound"
        named.append(f"{name}: {bound}{share if seconds else ''}")
    dots = f" {listed(named, 24)}." if named else ""
    return f"A roof: {slopes}, then level at {si(roof.flops_per_s, 'FLOP/s')}.{dots}{''.join(f' {n}.' for n in notes)}"


def _checked(roofs: Roof | Sequence[Roof], points: Mapping[str, Point]) -> list[Roof]:
    ordered = [roofs] if isinstance(roofs, Roof) else list(roofs)
    if not ordered:
        raise WorkbookError("a picture without a roof", "a Roof, or several", "pass Roof.of(device, format)")
    for name, (_, seconds) in points.items():
        if seconds is not None and not seconds > 0:
            expected = "more than zero, or None where nobody measured"
            raise WorkbookError(f"{name} took {seconds!r} seconds", expected, "pass the seconds of one run")
    return ordered


def _note(name: str, work: Work, seconds: float | None, roof: Roof) -> str:
    if seconds is None:
        return f"{name} computes nothing, so it has no dot: {si(roof.seconds(work), 's')} at least for its bytes"
    rate = work.bytes / seconds
    share = percent(rate / roof.bytes_per_s)
    return f"{name} computes nothing, so it has no dot: {si(rate, 'B/s')}, {share} of the bandwidth"


def _plane(roofs: Sequence[Roof], points: Collection[Point], foot: float, decades: bool) -> Plane:
    """Log axes that hold every ridge and every point with room around them."""
    asked = [work.intensity for work, _ in points]
    if decades:
        left = 10.0 ** floor(min([-1.0, *map(log10, asked)]))
        right = 10.0 ** ceil(max([5.0, *map(log10, asked), *(log10(roof.ridge) + 1 for roof in roofs)]))
        low = 10.0 ** floor(log10(min(roof.attainable(left) for roof in roofs)))
        high = 10.0 ** ceil(log10(max(roof.flops_per_s for roof in roofs)) + 0.15)
    else:
        left = min([0.5, *(roof.ridge / 30 for roof in roofs), *(x / 8 for x in asked)])
        right = max([100.0, *(roof.ridge * 40 for roof in roofs), *(x * 12 for x in asked)])
        seen = [_rate(point, roofs[0]) for point in points]
        low = min([*(roof.attainable(left) for roof in roofs), *(rate / 8 for rate in seen)])
        high = 3 * max([*(roof.flops_per_s for roof in roofs), *seen])
    return Plane(Axis(left, right, LEFT, RIGHT, log=True), Axis(low, high, foot, TOP, log=True))


def _ticks(plane: Plane) -> tuple[Ticks, Ticks]:
    """Every decade across, every second one or so on the left."""
    across, up = (
        [10.0**power for power in range(ceil(log10(axis.low) - 1e-9), floor(log10(axis.high) + 1e-9) + 1)]
        for axis in (plane.x, plane.y)
    )
    up = up[:: -ceil(len(up) / 6)]
    return {value: f"{value:,g}" for value in across}, {value: si(value, "FLOP/s", whole=True) for value in up}


def _roof(plane: Plane, roof: Roof, labels: Labels) -> Iterator[Mark]:
    """The two slopes, each with its name, what lies under them tinted alike, and the ridge between."""
    left, right, foot = plane.x.low, plane.x.high, plane.y.start
    low, top = plane.at(left, roof.attainable(left)), plane.at(roof.ridge, roof.flops_per_s)
    far = plane.at(right, roof.flops_per_s)
    slopes = (("memory", low, top, MEMORY_COLOUR), ("compute", top, far, COMPUTE_COLOUR))
    for _, start, end, colour in slopes:
        yield Area((start, end, (end[0], foot), (start[0], foot)), colour, 0.07)
    for kind, start, end, colour in slopes:
        yield Line((start, end), colour, 3.5, kind=kind)
        labels.avoid_line((start, end))
    yield Line((top, (top[0], foot)), FAINT, 1, "2 3", kind="ridge")
    yield labels.along(low, top, f"memory: {si(roof.bytes_per_s, 'B/s')}", MEMORY_COLOUR)
    yield labels.along(top, far, f"compute: {si(roof.flops_per_s, 'FLOP/s')}", COMPUTE_COLOUR)
    ridge = f"ridge: {three_digits(roof.ridge)} FLOPs per byte"
    yield from labels.place((top[0], foot), ridge, FAINT, spots=[(8, 12)])


def _faint(plane: Plane, roof: Roof, labels: Labels) -> Iterator[Mark]:
    corners = [(plane.x.low, roof.attainable(plane.x.low)), (roof.ridge, roof.flops_per_s)]
    line = tuple(plane.at(*corner) for corner in (*corners, (plane.x.high, roof.flops_per_s)))
    yield Line(line, FAINT, 1.5, "6 3")
    labels.avoid_line(line)
    yield labels.along(line[1], line[2], roof.name, FAINT)


def _points(plane: Plane, roof: Roof, points: Mapping[str, Point], labels: Labels) -> Iterator[Mark]:
    """Every mark, then the names, which must cover none: from right to left, since a slope leaves room below."""
    named = []
    for name, (work, seconds) in sorted(points.items(), key=lambda point: point[1][0].intensity):
        allowed, rate = roof.attainable(work.intensity), _rate((work, seconds), roof)
        at, above = plane.at(work.intensity, rate), plane.at(work.intensity, allowed)
        colour = COMPUTE_COLOUR if roof.bound(work) == COMPUTE else MEMORY_COLOUR
        if seconds:
            yield Line((at, above), colour, 1.5, kind="missing")
            labels.avoid_line((at, above))
        fill, edge = (colour, CARD) if seconds else (CARD, colour)
        yield Dot(*at, fill, edge, 6, kind="point", tooltip=name)
        labels.avoid_point(*at)
        intensity = f"{three_digits(work.intensity)} FLOP/B"
        alone = f"{name}: {intensity}" if len(points) == 1 else name
        named.append((at, f"{name}: {percent(rate / allowed)}" if seconds else alone))
    for at, text in reversed(named):
        yield from labels.place(at, text, INK)


def _rate(point: Point, roof: Roof) -> float:
    """FLOPs per second, measured or what the roof allows."""
    work, seconds = point
    return work.flops / seconds if seconds else roof.attainable(work.intensity)
