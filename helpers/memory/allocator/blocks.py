"""Segments as they are shown, the chunks and free lists that the simulator works on, and segments that grow.

An expandable segment is one range of addresses per pool and stream, backed by memory page by page: 2 MiB in the small
pool and 20 MiB in the large one. So it grows where it ends instead of leaving a separate hole for each size. Note
[Expandable Segments] in c10/cuda/CUDACachingAllocator.cpp.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

from ..breakdown import TextEnum
from .driver import RANGE_BYTES, Driver


class BlockState(TextEnum):
    """Of a block: `PENDING` is freed, and another stream may still use it."""

    ALLOCATED = "allocated"
    FREE = "free"
    PENDING = "pending"


@dataclass(frozen=True)
class SegmentBlock:
    """A piece of a segment. `requested_bytes` is what the program asked for, 0 when free; `name` who asked."""

    address: int
    size_bytes: int
    requested_bytes: int
    state: BlockState
    name: str = ""

    @property
    def is_free(self) -> bool:
        return self.state is BlockState.FREE


@dataclass(frozen=True)
class Segment:
    """What one cudaMalloc returned, or one unbroken mapped range of an expandable segment; its blocks in order."""

    address: int
    size_bytes: int
    stream: int
    pool: str
    expandable: bool
    blocks: tuple[SegmentBlock, ...]
    device: int = 0
    private: bool = False  # of a CUDA graph's or a user's own memory pool

    @property
    def allocated_bytes(self) -> int:
        return sum(block.size_bytes for block in self.blocks if block.state is BlockState.ALLOCATED)

    @property
    def free_bytes(self) -> int:
        return sum(block.size_bytes for block in self.blocks if block.is_free)

    @property
    def largest_free_bytes(self) -> int:
        return max((block.size_bytes for block in self.blocks if block.is_free), default=0)


class Range(NamedTuple):
    """The reserved addresses of one expandable segment: where they begin, and the bytes of a page."""

    address: int
    page: int


@dataclass(eq=False, repr=False, slots=True)
class Chunk:
    """One block at work: a node of its segment's list (struct Block in c10/cuda/CUDACachingAllocator.cpp)."""

    address: int
    size: int
    stream: int
    pool: Pool
    range: Range | None = None
    mapped: bool = True
    allocated: bool = False
    requested: int = 0
    name: str = ""
    last: str = ""  # whose memory this chunk was, exactly as it lies there now
    prev: Chunk | None = None
    next: Chunk | None = None

    @property
    def is_split(self) -> bool:
        return self.prev is not None or self.next is not None

    def put_between(self, before: Chunk | None, after: Chunk | None) -> None:
        self.prev, self.next = before, after
        if before:
            before.next = self
        if after:
            after.prev = self


_ORDER = attrgetter("stream", "size", "address")


class FreeList:
    """Free chunks in the order (stream, size, address): the first that is large enough is the best fit."""

    def __init__(self) -> None:
        self._chunks: list[Chunk] = []

    def __iter__(self) -> Iterator[Chunk]:
        return iter(self._chunks)

    def add(self, chunk: Chunk) -> None:
        insort(self._chunks, chunk, key=_ORDER)

    def remove(self, chunk: Chunk) -> None:
        del self._chunks[bisect_left(self._chunks, _ORDER(chunk), key=_ORDER)]

    def from_size(self, stream: int, size: int) -> Iterator[Chunk]:
        """The chunks of `stream` with at least `size` bytes, smallest first."""
        for at in range(bisect_left(self._chunks, (stream, size, 0), key=_ORDER), len(self._chunks)):
            if self._chunks[at].stream != stream:
                return
            yield self._chunks[at]


class Pool:
    """The small or the large pool: its free chunks, and the unmapped ends of expandable segments by address."""

    def __init__(self, is_small: bool) -> None:
        self.is_small = is_small
        self.free = FreeList()
        self.unmapped: dict[int, Chunk] = {}

    @property
    def name(self) -> str:
        return "small" if self.is_small else "large"


def merge(into: Chunk, other: Chunk | None) -> bool:
    """Let `into` swallow a free neighbour (try_merge_blocks); False where there is none to swallow."""
    if other is None or other.allocated or into.mapped != other.mapped:
        return False
    if other.mapped:
        into.pool.free.remove(other)
    else:
        del into.pool.unmapped[other.address]
    if into.prev is other:
        into.address = other.address
        into.put_between(other.prev, into.next)
    else:
        into.put_between(into.prev, other.next)
    into.size += other.size
    into.last = ""
    return True


def shown(chunks: list[Chunk], made: Mapping[int, int]) -> tuple[Segment, ...]:
    """The segments that `chunks`, all the mapped ones, make up, in the order that `made` gives for their addresses.

    Mapped ranges of expandable segments come from the highest address down.
    """
    heads = (chunk for chunk in chunks if chunk.prev is None or not chunk.prev.mapped)
    return tuple(map(_segment, sorted(heads, key=lambda head: -head.address if head.range else made[head.address])))


