"""Figures of the caching allocator, for notebooks: what its segments hold, and allocated beside reserved over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...catalog.errors import WorkbookError
from ...memory.allocator import MIB, Replay, Segment, SegmentBlock, Snapshot
from ...memory.closed_form.breakdown import GIB, format_bytes
from .figures import as_picture, new_figure
from .pictures import CARD, INK, Picture
from .segments_svg import HOLE, USED, WAITING, short

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = {"allocated": USED, "free": HOLE, "pending": WAITING}
SPARE = "more than was asked for"
AXES_INCHES, LETTER_INCHES = 5.85, 0.083  # of a figure 7.6 inches wide, at font size 8
WORDS = {"allocated": "in use", "free": "free, kept in the cache", "pending": "waits for another stream"}


def segments(title: str, source: Replay | Snapshot | Sequence[Segment], rows: int = 14) -> Picture:
    """One row per segment by address, its blocks in order: used, free in the cache, hatched what nobody asked for.

    Of more than `rows` segments the largest are drawn, and the axis says how many are not. WorkbookError for none.
    """
    every = source if isinstance(source, (list, tuple)) else source.segments
    if not every:
        raise WorkbookError("there are no segments to draw", "at least one", "draw before everything is given back")
    drawn = _largest(every, rows)
    figure, axes = new_figure(title, height=1.15 + 0.34 * len(drawn))
    unit, name = _unit(max(segment.size_bytes for segment in drawn))
    span = 1.01 * max(segment.size_bytes for segment in drawn) / unit
    for row, segment in enumerate(drawn):
        _row(axes, row, segment, unit, span)
    axes.set_yticks(range(len(drawn)), [_label(segment) for segment in drawn], fontsize=8.5)
    axes.set_ylim(len(drawn) - 0.45, -0.55)
    axes.set_xlim(0, span)
    left_out = sum(segment.size_bytes for segment in every) - sum(segment.size_bytes for segment in drawn)
    more = f"; {len(every) - len(drawn)} smaller segments, {format_bytes(left_out)}, are not drawn" if left_out else ""
    axes.set_xlabel(f"{name} from each segment's beginning{more}")
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    _legend(axes)
    return as_picture(figure, title)


def reserved(title: str, replay: Replay, capacity_bytes: int | None = None) -> Picture:
    """Allocated and reserved after each event, the gap between them shaded, its share at the peak in the legend.

    `capacity_bytes` draws where the device ends.
    """
    if not len(replay):
        raise WorkbookError("the replay has no events", "at least one", "replay a trace first")
    figure, axes = new_figure(title, height=3.2)
    unit, name = _unit(max(replay.peak_reserved_bytes, capacity_bytes or 0))
    # A step's value holds until the next event, so the last one is drawn once more.
    x = range(len(replay) + 1)
    used, held = ([value / unit for value in (*series, series[-1])] for series in (replay.allocated, replay.reserved))
    most, live = format_bytes(replay.peak_reserved_bytes), format_bytes(replay.peak_allocated_bytes)
    axes.fill_between(x, 0, used, step="post", color=USED, linewidth=0, label=f"allocated, at most {live}")
    axes.fill_between(x, used, held, step="post", color=HOLE, linewidth=0, label="reserved and not in use")
    axes.step(
        x,
        held,
        where="post",
        color=INK,
        linewidth=1.2,
        label=f"reserved, at most {most}, {replay.fragmentation:.0%} of it idle",
    )
    if capacity_bytes:
        axes.axhline(capacity_bytes / unit, color=INK, linestyle="--", linewidth=1.1)
        axes.text(
            len(replay),
            capacity_bytes / unit,
            f"the card ends at {format_bytes(capacity_bytes)} ",
            ha="right",
            va="bottom",
            fontsize=8.5,
            color=INK,
        )
    axes.set_xlim(0, len(replay))
    axes.set_ylim(0, 1.18 * max(max(held), (capacity_bytes or 0) / unit, 1e-9))
    axes.set_xlabel("events, in order")
    axes.set_ylabel(name)
    _legend(axes)
    return as_picture(figure, title)


def _row(axes: Axes, row: int, segment: Segment, unit: int, span: float) -> None:
    for block in segment.blocks:
        left, width = (block.address - segment.address) / unit, block.size_bytes / unit
        spare = 0 if block.is_free else (block.size_bytes - block.requested_bytes) / unit
        axes.barh(
            row,
            width,
            left=left,
            height=0.7,
            color=COLOURS[block.state],
            edgecolor=CARD,
            linewidth=0.6,
            label=WORDS[block.state],
        )
        if spare > span / 400:
            axes.barh(
                row,
                spare,
                left=left + width - spare,
                height=0.7,
                color=CARD,
                edgecolor=USED,
                hatch="//////",
                linewidth=0,
                label=SPARE,
            )
        _words(axes, row, block, left + (width - spare) / 2, (width - spare) / span * AXES_INCHES)


def _words(axes: Axes, row: int, block: SegmentBlock, middle: float, inches: float) -> None:
    """The block's name and size, as much of it as there is room for."""
    size = short(block.size_bytes)
    wanted = [f"{block.name} {size}", block.name, size] if block.name else [size]
    words = next((text for text in wanted if len(text) * LETTER_INCHES < inches), "")
    colour = "white" if block.state == "allocated" else INK
    axes.text(middle, row, words, ha="center", va="center", fontsize=8, color=colour)


def _largest(every: Sequence[Segment], rows: int) -> list[Segment]:
    order = sorted(range(len(every)), key=lambda at: -every[at].size_bytes)[:rows]
    return [every[at] for at in sorted(order)]


def _label(segment: Segment) -> str:
    return f"{short(segment.size_bytes)}, {'expandable' if segment.expandable else segment.pool}"


def _legend(axes: Axes) -> None:
    """Each word once, under the axes."""
    handles, names = axes.get_legend_handles_labels()
    once = {name: handle for handle, name in zip(handles, names, strict=True)}
    once = {name: once.pop(name) for name in (*WORDS.values(), SPARE) if name in once} | once
    drop = -0.38 / (axes.figure.get_figheight() - 0.88)
    axes.legend(
        once.values(),
        once,
        loc="upper right",
        bbox_to_anchor=(1.0, drop),
        ncols=4,
        frameon=False,
        fontsize=8.5,
        handlelength=1.2,
        columnspacing=1.1,
    )


def _unit(size_bytes: float) -> tuple[int, str]:
    return (GIB, "GiB") if size_bytes >= 2 * GIB else (MIB, "MiB")
