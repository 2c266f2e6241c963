"""A trace of allocations and frees, replayed: what was reserved, when, and what each event did.

steps = [alloc("x", 40 * MIB), free("x"), alloc("keep", 12 * MIB), alloc("z", 36 * MIB)]
replay(steps).peak_reserved_bytes
replay(steps, "expandable_segments:True", capacity_bytes=64 * MIB).oom
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from ...catalog.errors import WorkbookError
from ..closed_form.breakdown import format_bytes
from ..meter.timeline import Event
from .blocks import Segment
from .driver import Driver, SegmentEvent
from .outcome import FAILED, Outcome, OutOfMemory
from .settings import Settings
from .simulator import Allocation, Allocator

ALLOC, FREE, EMPTY = "alloc", "free", "empty_cache"


class Step(NamedTuple):
    """One event of a trace. `key` says which tensor, `name` is what people read."""

    action: str
    key: Hashable = ""
    size_bytes: int = 0
    stream: int = 0
    name: str = ""

    def __str__(self) -> str:
        if self.action == EMPTY:
            return "empty_cache()"
        size = f", {format_bytes(self.size_bytes)}" if self.action == ALLOC else ""
        return f"{self.action} {self.name}{size}"


def alloc(name: str, size_bytes: int, stream: int = 0) -> Step:
    """The tensor `name` is born with `size_bytes`, as its program asks for them: unrounded."""
    return Step(ALLOC, name, size_bytes, stream, str(name))


def free(name: str) -> Step:
    """The tensor `name` dies."""
    return Step(FREE, name, name=str(name))


def empty_cache() -> Step:
    """torch.cuda.empty_cache() is called."""
    return Step(EMPTY)


@dataclass(frozen=True)
class Replay:
    """What a trace did to the allocator.

    `allocated[i]` and `reserved[i]` are bytes after event i, `outcomes[i]` what it did. `oom` is the request that
    could not be served; the replay ends there. `segment_events` are all calls to the driver in order.
    """

    settings: Settings
    steps: tuple[Step, ...]
    outcomes: tuple[Outcome, ...] = field(repr=False)
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
    def peak_at(self) -> int:
        """The first event after which the most was reserved."""
        return self.reserved.index(max(self.reserved)) if self.reserved else 0

    @property
    def fragmentation(self) -> float:
        """The share of the reserved bytes that no tensor used when the most was reserved.

        >>> steps = [alloc("a", 20 * 2**20), free("a"), alloc("b", 30 * 2**20)]
        >>> replay(steps).fragmentation
        0.4
        """
        at = self.peak_at
        return 1 - self.allocated[at] / self.reserved[at] if self.reserved and self.reserved[at] else 0.0

    def told(self, at: int) -> str:
        """What event `at` was and what it did, in one sentence."""
        outcome = self.outcomes[at]
        return f"{self.steps[at]}: {self.oom if outcome.kind == FAILED else outcome}"

    def __str__(self) -> str:
        end = f"\nout of memory ({self.oom.reason}): {self.oom}" if self.oom else ""
        return (
            f"{len(self)} events, {self.settings}\n"
            f"peak allocated  {format_bytes(self.peak_allocated_bytes):>12}\n"
            f"peak reserved   {format_bytes(self.peak_reserved_bytes):>12}   {self.fragmentation:.1%} of it unused{end}"
        )


def replay(
    events: Iterable[Step | Event],
    settings: Settings | str | None = None,
    capacity_bytes: int | None = None,
    allowed_bytes: int | None = None,
    driver: Driver | None = None,
) -> Replay:
    """Run `events` through an allocator that is empty at first.

    `events` are Steps, or the Events that the meter and the trace give (their sizes are rounded to 512 B already,
    which changes nothing). `settings` may be text as in PYTORCH_CUDA_ALLOC_CONF. WorkbookError for a tensor that is
    freed before it is born or born twice.
    """
    chosen = Settings.parse(settings) if isinstance(settings, str) else settings or Settings()
    run = _Run(Allocator(chosen, capacity_bytes, allowed_bytes, driver))
    steps = [_step(number, event) for number, event in enumerate(events)]
    for number, step in enumerate(steps):
        run.do(number, step)
        if run.oom:
            break
    allocator = run.allocator
    return Replay(
        chosen,
        tuple(islice(steps, len(run.outcomes))),
        tuple(run.outcomes),
        tuple(run.allocated),
        tuple(run.reserved),
        allocator.peak_allocated_bytes,
        allocator.peak_reserved_bytes,
        allocator.segments,
        tuple(allocator.driver.calls),
        run.oom,
    )


class _Run:
    """A replay under way: the handles of the living, and a line of the record per event."""

    def __init__(self, allocator: Allocator) -> None:
        self.allocator = allocator
        self.outcomes: list[Outcome] = []
        self.allocated: list[int] = []
        self.reserved: list[int] = []
        self.oom: OutOfMemory | None = None
        self._living: dict[Hashable, Allocation] = {}

    def do(self, number: int, step: Step) -> None:
        outcome = self._alloc(number, step) if step.action == ALLOC else self._other(number, step)
        self.outcomes.append(outcome)
        self.allocated.append(self.allocator.allocated_bytes)
        self.reserved.append(self.allocator.reserved_bytes)

    def _alloc(self, number: int, step: Step) -> Outcome:
        if step.key in self._living:
            raise WorkbookError(
                f"event {number} allocates {step.name!r}, which is alive",
                "a name once at a time",
                "free it before, or give the new tensor another name",
            )
        calls = len(self.allocator.driver.calls)
        try:
            self._living[step.key] = self.allocator.alloc(step.size_bytes, step.stream, step.name)
        except OutOfMemory as error:
            self.oom = error
            events = tuple(self.allocator.driver.calls[calls:])
            return Outcome(FAILED, step.name, step.size_bytes, error.size_bytes, events=events)
        return self.allocator.last

    def _other(self, number: int, step: Step) -> Outcome:
        if step.action == EMPTY:
            self.allocator.empty_cache()
        elif step.key in self._living:
            self.allocator.free(self._living.pop(step.key))
        else:
            raise WorkbookError(
                f"event {number} frees {step.name!r}, which is not alive",
                "a tensor that an earlier event has allocated",
                "look for a second free",
            )
        return self.allocator.last


def _step(number: int, event: Step | Event) -> Step:
    if isinstance(event, Step):
        if event.action in (ALLOC, FREE, EMPTY):
            return event
    elif isinstance(event, Event):
        block = event.block
        name = block.owner or block.category
        return Step(ALLOC if event.sign > 0 else FREE, id(block), block.size_bytes, 0, name)
    raise WorkbookError(
        f"event {number} is a {type(event).__name__}", "a Step or an Event", "write [alloc('a', 3 * MIB), free('a')]"
    )


def at_step(
    steps: Sequence[Step], count: int, settings: Settings | str | None = None, capacity_bytes: int | None = None
) -> Replay:
    """The replay of the first `count` events: its `segments` are those after them."""
    return replay(steps[:count], settings, capacity_bytes)
