"""Pictures of bargains: levels over a histogram, error against bits, channel sizes, quality or time against bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from .drawing.figures import as_picture, new_figure
from .drawing.labels import Labels
from .drawing.pictures import FAINT, LINES, Picture

if TYPE_CHECKING:
    from torch import Tensor

MB = 1e6
TICKS = [digit * 10**power for power in range(-3, 6) for digit in (1, 2, 3, 5)]


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
    """A size for each channel on a logarithmic scale: bars before, dots after."""
    figure, axes = new_figure(title, height=3.0)
    figure.subplots_adjust(left=0.1)
    axes.vlines(range(len(before)), 1e-4, before.tolist(), color=LINES[1], linewidth=1.6, label=names[0])
    axes.plot(range(len(after)), after.tolist(), ".", color=LINES[0], markersize=4, label=names[1])
    axes.set_yscale("log")
    low = float(after.clamp(min=1e-3).min())
    axes.set_ylim(low / 2, float(max(before.max(), after.max())) * 2)
    axes.set_xlim(-1, len(before))
    axes.set_xlabel("input channel", fontsize=9)
    axes.set_ylabel("largest |value|", fontsize=9)
    axes.legend(loc="upper right", frameon=False, fontsize=9, ncols=2)
    return as_picture(figure, title)


def lost(title: str, bits: Sequence[int], series: Mapping[str, Sequence[float]], y_label: str, noise: float) -> Picture:
    """What each width loses, on a logarithmic scale: a curve for each of `series`.

    What is below `noise` is drawn on the dotted line at `noise`: it cannot be told from nothing.
    """
    figure, axes = new_figure(title, height=3.2)
    figure.subplots_adjust(left=0.12)
    for colour, (name, values) in zip(LINES, series.items(), strict=False):
        axes.plot(bits, [max(value, noise) for value in values], "o-", color=colour, markersize=6, label=name)
    axes.axhline(noise, color=FAINT, linestyle=":", linewidth=1)
    axes.text(bits[0], noise, "noise", ha="left", va="bottom", fontsize=8.5, color=FAINT)
    axes.set_yscale("log")
    axes.set_xticks(bits)
    axes.yaxis.set_major_formatter(lambda y, _: f"{y:g}")
    axes.set_xlabel("bits", fontsize=9)
    axes.set_ylabel(y_label, fontsize=9)
    axes.legend(loc="upper right", frameon=False, fontsize=9)
    return as_picture(figure, title)


def front(title: str, points: Mapping[str, tuple[float, float]], y_label: str, best: Sequence[str] = ()) -> Picture:
    """Quality against bytes: a named dot for each of `points` (bytes, lower-is-better score).

    The dots in `best` are joined: no other has both fewer bytes and a better score.
    """
    figure, axes = new_figure(title, height=4.0)
    figure.subplots_adjust(left=0.11, right=0.93)
    for number, (size, score) in enumerate(points.values()):
        axes.plot([size / MB], [score], "o", markersize=7, color=LINES[number % len(LINES)])
    if best:
        joined = sorted(points[name] for name in best)
        axes.plot([size / MB for size, _ in joined], [score for _, score in joined], color=FAINT, linewidth=1, zorder=1)
    axes.set_xscale("log")
    sizes = [size / MB for size, _ in points.values()]
    axes.set_xlim(min(sizes) / 1.2, max(sizes) * 1.5)
    axes.set_xticks([tick for tick in TICKS if min(sizes) / 1.2 <= tick <= max(sizes) * 1.5])
    axes.minorticks_off()
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    axes.margins(y=0.14)
    axes.set_xlabel("MB of weights", fontsize=9)
    axes.set_ylabel(y_label, fontsize=9)
    named = Labels(axes)
    if best:
        named.avoid_line(*zip(*((size / MB, score) for size, score in joined), strict=True))
    for size, score in points.values():
        named.avoid_point(size / MB, score)
    for number, (name, (size, score)) in enumerate(points.items()):
        named.place((size / MB, score), name, LINES[number % len(LINES)])
    return as_picture(figure, title)


def trade(
    title: str,
    points: Mapping[str, tuple[float, float]],
    front: Sequence[tuple[float, float]],
    x_label: str,
    y_label: str,
) -> Picture:
    """Named dots (x, y), both better when lower, over the curve of the best that can be had."""
    figure, axes = new_figure(title, height=3.6)
    figure.subplots_adjust(left=0.1)
    axes.plot(*zip(*front, strict=True), "-", color=FAINT, linewidth=3, alpha=0.5)
    for number, point in enumerate(points.values()):
        axes.plot(*([one] for one in point), "o", markersize=7, color=LINES[number % len(LINES)])
    axes.margins(0.14)
    axes.set_xlabel(x_label, fontsize=9)
    axes.set_ylabel(y_label, fontsize=9)
    named = Labels(axes)
    for point in points.values():
        named.avoid_point(*point)
    for number, (name, point) in enumerate(points.items()):
        named.place(point, name, LINES[number % len(LINES)])
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
