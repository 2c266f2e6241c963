"""Pictures of time and bandwidth: the staircase of a sweep, bars of seconds, time against a size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...memory.breakdown import format_bytes
from ..recorded import Recorded
from ..units import si
from .marks import FAINT, INK, LINES
from .pictures import Picture, as_picture
from .render import new_figure, write_on_top
from .words import listed, of_curve, over

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ...memory.measure.levels import Sweep


def staircase(title: str, sweep: Sweep) -> Picture:
    """Bytes per second by working-set size: each level in its colour, the reported caches as dashed lines."""
    figure, axes = new_figure(title, height=3.4, left=0.11)
    axes.set_xscale("log", base=2)
    axes.set(xlim=(sweep.sizes[0] / 1.3, sweep.sizes[-1] * 1.3), ylim=(0, max(sweep.bytes_per_s) * 1.22 / 1e9))
    _levels(axes, sweep)
    for name, size in sweep.reported.items():
        axes.axvline(size, color=INK, linestyle="--", linewidth=1)
        write_on_top(axes, size, f" {name}: {_size(size)}", 8.5, INK)
    ticks = sweep.sizes[::4]
    axes.set_xticks(ticks, [_size(size) for size in ticks], fontsize=8)
    axes.minorticks_off()
    axes.set_xlabel("working set (dashed: what the system reports of its caches)", fontsize=9)
    axes.set_ylabel("GB/s read", fontsize=9)
    levels = (
        f"{level.name} {si(level.bytes_per_s, 'B/s')}"
        + (f" up to {_size(level.size_bytes)}" if level.size_bytes else "")
        for level in sweep.levels
    )
    caches = listed(f"{name} {_size(size)}" for name, size in sweep.reported.items())
    words = (
        f"Bytes read per second against the working set: {listed(levels)}. The system reports: {caches or 'nothing'}."
    )
    return as_picture(figure, title, words)


def _levels(axes: Axes, sweep: Sweep) -> None:
    """The measured points, and over each level its name and rate."""
    rates = [rate / 1e9 for rate in sweep.bytes_per_s]
    axes.plot(sweep.sizes, rates, color=FAINT, linewidth=1, zorder=1)
    start = sweep.sizes[0]
    for colour, level in zip([*LINES, *LINES], sweep.levels, strict=False):
        end = level.size_bytes or sweep.sizes[-1]
        inside = [(size, rate) for size, rate in zip(sweep.sizes, rates, strict=True) if start <= size <= end]
        axes.hlines(level.bytes_per_s / 1e9, start, end, color=colour, linewidth=7, alpha=0.25)
        axes.plot(*zip(*inside, strict=True), "o", color=colour, markersize=5)
        top = max([level.bytes_per_s / 1e9, *(rate for _, rate in inside)]) + 0.045 * axes.get_ylim()[1]
        words = f"{level.name}: {si(level.bytes_per_s, 'B/s')}"
        axes.text((start * end) ** 0.5, top, words, ha="center", fontsize=9, color=colour, fontweight="bold")
        start = end


def staircases(title: str, found: Sequence[Recorded], yours: Sweep | None = None) -> Picture | None:
    """The staircases of recorded GPUs, each named at its end with its source below, and `yours` dashed beside them.

    Both axes are logarithmic: a GPU's caches are ten times as fast as a CPU's. Without a recording nothing is
    drawn.
    """
    if not found:
        return None
    height = 3.9 + 0.16 * len(found)
    figure, axes = new_figure(title, height, left=0.12, right=0.83)
    figure.subplots_adjust(bottom=(0.62 + 0.16 * len(found)) / height)
    _log_axes(axes, "B/s")
    curves = [(one.machine.name, entry.x, entry.values) for one in found for entry in one.entries]
    for colour, (name, sizes, rates) in zip([*LINES, *LINES], curves, strict=False):
        _curve(axes, name, sizes, rates, color=colour, linewidth=2)
    if yours:
        _curve(axes, "this machine", yours.sizes, yours.bytes_per_s, color=FAINT, linewidth=1.5, linestyle="--")
    axes.xaxis.set_major_formatter(lambda size, _: _size(size))
    axes.minorticks_off()
    axes.set_xlabel("working set, read again and again", fontsize=9)
    figure.text(0.02, 0.02, "\n".join(one.source for one in found), fontsize=8.5, color=INK, va="bottom")
    ends = (
        f"{name}, {si(rates[0], 'B/s')} at {_size(sizes[0])} and {si(rates[-1], 'B/s')} at {_size(sizes[-1])}"
        for name, sizes, rates in curves
    )
    return as_picture(figure, title, f"Bytes read per second against the working set: {'; '.join(ends)}.")


def _curve(axes: Axes, name: str, sizes: Sequence[float], rates: Sequence[float], **style: Any) -> None:
    axes.plot(sizes, rates, **style)
    axes.annotate(f" {name}", (sizes[-1], rates[-1]), va="center", fontsize=9, color=style["color"])


def _log_axes(axes: Axes, unit: str) -> None:
    """Powers of two across, and up one, two and five of every power of ten, in `unit`."""
    from matplotlib.ticker import LogLocator

    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: si(value, unit, whole=True))
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))


def _size(size_bytes: float) -> str:
    return format_bytes(size_bytes).replace(".00", "")


def bars(
    title: str, rows: Mapping[str, float], floors: Mapping[str, float] | None = None, floor: str = "floor"
) -> Picture:
    """A horizontal bar of seconds for each row, in order; a thick black mark where the row's `floors` has its limit."""
    figure, axes = new_figure(title, height=0.95 + 0.42 * len(rows), left=0.3)
    for row, (name, seconds) in enumerate(rows.items()):
        axes.barh(row, seconds, height=0.62, color=LINES[row % len(LINES)])
        axes.text(seconds, row, f" {si(seconds, 's')}", va="center", fontsize=9, color=INK)
        if floors and name in floors:
            axes.vlines(floors[name], row - 0.38, row + 0.38, color=INK, linewidth=2.4)
    axes.set_yticks(range(len(rows)), list(rows), fontsize=9)
    axes.invert_yaxis()
    axes.margins(x=0.14)
    axes.set_xlim(left=0)
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)
    if floors:
        axes.set_xlabel(f"black mark: {floor}", fontsize=9)
    limits = {name: f" ({floor}: {si(limit, 's')})" for name, limit in (floors or {}).items()}
    words = "; ".join(f"{name} {si(seconds, 's')}{limits.get(name, '')}" for name, seconds in rows.items())
    return as_picture(figure, title, f"Bars of time: {words}.")


