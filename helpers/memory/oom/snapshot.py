"""From an allocator snapshot to an explanation: the request that failed, the largest holes, who holds what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from ...catalog.devices import Device
from ...catalog.errors import WorkbookError
from ..allocator import Segment, Settings, Snapshot, TraceEvent
from ..closed_form.breakdown import format_bytes
from .cures import changes_for
from .explain import Explanation, Row
from .message import Oom
from .reason import CAPPED, FRAGMENTED, FULL, Why

LARGEST = 8
NOT_RECORDED = "(no line was recorded)"


def explain_snapshot(snapshot: Snapshot, card: Device | None = None) -> Explanation:
    """Explain the last "oom" event of a snapshot; without one, say what is live and where the holes are.

    `card` gives the capacity, which no snapshot holds. The segments are those of the moment of the dump: a dump in an
    out-of-memory observer or in the `except` shows the failure, a later one does not.
    """
    last = _last_oom(snapshot)
    device = last[0] if last else _fullest(snapshot)
    segments = [segment for segment in snapshot.segments if segment.device == device]
    if not segments and not last:
        raise WorkbookError(
            "the snapshot holds no segments and no failure",
            "an allocator that was used",
            "dump it when the failure happens: in the except, before anything is freed",
        )
    oom = _facts(segments, last[1] if last else None, device, card)
    after = last[2] if last else 0
    decided = _why(oom, segments, last[1] if last else None, after, snapshot.conf)
    title = (
        f"{format_bytes(last[1].size_bytes)} refused on GPU {device}"
        if last
        else f"No failure is recorded; GPU {device} at the moment of the dump"
    )
    return Explanation(
        title,
        decided,
        tuple(_rows(oom, segments)),
        blocks=tuple(_blocks(segments)),
        changes=changes_for(oom, decided.reason, "") if last else (),
        room_bytes=oom.capacity_bytes,
    )


def _last_oom(snapshot: Snapshot) -> tuple[int, TraceEvent, int] | None:
    """(device, event, number of allocations and frees after it) of the last failure that the history holds."""
    for device, trace in enumerate(snapshot.traces):
        for at in range(len(trace) - 1, -1, -1):
            if trace[at].action == "oom":
                after = sum(event.action in ("alloc", "free_completed") for event in trace[at + 1 :])
                return device, trace[at], after
    return None


def _fullest(snapshot: Snapshot) -> int:
    held = Counter()
    for segment in snapshot.segments:
        held[segment.device] += segment.size_bytes
    return held.most_common(1)[0][0] if held else 0


def _facts(segments: list[Segment], event: TraceEvent | None, device: int, card: Device | None) -> Oom:
    allocated = sum(segment.allocated_bytes for segment in segments)
    reserved = sum(segment.size_bytes for segment in segments)
    return Oom(
        "allocator",
        "",
        device,
        event.size_bytes if event else None,
        card.capacity_bytes if card else None,
        event.address if event else None,
        allocated,
        reserved - allocated,
    )


def _holes(segments: Iterable[Segment]) -> int:
    return max((segment.largest_free_bytes for segment in segments), default=0)


def _why(oom: Oom, segments: list[Segment], event: TraceEvent | None, after: int, conf: str) -> Why:
    notes = []
    if after:
        notes.append(f"{after} allocations and frees follow the failure; the blocks are those of the dump, later.")
    if not any(block.name for segment in segments for block in segment.blocks):
        notes.append("No lines: call torch.cuda.memory._record_memory_history() before the first allocation.")
    if event is None:
        return Why(
            "unclear",
            "The history holds no out-of-memory event: record until the failure, and dump there.",
            tuple(notes),
        )
    return Why(*_reason(oom, event, _holes(segments), conf), tuple(notes))


def _reason(oom: Oom, event: TraceEvent, hole: int, conf: str) -> tuple[str, str]:
    asked, free, cached = event.size_bytes, event.address, oom.cached_bytes
    segment = _segment_bytes(asked, conf)
    if segment <= free:
        return CAPPED, (
            f"The card had {format_bytes(free)} free and a segment of {format_bytes(segment)} would have done: a limit "
            "of this process refused it, set_per_process_memory_fraction or the like."
        )
    if asked <= free + cached:
        return FRAGMENTED, (
            f"{format_bytes(free + cached)} were unused ({format_bytes(cached)} cached, {format_bytes(free)} free), "
            f"but the largest hole is {format_bytes(hole)}."
        )
    return FULL, (
        f"{format_bytes(oom.allocated_bytes)} are in tensors; even with all unused bytes "
        f"({format_bytes(free + cached)}) in one piece, {format_bytes(asked - free - cached)} would be "
        "missing. A snapshot does not say what other "
        "processes hold."
    )


def _segment_bytes(size_bytes: int, conf: str) -> int:
    """What is asked of the driver for a request; by default settings where the snapshot's cannot be read."""
    try:
        return Settings.parse(conf).segment_bytes(size_bytes)
    except WorkbookError:
        return Settings().segment_bytes(size_bytes)


def _rows(oom: Oom, segments: list[Segment]) -> list[Row]:
    small = sum(segment.pool == "small" for segment in segments)
    rows = [
        ("asked", oom.requested_bytes, ""),
        ("the card", oom.capacity_bytes, ""),
        ("reserved", oom.reserved_bytes, f"{len(segments)} segments, {small} of them small"),
        ("in tensors", oom.allocated_bytes, ""),
        ("cached", oom.cached_bytes, "in no tensor"),
        ("largest hole", _holes(segments), ""),
        ("outside", oom.outside_bytes, "by subtraction"),
        ("free", oom.free_bytes, "on the card, when it failed"),
    ]
    return [Row(name, size, note) for name, size, note in rows if size is not None]


def _blocks(segments: list[Segment]) -> list[Row]:
    """Live bytes by the line that made them, the largest first."""
    sizes, counts = Counter(), Counter()
    for segment in segments:
        for block in segment.blocks:
            if not block.is_free:
                sizes[block.name or NOT_RECORDED] += block.size_bytes
                counts[block.name or NOT_RECORDED] += 1
    rows = [
        Row(name, size, f"{counts[name]} blocks" if counts[name] > 1 else "1 block")
        for name, size in sizes.most_common(LARGEST)
    ]
    rest = sum(sizes.values()) - sum(row.size_bytes for row in rows)
    return [*rows, Row("everything else", rest, f"{len(sizes) - LARGEST} lines")] if rest else rows
