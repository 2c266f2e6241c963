"""A history for PyTorch's own viewer, docs.pytorch.org/memory_viz: of a real card, or of a step that never ran.

    write_for_viewer(trace.train(setup).on_gpu, "step.pickle")     # then drop the file on that page

The file is what `torch.cuda.memory._dump_snapshot` would have written; where a stack of calls would stand, it has the
name of the tensor. `python -m torch.cuda._memory_viz stats step.pickle` reads it without a network.
"""

from __future__ import annotations

import pickle
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any

from ...catalog.errors import WorkbookError
from .blocks import BlockState, Segment, SegmentBlock
from .driver import SegmentEvent
from .outcome import OutcomeKind
from .replay import AllocationAction, AllocatorReplay
from .snapshot import Snapshot, TraceEvent

NAMES = {
    BlockState.ALLOCATED: "active_allocated",
    BlockState.FREE: "inactive",
    BlockState.PENDING: "active_awaiting_free",
}
PROTOCOL = 4  # the viewer reads 2 to 4
Entry = dict[str, Any]


def write_for_viewer(history: AllocatorReplay | Snapshot, path: str | Path) -> int:
    """Write `history` as a snapshot that PyTorch's viewer opens; the bytes written. WorkbookError for an empty one,
    and where nothing can be written.

    >>> write_for_viewer(replay([alloc("x", 4)]), "x.pickle")       # doctest: +SKIP
    560
    """
    events = list(_of_card(history) if isinstance(history, Snapshot) else _of_replay(history))
    if not events:
        do = "record one with torch.cuda.memory._record_memory_history, or replay some requests"
        raise WorkbookError("there is no event to show", "a history with events", do)
    data = {"segments": [*map(_segment, history.segments)], "device_traces": [events]}
    try:
        return Path(path).write_bytes(pickle.dumps(data, protocol=PROTOCOL))
    except OSError as error:
        what, do = f"cannot write {path}: {error.strerror}", "name another file"
        raise WorkbookError(what, "a file in a folder that exists", do) from None


def _of_card(snapshot: Snapshot) -> Iterator[Entry]:
    """A packed history has a free when it is complete; the viewer wants the request before it, too."""
    asked = {event.address for event in snapshot.trace() if event.action == "free_requested"}
    for event in snapshot.trace():
        if event.action == "free_completed" and not asked:
            yield _entry(event._replace(action="free_requested"))
        yield _entry(event)


def _of_replay(ran: AllocatorReplay) -> Iterator[Entry]:
    """What each request made of the driver, then the request itself."""
    called = sum(len(outcome.events) for outcome in ran.outcomes)
    yield from map(_driver, ran.segment_events[: len(ran.segment_events) - called])
    live: dict[Hashable, TraceEvent] = {}
    for request, outcome in zip(ran.requests, ran.outcomes, strict=False):
        yield from map(_driver, outcome.events)
        if outcome.kind is OutcomeKind.FAILED:
            yield _entry(TraceEvent("oom", 0, request.size_bytes, request.stream, request.name), device_free=0)
        elif (
            request.action is AllocationAction.ALLOC and outcome.size_bytes
        ):  # of a tensor without bytes a card hears nothing
            size = outcome.requested_bytes
            made = live[request.key] = TraceEvent("alloc", outcome.address, size, request.stream, request.name)
            yield _entry(made)
        elif request.action is AllocationAction.FREE and request.key in live:
            made = live.pop(request.key)
            yield from (_entry(made._replace(action=action)) for action in ("free_requested", "free_completed"))


def _driver(event: SegmentEvent) -> Entry:
    return _entry(TraceEvent(event.action.value, event.address, event.size_bytes, event.stream))


def _entry(event: TraceEvent, **more: int) -> Entry:
    shown: Entry = {"action": event.action, "addr": event.address, "size": event.size_bytes, "stream": event.stream}
    return shown | {"frames": _frames(event.where)} | more


def _frames(name: str) -> list[Entry]:
    return [{"filename": str(name), "line": 0, "name": ""}] if name else []


def _segment(segment: Segment) -> Entry:
    told: Entry = {"address": segment.address, "total_size": segment.size_bytes, "stream": segment.stream, "device": 0}
    told |= {"segment_type": segment.pool, "is_expandable": segment.expandable}
    return told | {"blocks": [*map(_block, segment.blocks)]}


def _block(block: SegmentBlock) -> Entry:
    sizes: Entry = {"address": block.address, "size": block.size_bytes, "requested_size": block.requested_bytes}
    return sizes | {"state": NAMES[block.state], "frames": _frames(block.name)}
