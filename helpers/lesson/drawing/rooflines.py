"""Rooflines: the FLOPs that operators do per byte, against what the machine gives. `roofline_svg` is the quick one.

    from helpers.lesson import rooflines
    rooflines.chart("Most operators sit under the slope", roof, {"softmax": (work, seconds), "GEMM": (other, None)})

A dot is measured, and the line above it is what the roof still allows; a ring on the roof is a prediction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ...catalog.errors import WorkbookError
from ...memory.closed_form.work import COMPUTE, Roof, Work
from ..units import percent, si, three_digits
from .figures import as_picture, new_figure
from .labels import Labels
from .pictures import CARD, FAINT, INK, LINES, Picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Points = Mapping[str, tuple[Work, float | None]]
MEMORY_COLOUR, COMPUTE_COLOUR = LINES[0], LINES[1]


def chart(title: str, roofs: Roof | Sequence[Roof], points: Points) -> Picture:
    """Points (work, and the seconds that it took or None) under the first of `roofs`; the others are drawn faint.

    Work of no FLOPs has no place on these axes: a note below tells its share of the bandwidth.
    WorkbookError where there is no roof, or seconds are not above zero.
    """
    ordered = _checked(roofs, points)
    roof, placed = ordered[0], {name: point for name, point in points.items() if point[0].flops}
    notes = [_note(name, work, seconds, roof) for name, (work, seconds) in points.items() if not work.flops]
    rates = [other.flops_per_s for other in ordered]
    figure, axes = new_figure(title, height=(3.9 if max(rates) < 100 * min(rates) else 5.2) + 0.17 * len(notes))
    _frame(axes, ordered, placed.values())
    below = 0.5 + (0.08 + 0.17 * len(notes) if notes else 0)
    figure.subplots_adjust(left=0.14, right=0.92, bottom=below / figure.get_figheight())
    labels = Labels(axes)
    for other in ordered[1:]:
        _faint(axes, other, labels)
    _roof(axes, roof, labels)
    _points(axes, roof, placed, labels)
    if notes:
        figure.text(0.02, 0.02, "\n".join(notes), fontsize=8.5, color=INK, va="bottom")
    return as_picture(figure, title)


def _checked(roofs: Roof | Sequence[Roof], points: Points) -> list[Roof]:
    ordered = [roofs] if isinstance(roofs, Roof) else list(roofs)
    if not ordered:
        raise WorkbookError("a picture without a roof", "a Roof, or several", "pass Roof.of(device, format)")
    for name, (_, seconds) in points.items():
        if seconds is not None and not seconds > 0:
            raise WorkbookError(
                f"{name} took {seconds!r} seconds",
                "more than zero, or None where nobody measured",
                "pass the seconds of one run",
            )
    return ordered


def _note(name: str, work: Work, seconds: float | None, roof: Roof) -> str:
    if seconds is None:
        return f"{name} computes nothing, so it has no dot: {si(roof.seconds(work), 's')} at least for its bytes"
    rate = work.bytes / seconds
    share = percent(rate / roof.bytes_per_s)
    return f"{name} computes nothing, so it has no dot: {si(rate, 'B/s')}, {share} of the bandwidth"


def _frame(axes: Axes, roofs: Sequence[Roof], points: Sequence[tuple[Work, float | None]]) -> None:
    """Log axes that hold every ridge and every point with room around them."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    asked = [work.intensity for work, _ in points]
    left = min([0.5, *(roof.ridge / 30 for roof in roofs), *(x / 8 for x in asked)])
    right = max([100.0, *(roof.ridge * 40 for roof in roofs), *(x * 12 for x in asked)])
    seen = [work.flops / seconds if seconds else roofs[0].attainable(work.intensity) for work, seconds in points]
    low = min([*(roof.attainable(left) for roof in roofs), *(rate / 8 for rate in seen)])
    high = max([*(roof.flops_per_s for roof in roofs), *seen])
    axes.set(xscale="log", yscale="log", xlim=(left, right), ylim=(low, 3 * high))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,g}"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: si(y, "FLOP/s", whole=True)))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_formatter(NullFormatter())
    share = "   (%: of what the roof allows there)" if any(seconds for _, seconds in points) else ""
    axes.set_xlabel(f"FLOPs per byte moved{share}", fontsize=9, color=INK)


def _roof(axes: Axes, roof: Roof, labels: Labels) -> None:
    """The two slopes, each with its name, what lies under them tinted alike, and the ridge between."""
    (left, right), bottom = axes.get_xlim(), axes.get_ylim()[0]
    ridge, top = roof.ridge, roof.flops_per_s
    slope, flat = ([left, ridge], [roof.attainable(left), top]), ([ridge, right], [top, top])
    for (x, y), colour in ((slope, MEMORY_COLOUR), (flat, COMPUTE_COLOUR)):
        axes.plot(x, y, color=colour, linewidth=3, solid_capstyle="butt", zorder=3)
        axes.fill_between(x, y, bottom, color=colour, alpha=0.07, linewidth=0)
        labels.avoid_line(x, y)
    axes.plot([ridge, ridge], [bottom, top], color=FAINT, linewidth=0.8, linestyle=":")
    labels.along((left, roof.attainable(left)), (ridge, top), f"memory: {si(roof.bytes_per_s, 'B/s')}", MEMORY_COLOUR)
    labels.along((ridge, top), (right, top), f"compute: {si(top, 'FLOP/s')}", COMPUTE_COLOUR)
    labels.place((ridge, bottom), f"ridge: {three_digits(roof.ridge)} FLOPs per byte", FAINT, spots=[(8, 9)])


def _faint(axes: Axes, roof: Roof, labels: Labels) -> None:
    left, right = axes.get_xlim()
    x, y = [left, roof.ridge, right], [roof.attainable(left), roof.flops_per_s, roof.flops_per_s]
    axes.plot(x, y, color=FAINT, linewidth=1.2, linestyle="--")
    labels.avoid_line(x, y)
    labels.along((roof.ridge, y[1]), (right, y[1]), roof.name, FAINT)


def _points(axes: Axes, roof: Roof, points: Points, labels: Labels) -> None:
    """Every mark, then the names, which must cover none: from right to left, since a slope leaves room below."""
    named = []
    for name, (work, seconds) in sorted(points.items(), key=lambda point: point[1][0].intensity):
        x, allowed = work.intensity, roof.attainable(work.intensity)
        y = work.flops / seconds if seconds else allowed
        colour = COMPUTE_COLOUR if roof.bound(work) == COMPUTE else MEMORY_COLOUR
        if seconds:
            axes.plot([x, x], sorted([y, allowed]), color=colour, linewidth=1.2, zorder=2)
            labels.avoid_line([x, x], [y, allowed])
        axes.plot(
            [x],
            [y],
            "o",
            markersize=8,
            color=colour if seconds else CARD,
            markeredgewidth=1.8,
            markeredgecolor=CARD if seconds else colour,
            zorder=4,
        )
        labels.avoid_point(x, y)
        named.append(((x, y), f"{name}: {percent(y / allowed)}" if seconds else name))
    for at, text in reversed(named):
        labels.place(at, text)
