"""A trace of allocations and frees, replayed: what was reserved, when, and what each event did."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ...catalog.errors import WorkbookError
from ..breakdown import TextEnum, format_bytes
from ..meter.timeline import AllocationEvent
from .blocks import Segment
from .driver import Driver, SegmentEvent
from .outcome import AllocatorOutcome, OutcomeKind, OutOfMemory
from .settings import Settings
from .simulator import Allocation, Allocator


class AllocationAction(TextEnum):
    """What a program asks of the allocator."""

    ALLOC = "alloc"
    FREE = "free"
    EMPTY_CACHE = "empty_cache"


class AllocationRequest(NamedTuple):
    """One request to the allocator. `key` says which tensor, `name` is what people read."""

    action: AllocationAction
    key: Hashable = ""
    size_bytes: int = 0
    stream: int = 0
    name: str = ""

    def __str__(self) -> str:
        if self.action is AllocationAction.EMPTY_CACHE:
            return "empty_cache()"
        size = f", {format_bytes(self.size_bytes)}" if self.action is AllocationAction.ALLOC else ""
        return f"{self.action} {self.name}{size}"


def alloc(name: str, size_bytes: int, stream: int = 0) -> AllocationRequest:
    """Memory for the tensor `name`: `size_bytes` as its program asks for them, unrounded."""
    return AllocationRequest(AllocationAction.ALLOC, name, size_bytes, stream, str(name))


def free(name: str) -> AllocationRequest:
    """The tensor `name` is freed."""
    return AllocationRequest(AllocationAction.FREE, name, name=str(name))


def empty_cache() -> AllocationRequest:
    """torch.cuda.empty_cache() is called."""
    return AllocationRequest(AllocationAction.EMPTY_CACHE)


@dataclass(frozen=True)
class AllocatorReplay:
    """What a trace did to the allocator.

    `allocated[i]` and `reserved[i]` are bytes after event i, `outcomes[i]` what it did. `oom` is the request that
    could not be served; the replay ends there. `segment_events` are all calls to the driver in order.
    """

    settings: Settings
    requests: tuple[AllocationRequest, ...]
    outcomes: tuple[AllocatorOutcome, ...] = field(repr=False)
    allocated: tuple[int, ...] = field(repr=False)
    reserved: tuple[int, ...] = field(repr=False)
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    segments: tuple[Segment, ...] = field(repr=False)
    segment_events: tuple[SegmentEvent, ...] = field(repr=False)
    oom: OutOfMemory | None = None

    def __len__(self) -> int:
        return len(self.outcomes)

    @property
    def fragmentation(self) -> float:
        """The share of the reserved bytes that no tensor used when the most was reserved.

        >>> requests = [alloc("a", 20 * 2**20), free("a"), alloc("b", 30 * 2**20)]
        >>> replay(requests).fragmentation
        0.4
        """
        most = max(self.reserved, default=0)
        return 1 - self.allocated[self.reserved.index(most)] / most if most else 0.0

    def format_event(self, at: int) -> str:
        """What event `at` was and what it did, in one sentence."""
        return f"{self.requests[at]}: {self.format_outcome(at)}"

    def format_outcome(self, at: int) -> str:
        """What event `at` did."""
        outcome = self.outcomes[at]
        return str(self.oom if outcome.kind is OutcomeKind.FAILED else outcome)

    def __str__(self) -> str:
        end = f"\nout of memory ({self.oom.reason}): {self.oom}" if self.oom else ""
        return (
            f"{len(self)} events, {self.settings}\n"
            f"peak allocated  {format_bytes(self.peak_allocated_bytes):>12}\n"
            f"peak reserved   {format_bytes(self.peak_reserved_bytes):>12}   {self.fragmentation:.1%} of it unused{end}"
        )


def replay(
    events: Iterable[AllocationRequest | AllocationEvent],
    settings: Settings | str | None = None,
    capacity_bytes: int | None = None,
    allowed_bytes: int | None = None,
    driver: Driver | None = None,
    begins: Sequence[Segment] = (),
) -> AllocatorReplay:
    """Run `events` through an allocator that is empty at first, or that holds the segments `begins` (`rewind`).

    A block that is live in them is freed by its address. Their calls to the driver come first in `segment_events`.

    `events` are Requests, or the Events that the meter and the trace give (their sizes are rounded to 512 B already,
    which changes nothing). `settings` may be text as in PYTORCH_CUDA_ALLOC_CONF. WorkbookError for a tensor that is
    freed before it is allocated, or allocated twice.
    """
    chosen = Settings.parse(settings) if isinstance(settings, str) else settings or Settings()
    allocator = Allocator(chosen, capacity_bytes, allowed_bytes, driver)
    requests = [_request(number, event) for number, event in enumerate(events)]
    live: dict[Hashable, Allocation] = dict(allocator.begin_with(begins))
    done: list[tuple[AllocationRequest, AllocatorOutcome, int, int]] = []
    oom = None
    for number, request in enumerate(requests):
        try:
            _serve(allocator, live, number, request)
        except OutOfMemory as error:
            oom = error
        done.append((request, allocator.last, allocator.allocated_bytes, allocator.reserved_bytes))
        if oom:
            break
    served, outcomes, allocated, reserved = zip(*done, strict=True) if done else ((), (), (), ())
    return AllocatorReplay(
        chosen,
        served,
        outcomes,
        allocated,
        reserved,
        allocator.peak_allocated_bytes,
        allocator.peak_reserved_bytes,
        allocator.segments,
        tuple(allocator.driver.calls),
        oom,
    )


def _serve(allocator: Allocator, live: dict[Hashable, Allocation], number: int, request: AllocationRequest) -> None:
    alive = request.key in live
    if request.action is AllocationAction.EMPTY_CACHE:
        allocator.empty_cache()
    elif request.action is AllocationAction.ALLOC and not alive:
        live[request.key] = allocator.alloc(request.size_bytes, request.stream, request.name)
    elif request.action is AllocationAction.FREE and alive:
        allocator.free(live.pop(request.key))
    else:
        raise _misuse(number, request)


def _misuse(number: int, request: AllocationRequest) -> WorkbookError:
    if request.action is AllocationAction.ALLOC:
        what, expected = f"event {number} allocates {request.name!r}, which is alive", "a name once at a time"
        return WorkbookError(what, expected, "free it before, or give the new tensor another name")
    what = f"event {number} frees {request.name!r}, which is not alive"
    return WorkbookError(what, "a tensor that an earlier event has allocated", "look for a second free")


def _request(number: int, event: AllocationRequest | AllocationEvent) -> AllocationRequest:
    if isinstance(event, AllocationRequest) and event.action in tuple(AllocationAction):
        return event._replace(action=AllocationAction(event.action))
    if isinstance(event, AllocationEvent):
        block = event.block
        action = AllocationAction.ALLOC if event.sign > 0 else AllocationAction.FREE
        return AllocationRequest(action, id(block), block.size_bytes, block.stream, block.owner or block.category)
    what = f"event {number} is a {type(event).__name__}"
    raise WorkbookError(what, "a Request or an Event", "write [alloc('a', 3 * MIB), free('a')]")
