"""What the allocator did with one request, and how it says that it cannot."""

from __future__ import annotations

from typing import NamedTuple

from ..closed_form.breakdown import format_bytes
from .driver import SEGMENT_FREE, SEGMENT_MAP, SEGMENT_UNMAP, SegmentEvent

REUSED, SPLIT, SEGMENT, GROWN, FREED, EMPTIED, NOTHING, FAILED = OUTCOMES = (
    "reused",
    "split",
    "segment",
    "grown",
    "freed",
    "emptied",
    "nothing",
    "out of memory",
)
FULL, FRAGMENTED, CAPPED = REASONS = ("full", "fragmented", "capped")


class Outcome(NamedTuple):
    """One event's result. `size_bytes` is the block, `source_bytes` the free block or segment that it was cut from.

    `rest_bytes` stayed free of that source; `was` names the tensor whose memory it had been. Of a free, `size_bytes`
    is the block and `source_bytes` the free block after merging with `merged` neighbours. `events` are the calls to
    the driver, those of a retry included.
    """

    kind: str
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
        return sum(event.size_bytes for event in self.events if event.action in (SEGMENT_FREE, SEGMENT_UNMAP))

    def __str__(self) -> str:
        return _SENTENCES[self.kind](self)


class OutOfMemory(RuntimeError):  # noqa: N818, it is an answer and reads as one
    """The request that cannot be served, after everything cached was given back; an answer, not a misuse.

    `reason`: "full" (the device is too small for what is in use and this), "capped" (a limit below the device's size
    is), "fragmented" (there are enough free bytes, in pieces too small). Torch's own is a RuntimeError too.
    """

    def __init__(
        self,
        name: str,
        requested_bytes: int,
        size_bytes: int,
        segment_bytes: int,
        allocated_bytes: int,
        reserved_bytes: int,
        limit_bytes: int,
        largest_free_bytes: int,
        reason: str,
    ) -> None:
        self.name, self.requested_bytes, self.size_bytes, self.segment_bytes = (
            name,
            requested_bytes,
            size_bytes,
            segment_bytes,
        )
        self.allocated_bytes, self.reserved_bytes, self.limit_bytes = allocated_bytes, reserved_bytes, limit_bytes
        self.largest_free_bytes, self.reason = largest_free_bytes, reason
        super().__init__(self._sentence())

    @property
    def driver_free_bytes(self) -> int:
        return self.limit_bytes - self.reserved_bytes

    @property
    def free_bytes(self) -> int:
        """Cached and unused, or not yet asked of the driver: the fair share that one might count on."""
        return self.limit_bytes - self.allocated_bytes

    def _sentence(self) -> str:
        want, free = format_bytes(self.size_bytes), format_bytes(self.free_bytes)
        if self.reason == FRAGMENTED:
            hole, left = format_bytes(self.largest_free_bytes), format_bytes(self.driver_free_bytes)
            return (
                f"cannot serve {want} though {free} are free: the largest hole is {hole}, "
                f"and the driver, asked for {format_bytes(self.segment_bytes)}, has {left}"
            )
        limit = "the limit for this process" if self.reason == CAPPED else "the device"
        return (
            f"cannot serve {want}: {format_bytes(self.allocated_bytes)} are in use and {limit} ends at "
            f"{format_bytes(self.limit_bytes)}, so {free} are free"
        )

    def _render_traceback_(self) -> list[str]:
        """IPython prints this instead of a traceback."""
        return [f"OutOfMemory ({self.reason}): {self}"]


def _reused(outcome: Outcome) -> str:
    whose = f" that {outcome.was} left" if outcome.was else ""
    spare = outcome.source_bytes - outcome.requested_bytes
    note = f", {format_bytes(spare)} of it unused" if spare else ""
    return f"reused the free block of {format_bytes(outcome.source_bytes)}{whose}{note}"


def _split(outcome: Outcome) -> str:
    whose = f" that {outcome.was} left" if outcome.was else ""
    return (
        f"split the free block of {format_bytes(outcome.source_bytes)}{whose}: "
        f"{format_bytes(outcome.size_bytes)} taken, {format_bytes(outcome.rest_bytes)} still free"
    )


def _segment(outcome: Outcome) -> str:
    rest = f" and split it: {format_bytes(outcome.rest_bytes)} still free" if outcome.rest_bytes else ""
    return f"{_retry(outcome)}asked the driver for a new segment of {format_bytes(outcome.source_bytes)}{rest}"


def _grown(outcome: Outcome) -> str:
    mapped = sum(event.size_bytes for event in outcome.events if event.action == SEGMENT_MAP)
    rest = f": {format_bytes(outcome.rest_bytes)} still free" if outcome.rest_bytes else ""
    return f"{_retry(outcome)}grew the expandable segment by {format_bytes(mapped)}{rest}"


def _retry(outcome: Outcome) -> str:
    returned = outcome.returned_bytes
    return f"the driver had too little, so {format_bytes(returned)} of cache went back first; then " if returned else ""


def _freed(outcome: Outcome) -> str:
    merged = f" and merged it into a hole of {format_bytes(outcome.source_bytes)}" if outcome.merged else ""
    return f"kept {format_bytes(outcome.size_bytes)} in the cache{merged}; the driver gets nothing back"


def _emptied(outcome: Outcome) -> str:
    if not outcome.events:
        return "gave nothing back: no segment is without a live block"
    return f"gave {format_bytes(outcome.returned_bytes)} back to the driver"


_SENTENCES = {
    REUSED: _reused,
    SPLIT: _split,
    SEGMENT: _segment,
    GROWN: _grown,
    FREED: _freed,
    EMPTIED: _emptied,
    NOTHING: lambda outcome: "took nothing: a tensor of 0 bytes has no block",
    FAILED: lambda outcome: "out of memory",
}
