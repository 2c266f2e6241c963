"""The simulator against a real allocator: a snapshot's history replayed, calls to the driver and blocks compared."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from ...catalog.errors import WorkbookError
from ..breakdown import format_bytes
from .blocks import Segment
from .driver import RETURNS, TAKES, Driver, SegmentEvent
from .replay import AllocationAction, AllocationRequest, AllocatorReplay, empty_cache, replay
from .rewind import beginning
from .settings import Settings
from .snapshot import Snapshot, TraceEvent


@dataclass(frozen=True)
class Comparison:
    """`differences` names, in order, what the simulator did otherwise; empty when everything is equal.

    `begins` are the segments that were held when the history begins, of `unrecorded_bytes` in all: the replay begins
    with them, and `segment_events` are the calls to the driver after them. `allocations` were compared by address.
    """

    replay: AllocatorReplay = field(repr=False)
    segment_events: int
    differences: tuple[str, ...]
    allocations: int = 0
    begins: tuple[Segment, ...] = field(default=(), repr=False)

    @property
    def unrecorded_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.begins)

    @property
    def agrees(self) -> bool:
        return not self.differences

    def __str__(self) -> str:
        late = f"{format_bytes(self.unrecorded_bytes)} were reserved before the history begins"
        if self.agrees:
            equal = (
                f"equal: {len(self.replay)} events, {self.allocations} allocations by address, "
                f"{self.segment_events} calls to the driver, every final block"
            )
            return f"{equal}; {late}" if self.begins else equal
        return "\n".join([*([late] if self.begins else []), *self.differences])


def requests_of(trace: Sequence[TraceEvent], begins: Iterable[Segment] = ()) -> list[AllocationRequest]:
    """The requests in a history: its alloc and free_completed entries, and an empty_cache where segments went back.

    A run of segment_free is an empty_cache or the retry of a failing request; both give back the same. With
    max_split_size_mb a retry may give back less, which the replay does not tell apart. What was allocated before the
    history begins is freed if it is live in `begins`, else left out.
    """
    requests: list[AllocationRequest] = []
    live = {block.address for segment in begins for block in segment.blocks if not block.is_free}
    returning = False
    for event in trace:
        if event.action in RETURNS and not returning:
            requests.append(empty_cache())
        returning = event.action in RETURNS
        name = event.where or f"{event.address:#x}"
        if event.action == "alloc":
            live.add(event.address)
            requests.append(
                AllocationRequest(AllocationAction.ALLOC, event.address, event.size_bytes, event.stream, name)
            )
        elif event.action == "free_completed" and event.address in live:
            live.remove(event.address)
            requests.append(AllocationRequest(AllocationAction.FREE, event.address, name=name))
    return requests


def compare_with_snapshot(snapshot: Snapshot, settings: Settings | None = None, device: int = 0) -> Comparison:
    """Replay the history of `device` and compare each call to the driver and the blocks of each final segment.

    `settings` are the snapshot's own unless given. WorkbookError when there is no history, or one of private pools.
    """
    trace = snapshot.trace(device)
    if not any(event.action == "alloc" for event in trace):
        do = "call torch.cuda.memory._record_memory_history() before the first allocation"
        raise WorkbookError(f"the snapshot has no history of device {device}", "one that was recorded while it ran", do)
    real = tuple(segment for segment in snapshot.segments if segment.device == device)
    if any(segment.private for segment in real):
        do = "record it without CUDA graphs and without torch.cuda.MemPool"
        raise WorkbookError("the snapshot has private memory pools", "PyTorch's two default pools", do)
    begins = beginning(snapshot, device)
    recorded = [event for event in trace if event.action in (*TAKES, *RETURNS)]
    driver = Driver(recorded=[(event.size_bytes, event.address) for event in recorded if event.action in TAKES])
    chosen = settings or Settings.parse(snapshot.conf)
    ran = replay(requests_of(trace, begins), chosen, driver=driver, begins=begins)
    allocated = [event for event in trace if event.action == "alloc"]
    differences = (
        *_calls(recorded, ran.segment_events[len(begins) :]),
        *_places(allocated, ran),
        *_final(by_address(real), by_address(ran.segments)),
    )
    return Comparison(ran, len(recorded), differences, len(allocated), begins)


def _calls(real: Sequence[TraceEvent], ours: Sequence[SegmentEvent]) -> Iterator[str]:
    """The first call that differs in kind, size or stream; what follows it would only repeat the news."""
    for number, (event, call) in enumerate(zip(real, ours, strict=False)):
        if (event.action, event.size_bytes, event.stream) != (call.action, call.size_bytes, call.stream):
            yield (
                f"call {number} to the driver: {event.action} of {format_bytes(event.size_bytes)} on the device, "
                f"{call.action} of {format_bytes(call.size_bytes)} here"
            )
            return
    if len(real) != len(ours):
        yield f"{len(real)} calls to the driver on the device, {len(ours)} here"


def _places(real: Sequence[TraceEvent], ran: AllocatorReplay) -> Iterator[str]:
    """The first block that lies elsewhere."""
    ours = [outcome for request, outcome in zip(ran.requests, ran.outcomes, strict=True) if request.action == "alloc"]
    for number, (event, outcome) in enumerate(zip(real, ours, strict=False)):
        if event.size_bytes and event.address != outcome.address:
            yield (
                f"allocation {number}, of {format_bytes(event.size_bytes)}, lies at {event.address:#x} on the device, "
                f"at {outcome.address:#x} here"
            )
            return


def by_address(segments: Sequence[Segment]) -> list[Segment]:
    """A snapshot lists segments by address, the simulator in the order in which they were made."""
    return sorted(segments, key=lambda segment: segment.address)


def _final(real: Sequence[Segment], ours: Sequence[Segment]) -> Iterator[str]:
    theirs, mine = [_layout(segment) for segment in real], [_layout(segment) for segment in ours]
    if theirs == mine:
        return
    if len(theirs) != len(mine):
        yield f"{len(theirs)} segments at the end on the device, {len(mine)} here"
    for number, (a, b) in enumerate(zip(theirs, mine, strict=False)):
        if a != b:
            yield f"segment {number} at the end: {a} on the device, {b} here"
            return


def _layout(segment: Segment) -> tuple[object, ...]:
    """A block that waits for another stream is as good as allocated: nobody gets it."""
    return (segment.pool, *((block.size_bytes, block.is_free) for block in segment.blocks))
