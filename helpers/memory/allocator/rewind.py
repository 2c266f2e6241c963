"""What an allocator held when a history begins: walked back from the end, one event at a time.

A history usually begins in the middle of a run, and its ring forgets the oldest events. The snapshot has the segments
at the end; undone from the last event to the first, they are those at the beginning:

    beginning(snapshot)         # its segments, with the blocks that were live then
    compare_with_snapshot(snapshot)     # seeds the simulator with them and replays the history

A history says how many bytes a block was asked for, not how many it took. In the large pool the two differ by what was
left unsplit, and no free piece is so small: what is too little to be a piece belongs to the block before it. With
max_split_size_mb a block from that size on has its segment to itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from ...catalog.errors import WorkbookError
from .blocks import BlockState, Segment, SegmentBlock
from .driver import DriverCall
from .settings import SMALL_BYTES, SMALL_SEGMENT_BYTES, Settings
from .snapshot import Snapshot, TraceEvent

MAPPED = (DriverCall.MAP, DriverCall.UNMAP)


@dataclass
class Held:
    """One segment while it is walked back: its live blocks by address, with bytes asked for and taken (0: unknown)."""

    size_bytes: int
    stream: int
    pool: str
    live: dict[int, tuple[int, int]] = field(default_factory=dict)


def beginning(snapshot: Snapshot, device: int = 0) -> tuple[Segment, ...]:
    """The segments of `device` when its history begins; () for one that begins with an empty allocator.

    Raises WorkbookError for a history of expandable segments, and for one that contradicts itself or the final
    segments, as a truncated one does.
    """
    trace, settings = snapshot.trace(device), Settings.parse(snapshot.conf)
    final = [segment for segment in snapshot.segments if segment.device == device]
    if _begins_empty(trace, final):
        return ()
    if any(segment.expandable for segment in final) or any(event.action in MAPPED for event in trace):
        do = "record it from the start: _record_memory_history() before the first tensor"
        raise WorkbookError("a history of expandable segments that begins mid-run", "one of plain segments", do)
    held = {segment.address: _held(segment) for segment in final}
    for number in range(len(trace) - 1, -1, -1):
        _undo(held, trace[number], number, settings)
    return tuple(_segment(address, one, settings) for address, one in sorted(held.items()))


def _begins_empty(trace: tuple[TraceEvent, ...], final: list[Segment]) -> bool:
    """Whether all that is held at the end was taken in this history."""
    taken = sum(event.size_bytes for event in trace if event.action in (DriverCall.ALLOC, DriverCall.MAP))
    returned = sum(event.size_bytes for event in trace if event.action in (DriverCall.FREE, DriverCall.UNMAP))
    return taken - returned == sum(segment.size_bytes for segment in final)


def _held(segment: Segment) -> Held:
    blocks = (block for block in segment.blocks if block.state is not BlockState.FREE)
    live = {block.address: (block.requested_bytes, block.size_bytes) for block in blocks}
    return Held(segment.size_bytes, segment.stream, segment.pool, live)


def _undo(held: dict[int, Held], event: TraceEvent, number: int, settings: Settings) -> None:
    """Take back one event: what it allocated was not there before, what it freed was."""
    match event.action:
        case "alloc":
            if event.size_bytes and _segment_at(held, event, number).live.pop(event.address, None) is None:
                raise _contradiction(number, f"allocates {event.address:#x}, which is not live after it")
        case "free_completed" if event.size_bytes:
            _segment_at(held, event, number).live[event.address] = (event.size_bytes, 0)
        case DriverCall.ALLOC:
            if held.pop(event.address, Held(0, 0, "", {0: (0, 0)})).live:
                raise _contradiction(number, f"takes the segment {event.address:#x}, which is in use before it")
        case DriverCall.FREE:
            pool = "small" if event.size_bytes == SMALL_SEGMENT_BYTES else "large"
            held[event.address] = Held(event.size_bytes, event.stream, pool)


def _segment_at(held: dict[int, Held], event: TraceEvent, number: int) -> Held:
    """The segment that an event's address lies in."""
    base = max((address for address in held if address <= event.address), default=None)
    if base is None or event.address >= base + held[base].size_bytes:
        raise _contradiction(number, f"is of {event.address:#x}, which lies in no segment")
    return held[base]


def _segment(address: int, held: Held, settings: Settings) -> Segment:
    blocks = tuple(_blocks(address, held, settings))
    return Segment(address, held.size_bytes, held.stream, held.pool, False, blocks)


def _blocks(begin: int, held: Held, settings: Settings) -> Iterator[SegmentBlock]:
    """Live blocks and the free pieces between them, in order."""
    at, end = begin, begin + held.size_bytes
    places = [*sorted(held.live), end]
    for address, following in pairwise(places):
        if address > at:
            yield SegmentBlock(at, address - at, 0, BlockState.FREE)
        requested, size = held.live[address]
        size = size or settings.block_bytes(requested)
        rest = following - address - size
        if rest < 0:
            raise _contradiction(0, f"leaves {address:#x} beyond {following:#x}")
        whole = settings.max_split_bytes is not None and size >= settings.max_split_bytes  # which is never split
        if held.pool == "large" and (whole or rest <= SMALL_BYTES):
            size += rest
        yield SegmentBlock(address, size, requested, BlockState.ALLOCATED, f"{address:#x}")
        at = address + size
    if at < end:
        yield SegmentBlock(at, end - at, 0, BlockState.FREE)


def _contradiction(number: int, what: str) -> WorkbookError:
    expected, do = "a whole history, with the segments at its end", "dump it again while nothing else allocates"
    return WorkbookError(f"event {number} of the history {what}", expected, do)