def _segment(head: Chunk) -> Segment:
    blocks: list[SegmentBlock] = []
    chunk: Chunk | None = head
    while chunk is not None and chunk.mapped:
        state = BlockState.ALLOCATED if chunk.allocated else BlockState.FREE
        requested, name = (chunk.requested, chunk.name) if chunk.allocated else (0, "")
        blocks.append(SegmentBlock(chunk.address, chunk.size, requested, state, name))
        chunk = chunk.next
    size = sum(block.size_bytes for block in blocks)
    return Segment(head.address, size, head.stream, head.pool.name, head.range is not None, tuple(blocks))


def grow(pool: Pool, driver: Driver, stream: int, size: int, page: int) -> Chunk | None:
    """A mapped free chunk of at least `size`, off the free list; None when the driver has no pages left.

    try_allocate_expandable_block: what was mapped before a failure stays mapped, and free.
    """
    chunk = _room(pool, driver, stream, size, page)
    if not chunk.mapped and not _map(chunk, driver, min(chunk.size, size)):
        return None
    while chunk.size < size:
        following = chunk.next  # free -> unmapped: mapping merges the two, and `following` is what remains
        assert following is not None, "_room found less than it promised"
        if not _map(following, driver, min(size - chunk.size, following.size)):
            return None
        chunk = following
    pool.free.remove(chunk)
    return chunk


def release(chunks: list[Chunk], driver: Driver) -> None:
    """Unmap the whole pages within free chunks; a range without any mapped page is given back (release_blocks)."""
    for chunk in chunks:
        _unmap(chunk, driver)
        if not chunk.mapped and not chunk.is_split:
            del chunk.pool.unmapped[chunk.address]


def best_fit(candidates: Iterator[Chunk]) -> Chunk | None:
    """The chunk that get_free_block takes: one at the growing end counts with the room that it can grow into."""
    chosen = next(candidates, None)
    for other in candidates:
        if chosen is None or _room_to_grow(other) >= _room_to_grow(chosen):
            break
        chosen = other
    return chosen


def _range(chunk: Chunk) -> Range:
    assert chunk.range is not None, "only chunks of expandable segments are mapped"
    return chunk.range


def _room_to_grow(chunk: Chunk) -> int:
    return chunk.size + (chunk.next.size if chunk.next and not chunk.next.mapped else 0)


def _room(pool: Pool, driver: Driver, stream: int, size: int, page: int) -> Chunk:
    """The lowest address from which free and unmapped chunks make up `size`; a new range if none does."""
    unmapped = (chunk for chunk in pool.unmapped.values() if chunk.stream == stream)
    for chunk in sorted(unmapped, key=lambda chunk: chunk.address):
        start = chunk.prev if chunk.prev and not chunk.prev.allocated else chunk
        if _has_room(start, size):
            return start
    reserved = Range(driver.reserve_addresses(-(-size // page) * page), page)
    chunk = Chunk(reserved.address, RANGE_BYTES // page * page, stream, pool, reserved, mapped=False)
    pool.unmapped[chunk.address] = chunk
    return chunk


def _has_room(chunk: Chunk | None, size: int) -> bool:
    while size > 0 and chunk and not chunk.allocated:
        size -= chunk.size
        chunk = chunk.next
    return size <= 0


def _map(chunk: Chunk, driver: Driver, size: int) -> bool:
    """Back the front of an unmapped chunk with pages, and join it to its free neighbours (map_block)."""
    page, pool = _range(chunk).page, chunk.pool
    mapped = -(-size // page) * page
    if not driver.map(chunk.address, mapped, chunk.stream):
        return False
    del pool.unmapped[chunk.address]
    chunk.mapped = True
    if mapped < chunk.size:
        rest = Chunk(chunk.address + mapped, chunk.size - mapped, chunk.stream, pool, chunk.range, mapped=False)
        rest.put_between(chunk, chunk.next)
        pool.unmapped[rest.address] = rest
        chunk.size = mapped
    merge(chunk, chunk.prev)
    merge(chunk, chunk.next)
    pool.free.add(chunk)
    return True


def _unmap(chunk: Chunk, driver: Driver) -> None:
    """Give back the whole pages inside a free chunk; what sticks out at either end stays (unmap_block)."""
    (base, page), pool = _range(chunk), chunk.pool
    begin = base + -(-(chunk.address - base) // page) * page
    end = base + (chunk.address + chunk.size - base) // page * page
    if begin >= end:
        return
    pool.free.remove(chunk)
    for start, stop in ((chunk.address, begin), (end, chunk.address + chunk.size)):
        if stop > start:
            rest = Chunk(start, stop - start, chunk.stream, pool, chunk.range)
            rest.put_between(*((chunk.prev, chunk) if start < begin else (chunk, chunk.next)))
            pool.free.add(rest)
    chunk.address, chunk.size, chunk.mapped, chunk.last = begin, end - begin, False, ""
    driver.unmap(begin, end - begin, chunk.stream)
    merge(chunk, chunk.prev)
    merge(chunk, chunk.next)
    pool.unmapped[chunk.address] = chunk
