"""The CUDA driver as the allocator sees it: bytes that it gives and takes back, and addresses."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from ..breakdown import TextEnum


class DriverCall(TextEnum):
    """What is asked of the driver, named as in the `device_traces` of a snapshot."""

    ALLOC = "segment_alloc"
    FREE = "segment_free"
    MAP = "segment_map"
    UNMAP = "segment_unmap"


TAKES, RETURNS = (DriverCall.ALLOC, DriverCall.MAP), (DriverCall.FREE, DriverCall.UNMAP)
FIRST_ADDRESS = 0x7F00_0000_0000
RANGE_BYTES = 2**40  # virtual addresses per expandable segment; the real one reserves 9/8 of the card
STRIDE = 2**25  # virtual addresses that cudaMalloc takes at a time: 32 MiB, or the next multiple


class SegmentEvent(NamedTuple):
    """One call to the driver."""

    action: DriverCall
    size_bytes: int
    address: int
    stream: int


@dataclass(slots=True, eq=False)
class FreeAddresses:
    """The unused upper end of a stretch of addresses."""

    address: int
    size: int


class Driver:
    """Hands out at most `capacity_bytes` (None: no end), and remembers each call in `calls`.

    Best fit breaks ties by address, so where new segments lie decides fragmentation. Addresses are taken in stretches
    of 32 MiB or a multiple, each below the last: a GPU shares the addresses of its process, and Linux hands those out
    from the top down. What does not fill its stretch leaves room above it, and a segment goes into the oldest room that
    holds it. The driver's source is not public, so that is inferred: with it twenty published runs come out exactly in
    reserved bytes, with one address after the other upwards up to 8.9 % off, downwards 0.28 %.

    No address is used twice, so equal traces give equal addresses. `recorded` are the (size, address) pairs that a real
    driver answered, first come first used.
    """

    def __init__(self, capacity_bytes: int | None = None, recorded: Iterable[tuple[int, int]] = ()) -> None:
        self.capacity_bytes = capacity_bytes
        self.reserved_bytes = self.peak_reserved_bytes = 0
        self.calls: list[SegmentEvent] = []
        self._rooms: list[FreeAddresses] = []  # the oldest first
        self._recorded = deque(recorded)
        self._next = min([FIRST_ADDRESS, *(address for _, address in self._recorded)])  # below all: no address twice

    def malloc(self, size: int, stream: int) -> int | None:
        """cudaMalloc: an address, or None when the device is full."""
        if not self._fits(size):
            return None
        address = self._address(size)
        self._count(SegmentEvent(DriverCall.ALLOC, size, address, stream), size)
        return address

    def hold(self, size: int, address: int, stream: int) -> None:
        """A segment that was there before."""
        self._next = min(self._next, address)
        self._count(SegmentEvent(DriverCall.ALLOC, size, address, stream), size)

    def free(self, address: int, size: int, stream: int) -> None:
        self._count(SegmentEvent(DriverCall.FREE, size, address, stream), -size)

    def reserve_addresses(self, first_map_bytes: int) -> int:
        """cuMemAddressReserve: where an expandable segment begins. Costs no memory."""
        if self._recorded and self._recorded[0][0] == first_map_bytes:
            return self._recorded[0][1]  # it stays recorded for the call of map that follows
        self._next -= RANGE_BYTES
        return self._next

    def map(self, address: int, size: int, stream: int) -> bool:
        """cuMemCreate and cuMemMap of whole pages, all or none of them."""
        if not self._fits(size):
            return False
        if self._recorded and self._recorded[0] == (size, address):
            self._recorded.popleft()
        self._count(SegmentEvent(DriverCall.MAP, size, address, stream), size)
        return True

    def unmap(self, address: int, size: int, stream: int) -> None:
        self._count(SegmentEvent(DriverCall.UNMAP, size, address, stream), -size)

    def _fits(self, size: int) -> bool:
        return self.capacity_bytes is None or self.reserved_bytes + size <= self.capacity_bytes

    def _count(self, event: SegmentEvent, change: int) -> None:
        self.reserved_bytes += change
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)
        self.calls.append(event)

    def _address(self, size: int) -> int:
        if self._recorded and self._recorded[0][0] == size:
            return self._recorded.popleft()[1]
        room = next((room for room in self._rooms if room.size >= size), None) or self._stretch(size)
        address = room.address
        room.address, room.size = room.address + size, room.size - size
        if not room.size:
            self._rooms.remove(room)
        return address

    def _stretch(self, size: int) -> FreeAddresses:
        taken = -(-size // STRIDE) * STRIDE
        self._next = (self._next - taken) // STRIDE * STRIDE
        self._rooms.append(FreeAddresses(self._next, taken))
        return self._rooms[-1]