def growth(
    title: str,
    x: Sequence[int],
    seconds: Sequence[float],
    floors: Mapping[int, float],
    x_label: str,
    turn: float | None = None,
) -> Picture:
    """Measured seconds as dots over `x`, the floor as a line under them, and a dotted line where the floor turns.

    `floors` is the floor at as many x as its line needs; with only those of the dots it would not bend at `turn`.
    """
    figure, axes = new_figure(title, height=3.3, left=0.12)
    _log_axes(axes, "s")
    at, floor = list(floors), list(floors.values())
    axes.plot(at, floor, color=LINES[0], linewidth=3, label="floor")
    axes.plot(x, seconds, "o-", color=LINES[1], markersize=6, linewidth=1, label="measured")
    axes.legend(loc="upper left", frameon=False, fontsize=9, labelcolor="linecolor", reverse=True)
    if turn:
        axes.axvline(turn, color=FAINT, linestyle=":", linewidth=1)
        write_on_top(axes, turn, f" ridge: {turn:,.3g}")
    axes.set_xticks(x, [f"{value:,}" for value in x])
    axes.minorticks_off()
    axes.set_xlabel(x_label, fontsize=9)
    curves = (
        of_curve(name, over_x, values, x_label, lambda value: si(value, "s"))
        for name, over_x, values in (("the floor", at, floor), ("what was measured", x, seconds))
    )
    bend = f" The floor turns at {turn:,.3g}." if turn else ""
    return as_picture(figure, title, f"{over(x, x_label)}; up, time: {'; '.join(curves)}.{bend}")
