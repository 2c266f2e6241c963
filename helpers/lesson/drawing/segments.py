"""The caching allocator: what its segments hold, and allocated beside reserved over time."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ...catalog.errors import WorkbookError
from ...memory.allocator import AllocationRequest, AllocatorReplay, Segment, SegmentBlock, Snapshot, replay
from ...memory.breakdown import format_bytes
from ..units import axis_unit, short_bytes
from .axes import Axis, Plane, bottom, round_ticks
from .marks import CARD, FAINT, INK, LINES, ON_COLOUR, Area, At, Box, Line, Mark, TextMark, legend, text_width
from .pictures import Card
from .words import listed

USED, MARKED, HOLE, WAITING = LINES[0], LINES[4], "#e4e2dc", LINES[5]
LEFT, RIGHT, TOP, ROW, BAR = 112, 744, 40, 30, 22
STRIP = 74  # height of allocated and reserved over time, under the segments
MARKED_STATE, SPARE, OPEN = "marked", "spare", "open"
MOST_BLOCKS = 40  # that are told one by one to whoever cannot see them
STATES = {  # of a block, in the order of the legend: how it is drawn, and what that means
    "allocated": (Box(0, 0, 0, 0, USED), "in use"),
    MARKED_STATE: (Box(0, 0, 0, 0, MARKED), "by this event"),
    "free": (Box(0, 0, 0, 0, HOLE), "free, kept in the cache"),
    "pending": (Box(0, 0, 0, 0, WAITING), "waits for another stream"),
    SPARE: (Box(0, 0, 0, 0, CARD, "stripes", USED), "more than was asked for"),
    OPEN: (Box(0, 0, 0, 0, CARD, edge=FAINT, dashed=True), "the driver's: in no segment"),
}


@dataclass(frozen=True)
class SegmentGrid:
    """What stays the same while a trace is stepped through: the bytes that fill a row, and how many rows there are."""

    row_bytes: int
    rows: int

    @classmethod
    def of(cls, stages: Sequence[AllocatorReplay]) -> SegmentGrid:
        """Room for the segments after each stage, and for the request that fails at the end."""
        sizes = [segment.size_bytes for stage in stages for segment in stage.segments]
        sizes += [stage.oom.size_bytes for stage in stages if stage.oom]
        rows = [len(stage.segments) + bool(stage.oom) for stage in stages]
        return cls(max(sizes, default=1), max([1, *rows]))

    def px(self, size_bytes: float) -> float:
        return size_bytes / self.row_bytes * (RIGHT - LEFT)


def segments(title: str, source: AllocatorReplay | Snapshot | Sequence[Segment], rows: int = 14) -> Card:
    """One row per segment by address, its blocks in order: used, free in the cache, hatched what nobody asked for.

    Of more than `rows` segments the largest are drawn, and the axis says how many are not. WorkbookError for none.
    """
    every = source.segments if isinstance(source, (AllocatorReplay, Snapshot)) else source
    if not every:
        raise WorkbookError("there are no segments to draw", "at least one", "draw before everything is given back")
    drawn = _largest(every, rows)
    grid = SegmentGrid(max(segment.size_bytes for segment in drawn), len(drawn))
    unit, name = axis_unit(grid.row_bytes)
    axis, foot = Axis(0, grid.row_bytes / unit, LEFT, RIGHT), TOP + ROW * len(drawn)
    left_out = sum(segment.size_bytes for segment in every) - sum(segment.size_bytes for segment in drawn)
    more = f"; {len(every) - len(drawn)} smaller segments, {format_bytes(left_out)}, are not drawn" if left_out else ""
    ticks = {value: f"{value:g}" for value in round_ticks(0, axis.high, 9)}
    blocks = [block for segment in drawn for block in segment.blocks]
    spare = {SPARE} if any(grid.px(_spare(block)) > 1 for block in blocks) else set()
    body = [
        *_rows(drawn, grid),
        *bottom(axis, foot, ticks, f"{name} from each segment's beginning{more}"),
        *_legend({block.state for block in blocks} | spare, foot + 60),
    ]
    return Card(title, foot + 76, tuple(body), f"{_in_words(drawn)}{more}.")


def on_card(title: str, ran: AllocatorReplay | Mapping[str, AllocatorReplay], capacity_bytes: int) -> Card:
    """All of a card in one row: its segments end to end, framed, what is in none of them, and the refused request.

    Several replays have a row each, by name. WorkbookError for a card smaller than its segments.
    """
    named = {f"{short_bytes(capacity_bytes)} card": ran} if isinstance(ran, AllocatorReplay) else ran
    grid, states, y = SegmentGrid(capacity_bytes, 1), set[str](), float(TOP)
    body, told = list[Mark](), list[str]()
    for name, one in named.items():
        open_bytes = capacity_bytes - sum(segment.size_bytes for segment in one.segments)
        if open_bytes < 0:
            what, expected = f"a card of {format_bytes(capacity_bytes)}", "one that holds its segments"
            raise WorkbookError(what, expected, "pass what the replay had")
        states |= {block.state for segment in one.segments for block in segment.blocks}
        states |= {OPEN} if open_bytes else set()
        body += [TextMark(LEFT - 8, y + 15, name, anchor="end"), *_end_to_end(one.segments, open_bytes, grid, y)]
        body += _refused(one, grid, y + ROW)
        y += (1 + bool(one.oom)) * ROW
        words = f"{_in_words(one.segments)}; {short_bytes(open_bytes)} in no segment.{_refusal_in_words(one)}"
        told.append(words if one is ran else f"{name}: {words}")
    return Card(title, y + 30, (*body, *_legend(states, y + 12)), " ".join(told))


def one_by_one(title: str, events: Sequence[AllocationRequest], first: int = 0) -> Card:
    """A segment's life: a row after each event from number `first` on, how it was split and merged.

    WorkbookError where the events need no segment, or more than one.
    """
    stages = [replay(events[: number + 1]) for number in range(first, len(events))]
    if not stages or any(len(stage.segments) != 1 for stage in stages):
        raise WorkbookError(
            "these events do not share one segment", "one segment after each", "draw `segments` instead"
        )
    every = [stage.segments[0] for stage in stages]
    grid = SegmentGrid(max(segment.size_bytes for segment in every), len(every))
    body: list[Mark] = []
    for row, (request, stage) in enumerate(zip(events[first:], stages, strict=True)):
        y = TOP + row * ROW
        body.append(TextMark(LEFT - 8, y + 15, f"{request.action} {request.name}", 12, anchor="end"))
        for block in stage.segments[0].blocks:
            x = LEFT + grid.px(block.address - stage.segments[0].address)
            body += _block(block, grid, x, y, block.address == stage.outcomes[-1].address)
    blocks = [block for segment in every for block in segment.blocks]
    states = {block.state for block in blocks} | {MARKED_STATE} | ({SPARE} if any(map(_spare, blocks)) else set())
    foot = TOP + ROW * len(every)
    told = (f"{request.action} {request.name}: {listed(map(_block_in_words, segment.blocks))}"
            for request, segment in zip(events[first:], every, strict=True))  # fmt: skip
    return Card(title, foot + 22, (*body, *_legend(states, foot + 6)), f"One segment. {'; '.join(told)}.")


def segments_at_event(
    title: str, ran: AllocatorReplay, full: AllocatorReplay, grid: SegmentGrid, capacity_bytes: int | None = None
) -> Card:
    """The segments that `ran` ended with, the block of its last event marked, under it bytes over the whole trace.

    `full` is the replay of all of the trace, in whose strip the end of `ran` is a line.
    """
    marked = ran.outcomes[-1].address if ran.outcomes else 0
    top = TOP + grid.rows * ROW + 40
    highest = 1.04 * max(capacity_bytes or 0, full.peak_reserved_bytes, 1)
    plane = Plane(Axis(0, max(len(full), 1), LEFT, RIGHT), Axis(0, highest, top + STRIP, top))
    body = [
        *_rows(ran.segments, grid, marked),
        *_refused(ran, grid, TOP + len(ran.segments) * ROW),
        *_legend({*STATES} - {"pending", OPEN}, top - 24),
        *_series(plane, full, FAINT),
        *_strip_labels(plane, len(ran), capacity_bytes),
    ]
    return Card(title, top + STRIP + 30, tuple(body), _event_in_words(ran))


def reserved(title: str, replay: AllocatorReplay, capacity_bytes: int | None = None) -> Card:
    """Allocated and reserved after each event, the gap between them shaded, both peaks in the legend.

    `capacity_bytes` draws where the device ends.
    """
    if not len(replay):
        raise WorkbookError("the replay has no events", "at least one", "replay a trace first")
    most = max(replay.peak_reserved_bytes, capacity_bytes or 0, 1)
    highest, (unit, name) = 1.18 * most, axis_unit(most)
    plane = Plane(Axis(0, len(replay), 74, RIGHT), Axis(0, highest, 268, 58))
    across = {value: f"{value:g}" for value in round_ticks(0, len(replay), 9)}
    up = {value * unit: f"{value:g}" for value in round_ticks(0, highest / unit)}
    body = [*_series(plane, replay, INK), *plane.frame(across, up, "events, in order", name)]
    if capacity_bytes:
        line = plane.level(capacity_bytes, 1.5, kind="capacity")
        end = f"the card ends at {format_bytes(capacity_bytes)}"
        body += [line, TextMark(RIGHT, line.points[0][1] - 5, end, 11, anchor="end", halo=True)]
    held, live = format_bytes(replay.peak_reserved_bytes), format_bytes(replay.peak_allocated_bytes)
    entries = {USED: f"allocated, at most {live}", HOLE: "reserved and not in use", INK: f"reserved, at most {held}"}
    styled = ((Box(0, 0, 0, 0, fill), text) for fill, text in entries.items())
    card = f" The card ends at {format_bytes(capacity_bytes)}." if capacity_bytes else ""
    words = f"Bytes over {len(replay):,} events: {entries[USED]}; {entries[INK]}.{card}"
    return Card(title, 342, (*body, *legend(styled, 74, 326, RIGHT)), words)


def _in_words(every: Sequence[Segment]) -> str:
    """Each segment with its blocks in order, or with their sums where there are many."""
    if not every:
        return "Nothing is reserved"
    many = sum(len(segment.blocks) for segment in every) > MOST_BLOCKS
    rows = []
    for segment in every:
        name = (
            f"{short_bytes(segment.size_bytes)} {'expandable' if segment.expandable else f'of the {segment.pool} pool'}"
        )
        rows.append(f"{name}: {_sums(segment.blocks) if many else listed(map(_block_in_words, segment.blocks))}")
    return f"Segments by address, their blocks in order. {'; '.join(rows)}"


def _block_in_words(block: SegmentBlock) -> str:
    name = "free" if block.is_free else block.name or "in use"
    return f"{name} {short_bytes(block.size_bytes)}"


def _sums(blocks: Sequence[SegmentBlock]) -> str:
    free = [block.size_bytes for block in blocks if block.is_free]
    used = sum(block.size_bytes for block in blocks) - sum(free)
    return (
        f"{short_bytes(used)} in {len(blocks) - len(free)} blocks in use, {short_bytes(sum(free))} free in {len(free)}"
    )


def _event_in_words(ran: AllocatorReplay) -> str:
    held = f"After event {len(ran):,}: allocated {_last(ran.allocated)}, reserved {_last(ran.reserved)}"
    return f"{held}. {_in_words(ran.segments)}.{_refusal_in_words(ran)}"


def _refusal_in_words(ran: AllocatorReplay) -> str:
    return f" Refused: {ran.oom.name} {short_bytes(ran.oom.size_bytes)}, {ran.oom.reason}." if ran.oom else ""


def _last(series: Sequence[int]) -> str:
    return format_bytes(series[-1] if series else 0)


def _rows(every: Sequence[Segment], grid: SegmentGrid, marked: int = 0) -> Iterator[Mark]:
    if not every:
        yield TextMark(LEFT, TOP + 15, "no segments: nothing is reserved", 12, FAINT)
    for row, segment in enumerate(every):
        y = TOP + row * ROW
        kind = "expandable" if segment.expandable else f"{segment.pool} pool"
        yield TextMark(LEFT - 8, y + 10, short_bytes(segment.size_bytes), anchor="end")
        yield TextMark(LEFT - 8, y + 21, kind, 9.5, FAINT, "end")
        for block in segment.blocks:
            yield from _block(block, grid, LEFT + grid.px(block.address - segment.address), y, block.address == marked)


def _end_to_end(every: Sequence[Segment], open_bytes: int, grid: SegmentGrid, y: float) -> Iterator[Mark]:
    """The segments in one row, each framed around its blocks, and the bytes that are in none."""
    x = float(LEFT)
    for segment in every:
        for block in segment.blocks:
            yield from _block(block, grid, x + grid.px(block.address - segment.address), y, False)
        yield Box(x, y, grid.px(segment.size_bytes), BAR, edge=INK, line=2, kind="segment")
        x += grid.px(segment.size_bytes)
    if open_bytes:
        yield replace(STATES[OPEN][0], x=x, y=y, width=grid.px(open_bytes), height=BAR, kind=OPEN)
        yield TextMark(x + grid.px(open_bytes) / 2, y + 15, short_bytes(open_bytes), 11, anchor="middle")


def _block(block: SegmentBlock, grid: SegmentGrid, x: float, y: float, marked: bool) -> Iterator[Mark]:
    """The block as wide as its bytes, hatched what nobody asked for, and as much of "name, size" as it has room for."""
    width, spare = max(grid.px(block.size_bytes), 0.6), grid.px(_spare(block))
    fill = MARKED if marked and not block.is_free else STATES[block.state][0].fill
    holds = "free" if block.is_free else f"{block.name}, {block.requested_bytes:,} B asked for"
    edge, tooltip = INK if marked else CARD, f"{holds}: {block.size_bytes:,} B"
    yield Box(x, y, width, BAR, fill, edge=edge, kind=f"block {block.state}", tooltip=tooltip)
    if spare > 1:
        hatched = STATES[SPARE][0]
        yield replace(hatched, x=x + width - spare, y=y + 0.5, width=spare - 0.5, height=BAR - 1, kind=SPARE)
    size = short_bytes(block.size_bytes)
    wanted = [f"{block.name} {size}", block.name] if block.name and not block.is_free else []
    text = next((text for text in (*wanted, size) if text_width(text, 11) + 6 <= width - spare), "")
    if text:
        yield TextMark(x + (width - spare) / 2, y + 15, text, 11, "#ffffff" if fill == USED else ON_COLOUR, "middle")


def _spare(block: SegmentBlock) -> int:
    return 0 if block.is_free else block.size_bytes - block.requested_bytes


def _refused(ran: AllocatorReplay, grid: SegmentGrid, y: float) -> Iterator[Mark]:
    """The request that no segment could serve, as an outline under them."""
    if ran.oom is None:
        return
    said = f"{ran.oom.name} {short_bytes(ran.oom.size_bytes)}: {ran.oom.reason}, out of memory"
    yield Box(LEFT, y, grid.px(ran.oom.size_bytes), BAR, edge=INK, line=1.5, dashed=True, kind="refused")
    yield TextMark(LEFT + 8, y + 15, said, 11)
    yield TextMark(LEFT - 8, y + 15, "refused", anchor="end")


def _legend(states: Collection[str], y: float) -> list[Mark]:
    return legend((STATES[state] for state in STATES if state in states), LEFT, y, RIGHT, 11)


def _series(plane: Plane, replay: AllocatorReplay, edge: str) -> Iterator[Mark]:
    """Reserved pale with its upper edge, allocated filled before it; a value holds until the next event."""
    held, used = _stairs(plane, replay.reserved), _stairs(plane, replay.allocated)
    foot = ((plane.x.at(len(replay)), plane.y.start), (plane.x.start, plane.y.start))
    yield Area((*held, *foot), HOLE, kind="reserved")
    yield Area((*used, *foot), USED, kind="allocated")
    yield Line(held or foot, edge, 1.5)


def _stairs(plane: Plane, series: Sequence[int]) -> tuple[At, ...]:
    return tuple(plane.at(at + step, value) for at, value in enumerate(series) for step in (0, 1))


def _strip_labels(plane: Plane, count: int, capacity_bytes: int | None) -> Iterator[Mark]:
    """Where the trace stands, which area is which, and the end of the card."""
    x, top, foot = plane.x.at(count), plane.y.end, plane.y.start
    yield Line(((x, top - 4), (x, foot + 4)), MARKED, 2, kind="here")
    yield Line(((LEFT, foot), (RIGHT, foot)))
    yield TextMark(LEFT - 8, top + 24, "reserved", 11, FAINT, "end")
    yield TextMark(LEFT - 8, foot - 8, "allocated", 11, USED, "end")
    if capacity_bytes:
        yield plane.level(capacity_bytes, 1.5, kind="capacity")
        yield TextMark(LEFT - 8, plane.y.at(capacity_bytes) + 4, f"{short_bytes(capacity_bytes)} card", 11, INK, "end")
    yield TextMark(RIGHT, foot + 17, "events, in order", 11, FAINT, "end")


def _largest(every: Sequence[Segment], rows: int) -> list[Segment]:
    largest = sorted(range(len(every)), key=lambda at: -every[at].size_bytes)[:rows]
    return [every[at] for at in sorted(largest)]
