"""Figures of what instruments return: bytes over time, curves, bars, and what quantization does to values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from ...memory.breakdown import format_bytes
from ..units import axis_unit
from .axes import log_ticks
from .bars import part_order, stacked_bars
from .hierarchy import hierarchy
from .marks import COLOURS, FAINT, INK, LINES, label, text_width
from .pictures import Picture, as_picture
from .render import new_figure, write_on_top
from .saved import saved_tensors
from .words import listed, of_curve, of_parts, over

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from torch import Tensor

    from ...memory.meter.timeline import Timeline

__all__ = [
    "bars",
    "channels",
    "hierarchy",
    "levels",
    "lines",
    "lost",
    "saved_tensors",
    "spans",
    "stacked_bars",
    "timeline",
]

AXES_WIDTH = 585  # px, of the axes that new_figure makes
HEADROOM = 1.22  # of a timeline's peak: room above it for the names of phases
HEADROOM_OF_INSET = 1.5  # and for an inset under them
PHASE_NAMES = {"forward": "forward", "backward": "backward", "optimizer step": "optimizer", "zero_grad": "zero_grad"}


def timeline(
    title: str,
    steps: Timeline,
    budget_bytes: int | None = None,
    names: Mapping[str, str] | None = None,
    enlarged: int = 0,
) -> Picture:
    """Live bytes by part over one step, allocation by allocation; phases named, the peak marked.

    `budget_bytes` draws a predicted peak as a dashed line. `names` say what a part is in this step, where that is more
    than its own name says: {"workspace": "the layer's output"}. `enlarged` is how many events around the peak are drawn
    once more in an inset, for what lives too briefly to be seen.
    """
    figure, axes = new_figure(title, height=3.4)
    totals = [steps.total(at) for at in range(len(steps))]
    peak = max(range(len(totals)), key=totals.__getitem__)
    unit, name = axis_unit(totals[peak])
    parts = sorted(steps.parts, key=part_order)
    sizes = [[size / unit for size in (*steps.parts[part], steps.parts[part][-1])] for part in parts]
    labels = {part: (names or {}).get(part, label(part)) for part in parts}
    colours, named = [COLOURS[part] for part in parts], list(labels.values())
    axes.stackplot(range(len(steps) + 1), sizes, colors=colours, labels=named, linewidth=0, step="post")
    at, text = (peak, totals[peak] / unit), f"peak {format_bytes(totals[peak])}"
    axes.plot(*at, "o", color=INK, markersize=4)
    axes.annotate(text, at, xytext=(6, 6), textcoords="offset points", fontsize=9, color=INK)
    if budget_bytes:
        _predicted(axes, budget_bytes, unit, len(steps) if peak < len(steps) / 3 else 0)
    _phases(axes, steps.phases)
    room = HEADROOM_OF_INSET if enlarged else HEADROOM
    axes.set(xlim=(0, len(steps)), ylim=(0, room * totals[peak] / unit))
    axes.set(xlabel="allocations and frees, in order", ylabel=name)
    _legend(axes, figure)
    story = _story(steps, peak, labels, budget_bytes)
    if enlarged:
        around = range(max(0, peak - enlarged // 2), min(len(steps), peak + enlarged // 2 + 1))
        _enlarge(axes, around, sizes, colours)
        least = _total(steps, min(around, key=totals.__getitem__))
        story += f" Enlarged: {len(around)} events around the peak, from {least} up."
    return as_picture(figure, title, story)


def _enlarge(axes: Axes, around: range, sizes: Sequence[Sequence[float]], colours: Sequence[str]) -> None:
    """Some events once more, in an inset above the falling side of a step; its scale begins below their least total."""
    near = [series[around.start : around.stop] for series in sizes]
    totals = [sum(at) for at in zip(*near, strict=True)]
    least, most = min(totals), max(totals)
    inset = axes.inset_axes((0.62, 0.58, 0.36, 0.27), facecolor="none")
    inset.stackplot(around, near, colors=list(colours), linewidth=0, step="post")
    inset.plot(around[totals.index(most)], most, "o", color=INK, markersize=3)
    margin = (most - least) / 4
    inset.set(xlim=(around[0], around[-1]), ylim=(least - margin, most + margin), xticks=[])
    inset.tick_params(colors=INK, labelsize=7.5)
    inset.set_title(f"{len(around)} events around the peak", fontsize=8, color=INK, pad=2)


def _predicted(axes: Axes, budget_bytes: int, unit: int, x: int) -> None:
    """A dashed line at a predicted peak; its text is at the end that is farther from the measured one."""
    y, text = budget_bytes / unit, f"predicted {format_bytes(budget_bytes)}"
    axes.axhline(y, color=INK, linestyle="--", linewidth=1)
    to, anchor = (-4, "right") if x else (4, "left")
    axes.annotate(text, (x, y), xytext=(to, 4), textcoords="offset points", ha=anchor, fontsize=8.5, color=INK)


def _story(steps: Timeline, peak: int, labels: Mapping[str, str], budget_bytes: int | None) -> str:
    """The step phase by phase, and what its peak is made of."""
    first, phases = 0, []
    for phase, run in groupby(steps.phases):
        last = first + len(list(run)) - 1
        highest = max(range(first, last + 1), key=steps.total)
        begins, reaches, ends = (_total(steps, at) for at in (first, highest, last))
        phases.append(f"{PHASE_NAMES.get(phase, phase)} begins at {begins}, reaches {reaches} and ends at {ends}")
        first = last + 1
    at_peak = PHASE_NAMES.get(steps.phases[peak], steps.phases[peak])
    words = f"Live bytes, stacked by part, over {len(steps):,} allocations and frees: {listed(phases)}. The peak is "
    words += f"{_total(steps, peak)}, in {at_peak}: {of_parts(steps.breakdown(peak), labels)}."
    return words + f" Predicted: {format_bytes(budget_bytes or 0)}." * bool(budget_bytes)


def _total(steps: Timeline, at: int) -> str:
    return format_bytes(steps.total(at))


def lines(
    title: str,
    x: Sequence[float],
    series: Mapping[str, Sequence[float]],
    x_label: str,
    y_label: str,
    points: Mapping[str, tuple[Sequence[float], Sequence[float]]] | None = None,
    log: bool = False,
) -> Picture:
    """Curves over `x`, each named at its end; `points` are measured dots, drawn in the colour of the same name."""
    figure, axes = new_figure(title, height=3.0, right=0.8)
    for colour, (name, values) in zip(LINES, series.items(), strict=False):
        axes.plot(x, values, color=colour, linewidth=2)
        if dots := (points or {}).get(name):
            axes.plot(*dots, "o", color=colour, markersize=6, markeredgecolor="white")
    if log:
        axes.set_xscale("log", base=2)
        axes.set_xticks(x, [f"{value:,}" for value in x])
        axes.minorticks_off()
    elif all(float(value).is_integer() for value in x):
        axes.locator_params("x", integer=True)  # what is counted has no half
    axes.set(xlabel=x_label, ylabel=y_label)
    axes.set_ylim(bottom=0)
    _name_ends(axes, x[-1], {name: values[-1] for name, values in series.items()})
    curves = "; ".join(of_curve(name, x, values, x_label) for name, values in series.items())
    return as_picture(figure, title, f"{over(x, x_label)}; up, {y_label}: {curves}.")


def _name_ends(axes: Axes, x: float, ends: Mapping[str, float]) -> None:
    """The name of each curve right of its end, clear of a dot there, raised off the axis and off the name below it."""
    colours, free = dict(zip(ends, LINES, strict=False)), 0.04 * axes.get_ylim()[1]
    for name, end in sorted(ends.items(), key=lambda entry: entry[1]):
        at = max(end, free)
        place: dict[str, Any] = {"xytext": (6, 0), "textcoords": "offset points", "va": "center"}
        axes.annotate(name, (x, at), fontsize=9, color=colours[name], annotation_clip=False, **place)
        free = at + 0.075 * axes.get_ylim()[1]
    axes.set_ylim(top=max(axes.get_ylim()[1], at))  # none above the axes


def bars(title: str, rows: Mapping[str, int]) -> Picture:
    """Plain horizontal bars of bytes, largest first, each with its size."""
    ordered = sorted(rows.items(), key=lambda row: -row[1])
    figure, axes = new_figure(title, height=0.9 + 0.27 * len(ordered), left=0.36)
    unit, name = axis_unit(ordered[0][1])
    for row, (_, size) in enumerate(ordered):
        axes.barh(row, size / unit, height=0.7, color=COLOURS["activations"])
        axes.text(size / unit, row, f" {format_bytes(size)}", va="center", fontsize=8.5, color=INK)
    axes.set_yticks(range(len(ordered)), [text for text, _ in ordered], fontsize=8.5)
    axes.invert_yaxis()
    axes.set_xlabel(name)
    axes.margins(x=0.16)
    rows_in_words = listed(f"{name} {format_bytes(size)}" for name, size in ordered)
    return as_picture(figure, title, f"Bars of bytes, the largest first: {rows_in_words}.")


def spans(title: str, rows: Mapping[str, Sequence[float]], x_label: str, log: bool = False) -> Picture:
    """A horizontal line for each of `rows` from its least to its greatest value, a dot at the first; in their order."""
    figure, axes = new_figure(title, height=0.9 + 0.27 * len(rows), left=0.26)
    for row, values in enumerate(rows.values()):
        axes.plot([min(values), max(values)], [row, row], color=LINES[5], linewidth=7, solid_capstyle="round")
        axes.plot(values[0], row, "o", color=INK, markersize=5)
    axes.set_yticks(range(len(rows)), list(rows), fontsize=8.5)
    axes.invert_yaxis()
    axes.set_xlabel(x_label)
    axes.margins(y=0.1)
    if log:
        axes.set_xscale("log")
        ticks = log_ticks(*axes.get_xlim())
        axes.set_xticks(ticks, [f"{value:,g}" for value in ticks])
        axes.minorticks_off()
    told = (f"{name} {min(values):.3f} to {max(values):.3f}, dot {values[0]:.3f}" for name, values in rows.items())
    return as_picture(figure, title, f"Lines from least to greatest {x_label}: {listed(told, 24)}.")


def levels(
    title: str, values: Tensor, grids: Mapping[str, Sequence[float]], bins: int = 120, x_label: str = "value"
) -> Picture:
    """A histogram of `values` with, under it, a row of ticks for the levels of each of `grids`."""
    figure, axes = new_figure(title, height=2.4 + 0.36 * len(grids))
    drawn = axes.hist(values.flatten().tolist(), bins=bins, color=LINES[5], alpha=0.75)
    counts, edges = ([float(number) for number in numbers] for numbers in drawn[:2])
    row = 0.16 * max(counts)
    for place, (colour, (name, ticks)) in enumerate(zip(LINES, grids.items(), strict=False)):
        at = -row * (place + 0.75)
        axes.vlines(ticks, at - 0.36 * row, at + 0.36 * row, color=colour, linewidth=2)
        axes.text(edges[0], at, f"{name}  ", ha="right", va="center", fontsize=9, color=colour)
    axes.set(xlim=(edges[0], edges[-1]), ylim=(-row * (len(grids) + 0.3), max(counts) * 1.05), yticks=[])
    axes.spines["left"].set_visible(False)
    axes.set_xlabel(x_label, fontsize=9)
    rows = listed(
        f"{name}, {len(ticks)} levels from {min(ticks):.3g} to {max(ticks):.3g}" for name, ticks in grids.items()
    )
    words = (
        f"A histogram of {values.numel():,} values from {edges[0]:.2g} to {edges[-1]:.2g}, and under it ticks: {rows}."
    )
    return as_picture(figure, title, words)


def channels(
    title: str, before: Tensor, after: Tensor, names: tuple[str, str], size: str = "largest absolute value"
) -> Picture:
    """A size for each channel, on a logarithmic scale: a dot before, a dot after, a line between. Bars need a zero."""
    figure, axes = new_figure(title, height=3.0, left=0.1)
    pairs = before.clamp(min=1e-3).tolist(), after.clamp(min=1e-3).tolist()
    axes.vlines(range(len(before)), *pairs, color=FAINT, linewidth=0.8)
    for values, name, colour, width in zip(pairs, names, (LINES[1], LINES[0]), (7, 4), strict=True):
        axes.plot(range(len(values)), values, ".", color=colour, markersize=width, label=name)
    lowest, highest = min(map(min, pairs)), max(map(max, pairs))
    axes.set(yscale="log", xlim=(-1, len(before)), ylim=(lowest / 2, highest * 4))  # room for the legend
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("channel", fontsize=9)
    axes.set_ylabel(size, fontsize=9)
    axes.legend(loc="upper right", frameon=False, fontsize=9, ncols=2)
    words = f"The {size} of {len(before)} channels, on a logarithmic scale. "
    spread = (
        f"{name}: median {float(each.median()):.2g}, highest {float(each.max()):.2g}"
        for name, each in zip(names, (before, after), strict=True)
    )
    return as_picture(figure, title, words + "; ".join(spread) + ".")


def lost(title: str, bits: Sequence[int], series: Mapping[str, Sequence[float]], y_label: str) -> Picture:
    """What each width loses, on a logarithmic scale: a curve for each of `series`.

    A width that loses nothing, or gains, has no place on such a scale, and no dot.
    """
    figure, axes = new_figure(title, height=3.2, left=0.12)
    for colour, (name, values) in zip(LINES, series.items(), strict=False):
        axes.plot(bits, values, "o-", color=colour, markersize=6, label=name)
    axes.set_yscale("log", nonpositive="mask")
    axes.set_xticks(bits)
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("bits", fontsize=9)
    axes.set_ylabel(y_label, fontsize=9)
    axes.legend(loc="upper right", frameon=False, fontsize=9)
    curves = []
    for name, values in series.items():
        points = zip(bits, values, strict=True)
        curves.append(f"{name}, {listed(f'{value:.3g} at {width} bits' for width, value in points)}")
    return as_picture(figure, title, f"{y_label}, on a logarithmic scale: {'; '.join(curves)}.")


def _phases(axes: Axes, phases: Sequence[str]) -> None:
    """Names each run of one phase at the top, where there is room, and draws a thin line between two."""
    start, taken, per_event = 0, 0.0, AXES_WIDTH / len(phases)
    for phase, run in groupby(phases):
        end = start + len(list(run))
        name, is_last = PHASE_NAMES.get(phase, ""), end == len(phases)
        width = text_width(name, 12)
        middle = min((start + end) / 2 * per_event, AXES_WIDTH - width / 2 - 4)
        if middle - width / 2 > taken and (is_last or width < 1.45 * (end - start) * per_event):
            write_on_top(axes, middle / per_event, name, anchor="center")
            taken = middle + width / 2
        if not is_last:
            axes.axvline(end, ymax=1 / HEADROOM, color=FAINT, linewidth=0.7, linestyle=":")
        start = end


def _legend(axes: Axes, figure: Figure) -> None:
    """Above the axes on the right would hide nothing, below costs height: a row under the x label."""
    under = (1.0, -0.38 / (figure.get_figheight() - 0.88))
    style = {"frameon": False, "fontsize": 8.5, "handlelength": 0.9, "columnspacing": 1.1}
    axes.legend(loc="upper right", bbox_to_anchor=under, ncols=7, **style)
