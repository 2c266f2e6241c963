"""What a source says of a card at one moment, and a ring that keeps the latest of it in memory that never grows."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from ..catalog.errors import WorkbookError, require_whole


@dataclass(frozen=True)
class Reading:
    """One card at one moment. `lost` is the reason why it does not answer, and "" when it does.

    `used_bytes` is everybody's memory on the card, the driver's own included, so used and free make the total.
    `utilization` is the share of time from 0 to 1 in which a kernel ran, None where the driver does not tell.
    """

    gpu: int
    uuid: str
    name: str
    used_bytes: int = 0
    total_bytes: int = 0
    utilization: float | None = None
    lost: str = ""


class Source(Protocol):
    """Where readings come from: NVML, a simulated card, or a test's own."""

    def read(self, time_s: float) -> tuple[Reading, ...]: ...


class Ring:
    """The last `capacity` samples of a counter, as (seconds, bytes); sixteen bytes each, allocated once.

    >>> ring = Ring(2)
    >>> for second in range(3):
    ...     ring.add(second, 512 * second)
    >>> list(ring)
    [(1.0, 512), (2.0, 1024)]
    """

    def __init__(self, capacity: int) -> None:
        require_whole("capacity", capacity, 1, unit="samples")
        self._times, self._values = array("d", bytes(8 * capacity)), array("q", bytes(8 * capacity))
        self._next = self._length = 0

    def add(self, time_s: float, value_bytes: int) -> None:
        """Keep a sample; the oldest goes when the ring is full. Time never runs backwards: WorkbookError."""
        if self._length and not time_s > self._times[self._next - 1]:
            what = f"a sample at {time_s:g} s after one at {self._times[self._next - 1]:g} s"
            raise WorkbookError(what, "times that increase", "take them from time.monotonic()")
        self._times[self._next], self._values[self._next] = time_s, value_bytes
        self._next = (self._next + 1) % len(self._times)
        self._length = min(self._length + 1, len(self._times))

    def clear(self) -> None:
        self._next = self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[tuple[float, int]]:
        """Oldest first."""
        start = self._next - self._length
        return ((self._times[index], self._values[index]) for index in range(start, self._next))
