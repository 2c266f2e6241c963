"""The workbook's figures. Each takes what an instrument returned and gives a Picture; titles say what to see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ...memory.closed_form.breakdown import GIB, PARTS, format_bytes
from .figures import as_picture, new_figure
from .pictures import COLOURS, FAINT, INK, LINES, WEIGHTS, Picture, colour_of, label

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ...memory.meter.timeline import Timeline

MIB = 2**20
ORDER = (*WEIGHTS, *PARTS)
PHASE_NAMES = {"forward": "forward", "backward": "backward", "optimizer step": "optimizer"}


def stacked_bars(
    title: str,
    rows: Mapping[str, Mapping[str, int]] | Sequence[tuple[str, Mapping[str, int]]],
    capacities: Mapping[str, int] | None = None,
) -> Picture:
    """One horizontal stacked bar per row (bytes by part), its total at the end; dashed lines for `capacities`.

    `rows` is a mapping, or (label, parts) pairs where labels repeat.
    """
    pairs = list(rows.items()) if isinstance(rows, Mapping) else list(rows)
    figure, axes = new_figure(title, height=1.2 + 0.4 * len(pairs))
    unit, name = _unit(max(sum(parts.values()) for _, parts in pairs))
    seen: set[str] = set()
    for row, (_, parts) in enumerate(pairs):
        left = 0.0
        for part in sorted(parts, key=_order):
            size = parts[part] / unit
            axes.barh(
                row, size, left=left, height=0.68, color=colour_of(part), label=None if part in seen else label(part)
            )
            seen.add(part)
            left += size
        axes.text(left, row, f" {left:,.1f}", va="center", fontsize=9, color=INK)
    for text, capacity in (capacities or {}).items():
        axes.axvline(capacity / unit, color=INK, linestyle="--", linewidth=1.2)
        axes.text(capacity / unit, -0.68, f"{text} ", ha="right", va="center", fontsize=8.5, color=INK)
    axes.set_yticks(range(len(pairs)), [text for text, _ in pairs])
    axes.set_ylim(len(pairs) - 0.5, -0.9 if capacities else -0.6)
    axes.set_xlabel(name)
    axes.margins(x=0.1)
    _legend(axes)
    return as_picture(figure, title)


def timeline(title: str, steps: Timeline, budget_bytes: int | None = None) -> Picture:
    """Live bytes by part over one step, allocation by allocation; phases named, the peak marked.

    `budget_bytes` draws a predicted peak as a dashed line.
    """
    figure, axes = new_figure(title, height=3.4)
    totals = [steps.total(at) for at in range(len(steps))]
    peak = max(range(len(totals)), key=totals.__getitem__)
    unit, name = _unit(totals[peak])
    parts = sorted(steps.parts, key=_order)
    axes.stackplot(
        range(len(steps)),
        [[size / unit for size in steps.parts[part]] for part in parts],
        colors=[COLOURS[part] for part in parts],
        labels=[label(part) for part in parts],
        linewidth=0,
        step="post",
    )
    axes.plot([peak], [totals[peak] / unit], "o", color=INK, markersize=4)
    axes.annotate(
        f"peak {format_bytes(totals[peak])}",
        (peak, totals[peak] / unit),
        xytext=(6, 6),
        textcoords="offset points",
        fontsize=9,
        color=INK,
    )
    if budget_bytes:
        axes.axhline(budget_bytes / unit, color=INK, linestyle="--", linewidth=1)
        axes.text(
            0, budget_bytes / unit, f"predicted {format_bytes(budget_bytes)}", va="bottom", fontsize=8.5, color=INK
        )
    _phases(axes, steps.phases)
    axes.set_xlim(0, len(steps))
    axes.set_ylim(0, 1.22 * totals[peak] / unit)
    axes.set_xlabel("allocations and frees, in order")
    axes.set_ylabel(name)
    _legend(axes)
    return as_picture(figure, title)


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
    figure, axes = new_figure(title, height=3.0)
    for colour, (name, values) in zip(LINES, series.items(), strict=False):
        axes.plot(x, values, color=colour, linewidth=2)
        axes.annotate(f" {name}", (x[-1], values[-1]), va="center", fontsize=9, color=colour)
        dots = (points or {}).get(name)
        if dots:
            axes.plot(*dots, "o", color=colour, markersize=6, markeredgecolor="white")
    if log:
        axes.set_xscale("log", base=2)
        axes.set_xticks(x, [f"{value:,}" for value in x])
        axes.minorticks_off()
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.set_ylim(bottom=0)
    figure.subplots_adjust(right=0.8)
    return as_picture(figure, title)


def bars(title: str, rows: Mapping[str, int]) -> Picture:
    """Plain horizontal bars of bytes, largest first, each with its size."""
    ordered = sorted(rows.items(), key=lambda row: -row[1])
    figure, axes = new_figure(title, height=0.9 + 0.27 * len(ordered))
    unit, name = _unit(ordered[0][1])
    for row, (_, size) in enumerate(ordered):
        axes.barh(row, size / unit, height=0.7, color=COLOURS["activations"])
        axes.text(size / unit, row, f" {format_bytes(size)}", va="center", fontsize=8.5, color=INK)
    axes.set_yticks(range(len(ordered)), [text for text, _ in ordered], fontsize=8.5)
    axes.invert_yaxis()
    axes.set_xlabel(name)
    axes.margins(x=0.16)
    figure.subplots_adjust(left=0.36)
    return as_picture(figure, title)


def _phases(axes: Axes, phases: Sequence[str]) -> None:
    """Names each run of one phase at the top and draws a thin line between two."""
    start = 0
    for at in range(1, len(phases) + 1):
        if at == len(phases) or phases[at] != phases[start]:
            if at - start > len(phases) * 0.04:
                axes.text(
                    (start + at) / 2,
                    0.985,
                    PHASE_NAMES.get(phases[start], ""),
                    transform=axes.get_xaxis_transform(),
                    ha="center",
                    va="top",
                    fontsize=9,
                    color=FAINT,
                )
            if at < len(phases):
                axes.axvline(at, color=FAINT, linewidth=0.7, linestyle=":")
            start = at


def _legend(axes: Axes) -> None:
    """Above the axes on the right would hide nothing, below costs height: a row under the x label."""
    handles, names = axes.get_legend_handles_labels()
    known = [label(part) for part in ORDER]
    order = sorted(range(len(names)), key=lambda at: known.index(names[at]) if names[at] in known else len(known))
    handles, names = [handles[at] for at in order], [names[at] for at in order]
    axes.legend(
        handles,
        names,
        loc="upper right",
        bbox_to_anchor=(1.0, -0.38 / (axes.figure.get_figheight() - 0.88)),
        ncols=7,
        frameon=False,
        fontsize=8.5,
        handlelength=0.9,
        columnspacing=1.1,
    )


def _order(part: str) -> int:
    return ORDER.index(part) if part in ORDER else len(ORDER)


def _unit(size_bytes: float) -> tuple[int, str]:
    return (GIB, "GiB") if size_bytes >= 2 * GIB else (MIB, "MiB")
