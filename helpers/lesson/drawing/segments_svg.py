"""The allocator's segments as rows of blocks, and bytes over time, as SVG: quick enough to follow a slider."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from ...memory.allocator import Replay, Segment, SegmentBlock
from ...memory.closed_form.breakdown import GIB
from .pictures import CARD, FAINT, INK, LINES, Picture

USED, MARKED, HOLE, WAITING = LINES[0], LINES[4], "#e4e2dc", LINES[5]
WIDTH, LEFT, RIGHT, TOP, ROW, BAR = 760, 112, 744, 40, 30, 22
STRIP = 74  # height of allocated and reserved over time
LETTER = 6.2  # width of a letter at size 11, on the wide side


def short(size_bytes: float) -> str:
    """A size for a crowded picture: no more digits than it has.

    >>> short(12 * 2**20), short(1536), short(40.5 * 2**20), short(512), short(3 * 2**30)
    ('12 MiB', '1.5 KiB', '40.5 MiB', '512 B', '3 GiB')
    """
    for unit, size in (("GiB", GIB), ("MiB", 2**20), ("KiB", 2**10)):
        if size_bytes >= size:
            return f"{round(size_bytes / size, 1):g} {unit}"
    return f"{size_bytes:g} B"


@dataclass(frozen=True)
class Frame:
    """What stays the same while a trace is stepped through: the bytes that fill a row, and how many rows there are."""

    scale_bytes: int
    rows: int

    @classmethod
    def of(cls, stages: Sequence[Replay]) -> Frame:
        """Room for the segments after each stage, and for the request that fails at the end."""
        sizes = [segment.size_bytes for stage in stages for segment in stage.segments]
        sizes += [stage.oom.size_bytes for stage in stages if stage.oom]
        rows = [len(stage.segments) + bool(stage.oom) for stage in stages]
        return cls(max(sizes, default=1), max([1, *rows]))

    def px(self, size_bytes: float) -> float:
        return size_bytes / self.scale_bytes * (RIGHT - LEFT)


def segments_svg(title: str, ran: Replay, full: Replay, frame: Frame, capacity_bytes: int | None = None) -> Picture:
    """The segments that `ran` ended with, the block of its last event marked, under it bytes over the whole trace.

    `full` is the replay of all of the trace, in whose strip the end of `ran` is a line.
    """
    marked = ran.outcomes[-1].address if ran.outcomes else 0
    strip_top = TOP + frame.rows * ROW + 40
    height = strip_top + STRIP + 30
    body = "".join(
        (
            *_pattern(),
            *_rows(ran.segments, frame, marked),
            *_refused(ran, frame),
            *_legend(strip_top - 24),
            *_strip(full, len(ran), strip_top, capacity_bytes),
        )
    )
    head = f'<text x="16" y="24" font-size="15" font-weight="600" fill="{INK}">{escape(title)}</text>'
    return Picture(
        title,
        svg=(
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
            f'style="max-width:100%" role="img" aria-label="{escape(title)}" font-family="sans-serif">'
            f'<rect width="{WIDTH}" height="{height}" rx="6" fill="{CARD}"/>{head}{body}</svg>'
        ),
    )


def _pattern() -> Iterator[str]:
    yield (
        f'<defs><pattern id="slack" width="5" height="5" patternUnits="userSpaceOnUse" '
        f'patternTransform="rotate(45)"><rect width="5" height="5" fill="{CARD}"/>'
        f'<rect width="2" height="5" fill="{USED}"/></pattern></defs>'
    )


def _rows(segments: Sequence[Segment], frame: Frame, marked: int) -> Iterator[str]:
    if not segments:
        yield _text(LEFT, TOP + 15, "no segments: nothing is reserved", 12, FAINT)
    for row, segment in enumerate(segments):
        y = TOP + row * ROW
        kind = "expandable" if segment.expandable else f"{segment.pool} pool"
        yield _text(LEFT - 8, y + 10, short(segment.size_bytes), 11.5, INK, "end")
        yield _text(LEFT - 8, y + 21, kind, 9.5, FAINT, "end")
        for block in segment.blocks:
            yield from _block(block, frame, LEFT + frame.px(block.address - segment.address), y, marked)


def _refused(ran: Replay, frame: Frame) -> Iterator[str]:
    """The request that no segment could serve, as an outline under them."""
    if ran.oom is None:
        return
    y, words = TOP + len(ran.segments) * ROW, f"{ran.oom.name} {short(ran.oom.size_bytes)}"
    yield (
        f'<rect class="refused" x="{LEFT}" y="{y}" width="{frame.px(ran.oom.size_bytes):.1f}" height="{BAR}" '
        f'fill="none" stroke="{INK}" stroke-width="1.5" stroke-dasharray="4 3"/>'
    )
    yield _text(LEFT + 8, y + 15, f"{words}: {ran.oom.reason}, out of memory", 11, INK)
    yield _text(LEFT - 8, y + 15, "refused", 11.5, INK, "end")


def _block(block: SegmentBlock, frame: Frame, x: float, y: int, marked: int) -> Iterator[str]:
    width = max(frame.px(block.size_bytes), 0.6)
    colour = HOLE if block.is_free else MARKED if block.address == marked else USED
    told = "free" if block.is_free else f"{block.name}, {block.requested_bytes:,} B asked for"
    edge = INK if block.address == marked else CARD
    yield (
        f'<rect class="block" data-state="{block.state}" x="{x:.1f}" y="{y}" width="{width:.1f}" height="{BAR}" '
        f'fill="{colour}" stroke="{edge}"><title>{escape(told)}: {block.size_bytes:,} B</title></rect>'
    )
    spare = 0 if block.is_free else frame.px(block.size_bytes - block.requested_bytes)
    if spare > 1:
        yield (
            f'<rect class="slack" x="{x + width - spare:.1f}" y="{y + 0.5}" width="{spare - 0.5:.1f}" '
            f'height="{BAR - 1}" fill="url(#slack)"/>'
        )
    words = _fitting(block, width - spare)
    if words:
        ink = "white" if colour == USED else INK
        yield _text(x + (width - spare) / 2, y + 15, words, 11, ink, "middle")


def _fitting(block: SegmentBlock, width: float) -> str:
    """As much of "name, size" as the block is wide."""
    size = short(block.size_bytes)
    wanted = [size] if block.is_free else [f"{block.name} {size}", block.name]
    return next((words for words in wanted if LETTER * len(words) + 6 <= width), "")


def _legend(y: float) -> Iterator[str]:
    x = float(LEFT)
    for fill, words in (
        (USED, "in use"),
        (MARKED, "by this event"),
        (HOLE, "free, kept in the cache"),
        ("url(#slack)", "more than was asked for"),
    ):
        yield f'<rect x="{x:.0f}" y="{y - 9}" width="10" height="10" fill="{fill}"/>'
        yield _text(x + 14, y, words, 11, INK)
        x += 34 + LETTER * len(words)


def _strip(full: Replay, count: int, top: float, capacity_bytes: int | None) -> Iterator[str]:
    """Reserved as an outline, allocated filled, the gap between them pale; where the trace stands as a line."""
    highest = max(capacity_bytes or 0, full.peak_reserved_bytes, 1) * 1.04
    across, bottom = (RIGHT - LEFT) / max(len(full), 1), top + STRIP

    def outline(series: Sequence[int]) -> str:
        points = [(LEFT, bottom)]
        for at, value in enumerate(series):
            y = bottom - value / highest * STRIP
            points += [(LEFT + at * across, y), (LEFT + (at + 1) * across, y)]
        return " ".join(f"{x:.1f},{y:.1f}" for x, y in [*points, (points[-1][0], bottom)])

    yield f'<polygon class="reserved" points="{outline(full.reserved)}" fill="{HOLE}" stroke="{FAINT}"/>'
    yield f'<polygon class="allocated" points="{outline(full.allocated)}" fill="{USED}" fill-opacity="0.85"/>'
    x = LEFT + count * across
    yield _line(x, top - 4, x, bottom + 4, MARKED, 2)
    yield _line(LEFT, bottom, RIGHT, bottom, FAINT)
    yield _text(LEFT - 8, top + 24, "reserved", 11, FAINT, "end")
    yield _text(LEFT - 8, bottom - 8, "allocated", 11, USED, "end")
    if capacity_bytes:
        y = bottom - capacity_bytes / highest * STRIP
        yield _line(LEFT, y, RIGHT, y, INK, 1.5, ' stroke-dasharray="5 3"')
        yield _text(LEFT - 8, y + 4, f"{short(capacity_bytes)} card", 11, INK, "end")
    yield _text(RIGHT, bottom + 17, "events, in order", 11, FAINT, "end")


def _text(x: float, y: float, words: str, size: float, colour: str, anchor: str = "start") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{colour}" text-anchor="{anchor}">'
        f"{escape(words)}</text>"
    )


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, width: float = 1, more: str = "") -> str:
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" '
        f'stroke-width="{width}"{more}/>'
    )
