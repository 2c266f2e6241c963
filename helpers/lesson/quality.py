"""Pictures of rounding: levels over a histogram, error against bits, channel sizes, quality against bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from .figures import as_picture, new_figure
from .labels import Labels
from .pictures import FAINT, INK, LINES, Picture

if TYPE_CHECKING:
    from torch import Tensor

MB = 1e6


def levels(title: str, values: Tensor, grids: Mapping[str, Sequence[float]], bins: int = 120) -> Picture:
    """A histogram of `values` with, under it, a row of ticks for the levels of each of `grids`."""
    figure, axes = new_figure(title, height=2.4 + 0.36 * len(grids))
    figure.subplots_adjust(left=0.2)
    counts, edges, _ = axes.hist(values.flatten().tolist(), bins=bins, color=LINES[5], alpha=0.75)
    row = 0.16 * max(counts)
    for place, (colour, (name, ticks)) in enumerate(zip(LINES, grids.items(), strict=False)):
        at = -row * (place + 0.75)
        axes.vlines(ticks, at - 0.36 * row, at + 0.36 * row, color=colour, linewidth=2)
        axes.text(edges[0], at, f"{name}  ", ha="right", va="center", fontsize=9, color=colour)
    axes.set_ylim(-row * (len(grids) + 0.3), max(counts) * 1.05)
    axes.set_xlim(edges[0], edges[-1])
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("value", fontsize=9)
    return as_picture(figure, title)


def channels(title: str, before: Tensor, after: Tensor, names: tuple[str, str]) -> Picture:
    """Two rows of bars on one logarithmic scale: a size for each channel, before and after."""
    figure, axes = new_figure(title, height=3.0)
    figure.subplots_adjust(left=0.1)
    for values, colour, name, width in ((before, LINES[1], names[0], 1.6), (after, LINES[0], names[1], 0.8)):
        axes.vlines(range(len(values)), 1e-4, values.tolist(), color=colour, linewidth=width, label=name)
    axes.set_yscale("log")
    low = float(after.clamp(min=1e-3).min())
    axes.set_ylim(low / 2, float(max(before.max(), after.max())) * 2)
    axes.set_xlim(-1, len(before))
    axes.set_xlabel("input channel", fontsize=9)
    axes.set_ylabel("largest |value|", fontsize=9)
    axes.legend(loc="upper right", frameon=False, fontsize=9, ncols=2)
    return as_picture(figure, title)


def front(title: str, points: Mapping[str, tuple[float, float]], y_label: str, best: Sequence[str] = (),
          limit: tuple[str, float] | None = None) -> Picture:  # fmt: skip
    """Quality against bytes: a named dot for each of `points` (bytes, lower-is-better score, logarithmic).

    The dots in `best` are joined: no other has both fewer bytes and a better score. `limit` is a dashed line.
    """
    figure, axes = new_figure(title, height=4.0)
    figure.subplots_adjust(left=0.11, right=0.93)
    for number, (size, score) in enumerate(points.values()):
        axes.plot([size / MB], [score], "o", markersize=7, color=LINES[number % len(LINES)])
    if best:
        joined = sorted(points[name] for name in best)
        axes.plot([size / MB for size, _ in joined], [score for _, score in joined], color=FAINT, linewidth=1, zorder=1)
    axes.set_yscale("log")
    axes.margins(0.12)
    if limit:
        axes.axhline(limit[1], color=INK, linestyle="--", linewidth=1)
        axes.text(axes.get_xlim()[1], limit[1], limit[0], ha="right", va="bottom", fontsize=8.5, color=INK)
    axes.set_xlabel("MB of weights", fontsize=9)
    axes.set_ylabel(y_label, fontsize=9)
    named = Labels(axes)
    for size, score in points.values():
        named.avoid_point(size / MB, score)
    for number, (name, (size, score)) in enumerate(points.items()):
        named.place((size / MB, score), name, LINES[number % len(LINES)])
    return as_picture(figure, title)


def unbeaten(points: Mapping[str, tuple[float, float]]) -> list[str]:
    """The names that no other beats in both numbers: the Pareto front, fewest bytes first.

    >>> unbeaten({"a": (1, 9.0), "b": (2, 5.0), "c": (3, 6.0)})
    ['a', 'b']
    """
    kept: list[str] = []
    for name in sorted(points, key=lambda name: points[name]):
        if not kept or points[name][1] < points[kept[-1]][1]:
            kept.append(name)
    return kept
