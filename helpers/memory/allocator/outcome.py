"""What the allocator did with one request, and how it says that it cannot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ..breakdown import TextEnum, format_bytes
from .driver import RETURNS, DriverCall, SegmentEvent


class OutcomeKind(TextEnum):
    """What the allocator did: the first four serve a request, the last one does not."""

    REUSED = "reused"
    SPLIT = "split"
    SEGMENT = "segment"
    GROWN = "grown"
    FREED = "freed"
    EMPTIED = "emptied"
    NOTHING = "nothing"
    FAILED = "out of memory"


class Reason(TextEnum):
    """Why a request for memory fails. The simulator knows the first three, a log may tell of the others.

    FULL: the device is too small for what is in use and this. FRAGMENTED: there are enough free bytes, in pieces too
    small. CAPPED: a limit below the device's size. OUTSIDE: somebody else holds the device. HOST: it is the machine's
    own memory. UNCLEAR: the bytes that are known do not decide.
    """

    FULL = "full"
    FRAGMENTED = "fragmented"
    CAPPED = "capped"
    OUTSIDE = "outside"
    HOST = "host"
    UNCLEAR = "unclear"


class AllocatorOutcome(NamedTuple):
    """One event's result. `size_bytes` is the block, `source_bytes` the free block or segment that it was cut from.

    `rest_bytes` stayed free of that source; `was` names the tensor whose memory it had been. Of a free, `size_bytes`
    is the block and `source_bytes` the free block after merging with `merged` neighbours. `events` are the calls to
    the driver, those of a retry included.
    """

    kind: OutcomeKind
    name: str = ""
    requested_bytes: int = 0
    size_bytes: int = 0
    address: int = 0
    source_bytes: int = 0
    rest_bytes: int = 0
    was: str = ""
    merged: int = 0
    events: tuple[SegmentEvent, ...] = ()

    @property
    def returned_bytes(self) -> int:
        """What went back to the driver: all of an empty_cache, or what a retry released."""
        return sum(event.size_bytes for event in self.events if event.action in RETURNS)

    def __str__(self) -> str:
        size, source, rest = map(format_bytes, (self.size_bytes, self.source_bytes, self.rest_bytes))
        returned, whose = format_bytes(self.returned_bytes), f" that {self.was} left" if self.was else ""
        retry = (
            f"the driver had too little, so {returned} of cache went back first; then " if self.returned_bytes else ""
        )
        match self.kind:
            case OutcomeKind.REUSED:
                spare = self.source_bytes - self.requested_bytes
                unused = f", {format_bytes(spare)} of it unused" if spare else ""
                return f"reused the free block of {source}{whose}{unused}"
            case OutcomeKind.SPLIT:
                return f"split the free block of {source}{whose}: {size} taken, {rest} still free"
            case OutcomeKind.SEGMENT:
                split = f" and split it: {rest} still free" if self.rest_bytes else ""
                return f"{retry}asked the driver for a new segment of {source}{split}"
            case OutcomeKind.GROWN:
                mapped = sum(event.size_bytes for event in self.events if event.action is DriverCall.MAP)
                free = f": {rest} still free" if self.rest_bytes else ""
                return f"{retry}grew the expandable segment by {format_bytes(mapped)}{free}"
            case OutcomeKind.FREED:
                merged = f" and merged it into a hole of {source}" if self.merged else ""
                return f"kept {size} in the cache{merged}; the driver gets nothing back"
            case OutcomeKind.EMPTIED if self.events:
                return f"gave {returned} back to the driver"
            case OutcomeKind.EMPTIED:
                return "gave nothing back: no segment is without a live block"
            case OutcomeKind.NOTHING:
                return "took nothing: a tensor of 0 bytes has no block"
            case OutcomeKind.FAILED:
                return "out of memory"


@dataclass(eq=False, repr=False)
class OutOfMemory(RuntimeError):  # noqa: N818, it is an answer and reads as one
    """The request that cannot be served, after everything cached was given back; an answer, not a misuse.

    Torch's own is a RuntimeError too.
    """

    name: str
    requested_bytes: int
    size_bytes: int
    segment_bytes: int
    allocated_bytes: int
    reserved_bytes: int
    limit_bytes: int
    largest_free_bytes: int
    reason: Reason

    def __post_init__(self) -> None:
        super().__init__(self._sentence())

    @property
    def free_bytes(self) -> int:
        """Cached and unused, or not yet asked of the driver: the fair share that one might count on."""
        return self.limit_bytes - self.allocated_bytes

    def _sentence(self) -> str:
        want, free = format_bytes(self.size_bytes), format_bytes(self.free_bytes)
        if self.reason is Reason.FRAGMENTED:
            hole, left = format_bytes(self.largest_free_bytes), format_bytes(self.limit_bytes - self.reserved_bytes)
            return (
                f"cannot serve {want} though {free} are free: the largest hole is {hole}, "
                f"and the driver, asked for {format_bytes(self.segment_bytes)}, has {left}"
            )
        limit = "the limit for this process" if self.reason is Reason.CAPPED else "the device"
        return (
            f"cannot serve {want}: {format_bytes(self.allocated_bytes)} are in use and {limit} ends at "
            f"{format_bytes(self.limit_bytes)}, so {free} are free"
        )

    def _render_traceback_(self) -> list[str]:
        return [f"OutOfMemory ({self.reason}): {self}"]
