"""Reserved bytes where loading is a race: a loader's threads read weights while the main thread quantizes others.

The trace loads one weight after the other. Of the same events, put in the order of a loader that is some weights ahead,
the allocator makes another layout, and reserves more or less for good; what is allocated after loading is the same.
How far a loader gets ahead depends on the disk and the processor, so the answer is a range over distances.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from ...catalog.loaders import Loader, loader
from ..allocator import replay
from ..meter.timeline import AllocationEvent

if TYPE_CHECKING:
    from .record import Trace

# Weights ahead of the quantizer. A measured step of SmolLM2-1.7B is met at 12, to the MiB. Equal runs of Qwen2.5-7B lay
# 11.7 % apart: its distances up to 32 span 8.9 %, and up to 64 19 %
DISTANCES = (0, 1, 2, 4, 8, 12, 16, 24, 32, 48, 64)


@dataclass(frozen=True)
class ReservedRange:
    """Reserved bytes lie between `low` and `high`, for the reason `why`; where loading is no race both are one."""

    low: int
    high: int
    why: str

    def __contains__(self, size_bytes: int) -> bool:
        return self.low <= size_bytes <= self.high


def reserved_range(found: Trace, version: str | None = None) -> ReservedRange:
    """What `found.peak_reserved_bytes` may be with Transformers `version`, the installed one where it is None.

    It takes a replay for each distance, and only where the base was quantized while it was loaded by a release that
    reads ahead: SmolLM2-1.7B in NF4, eager, one sequence of 2,048, 4,820 to 5,744 MiB with 5.0, and 5,556 with 5.17.
    """
    by = loader(version)
    if not (found.weights_from and by.reads_ahead):
        return ReservedRange(found.peak_reserved_bytes, found.peak_reserved_bytes, _why(found, by))
    peaks = list(map(partial(_peak_reserved_bytes, found), DISTANCES))
    return ReservedRange(min(peaks), max(peaks), _why(found, by))


def _why(found: Trace, by: Loader) -> str:
    if not found.weights_from:
        return "no weight is quantized while the model is loaded"
    if by.reads_ahead:
        return f"{by.title} read weights ahead of the quantizer, 0 to {DISTANCES[-1]} here"
    return f"{by.title} quantize each weight before the next is read"


def _peak_reserved_bytes(found: Trace, ahead: int) -> int:
    events = found.events if not ahead else tuple(in_order_of(found.events, found.weights_from, ahead))
    return max(replay(events).reserved[max(0, found.first - 1) :])


def in_order_of(events: Sequence[AllocationEvent], starts: Sequence[int], ahead: int) -> Iterator[AllocationEvent]:
    """`events` with each weight read as soon as the one `ahead` before it is being quantized.

    `starts` has the events with which weights begin, and the first event after them. The first event of a weight
    makes it whole; the others, if it is quantized, what is kept of it, and free it.
    """
    yield from events[: starts[0]]
    read = 0
    for at in range(len(starts) - 1):
        until = min(at + ahead + 1, len(starts) - 1)
        yield from (events[starts[weight]] for weight in range(read, until))
        read = until
        yield from events[starts[at] + 1 : starts[at + 1]]
    yield from events[starts[-1] :]
