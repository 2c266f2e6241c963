"""The caching allocator itself: DeviceCachingAllocator in c10/cuda/CUDACachingAllocator.cpp, PyTorch 2.11 to 2.13.

Followed: rounding, the two pools, best fit, splitting, merging, oversize blocks, expandable segments, the retry when
the driver refuses, a memory fraction, streams. Not followed: record_stream (a block that another stream still uses),
CUDA graphs' and users' own pools, garbage collection by age, cudaMallocAsync.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ...catalog.errors import WorkbookError, require_whole
from ..breakdown import BLOCK_BYTES
from . import blocks
from .blocks import Chunk, Pool, Segment, merge, shown
from .driver import RANGE_BYTES, Driver
from .outcome import AllocatorOutcome, OutcomeKind, OutOfMemory, Reason
from .settings import SMALL_BYTES, Settings


class Allocation(NamedTuple):
    """The handle of a live block; give it to `free`."""

    serial: int
    address: int
    size_bytes: int
    requested_bytes: int


class Allocator:
    """One device's allocator. `capacity_bytes` is what the driver can give it, None for no end.

    `allowed_bytes` is the limit of `torch.cuda.set_per_process_memory_fraction`. Call `alloc`, `free` and
    `empty_cache`; `last` is the Outcome of the call before. Bytes in use and held, with their peaks, are those of
    torch.cuda.memory_allocated and memory_reserved.

    >>> allocator = Allocator()
    >>> block = allocator.alloc(3 * 2**20)
    >>> allocator.allocated_bytes // 2**20, allocator.reserved_bytes // 2**20
    (3, 20)
    """

    def __init__(
        self,
        settings: Settings | None = None,
        capacity_bytes: int | None = None,
        allowed_bytes: int | None = None,
        driver: Driver | None = None,
    ) -> None:
        for name, limit in (("capacity_bytes", capacity_bytes), ("allowed_bytes", allowed_bytes)):
            if limit is not None:
                require_whole(name, limit, 0, RANGE_BYTES, unit="bytes")
        self.settings, self.allowed_bytes = settings or Settings(), allowed_bytes
        self.driver = driver or Driver(capacity_bytes)
        self.small, self.large = Pool(is_small=True), Pool(is_small=False)
        self.live: dict[int, Chunk] = {}
        self.allocated_bytes = self.peak_allocated_bytes = 0
        self.last = AllocatorOutcome(OutcomeKind.NOTHING)
        self._serial = 0

    @property
    def reserved_bytes(self) -> int:
        return self.driver.reserved_bytes

    @property
    def peak_reserved_bytes(self) -> int:
        return self.driver.peak_reserved_bytes

    @property
    def segments(self) -> tuple[Segment, ...]:
        """What the allocator holds, the oldest first."""
        made = {call.address: number for number, call in enumerate(self.driver.calls)}
        return shown([*self.live.values(), *self.small.free, *self.large.free], made)

    def begin_with(self, segments: Iterable[Segment]) -> Iterator[tuple[int, Allocation]]:
        """Hold these segments, as another allocator held them: the handle of each live block, by its address."""
        for segment in segments:
            before, pool = None, self.small if segment.pool == "small" else self.large
            self.driver.hold(segment.size_bytes, segment.address, segment.stream)
            for block in segment.blocks:
                chunk = Chunk(block.address, block.size_bytes, segment.stream, pool)
                chunk.put_between(before, None)
                before = chunk
                if block.is_free:
                    pool.free.add(chunk)
                    continue
                self._serial += 1
                chunk.allocated, chunk.requested, chunk.name = True, block.requested_bytes, block.name
                self.live[self._serial] = chunk
                self.allocated_bytes += chunk.size
                yield block.address, Allocation(self._serial, chunk.address, chunk.size, chunk.requested)
        self.peak_allocated_bytes = self.allocated_bytes

    def alloc(self, size_bytes: int, stream: int = 0, name: str = "") -> Allocation:
        """A block of at least `size_bytes`; OutOfMemory when there is none, WorkbookError for a size that is none.

        0 bytes take nothing, as in torch.
        """
        require_whole("size_bytes", size_bytes, 0, RANGE_BYTES, unit="bytes")
        self._serial += 1
        if size_bytes == 0:
            self.last = AllocatorOutcome(OutcomeKind.NOTHING, name)
            return Allocation(self._serial, 0, 0, 0)
        size, calls = self.settings.block_bytes(size_bytes), len(self.driver.calls)
        pool = self.small if size <= SMALL_BYTES else self.large
        found = self._cached(pool, stream, size)
        chunk = found or self._new(pool, stream, size)
        events = tuple(self.driver.calls[calls:])
        if chunk is None:
            self.last = AllocatorOutcome(OutcomeKind.FAILED, name, size_bytes, size, events=events)
            raise self._out_of_memory(pool, stream, size, size_bytes, name)
        source, was = chunk.size, chunk.last
        rest = self._take(chunk, size) if self._should_split(chunk, size) else 0
        fresh = OutcomeKind.GROWN if chunk.range else OutcomeKind.SEGMENT
        kind = fresh if not found else OutcomeKind.SPLIT if rest else OutcomeKind.REUSED
        chunk.allocated, chunk.requested, chunk.name, chunk.last = True, size_bytes, name, ""
        self.live[self._serial] = chunk
        self.allocated_bytes += chunk.size
        self.peak_allocated_bytes = max(self.peak_allocated_bytes, self.allocated_bytes)
        self.last = AllocatorOutcome(
            kind, name, size_bytes, chunk.size, chunk.address, source, rest, was, events=events
        )
        return Allocation(self._serial, chunk.address, chunk.size, size_bytes)

    def free(self, handle: Allocation) -> None:
        """Put the block back into the cache, merged with free neighbours; the driver hears nothing (free_block)."""
        if not isinstance(handle, Allocation):
            raise WorkbookError(f"{handle!r} is no allocation", "what alloc returned", "keep it: block = alloc(…)")
        if handle.size_bytes == 0:
            self.last = AllocatorOutcome(OutcomeKind.NOTHING)
            return
        chunk = self.live.pop(handle.serial, None)
        if chunk is None or chunk.address != handle.address:
            do = "free each block once, with the allocator that it came from"
            raise WorkbookError("this block is not allocated", "a block that alloc returned and nobody has freed", do)
        size, name, requested = chunk.size, chunk.name, chunk.requested
        chunk.allocated, chunk.requested, chunk.name, chunk.last = False, 0, "", chunk.name
        self.allocated_bytes -= size
        merged = merge(chunk, chunk.prev) + merge(chunk, chunk.next)
        chunk.pool.free.add(chunk)
        self.last = AllocatorOutcome(
            OutcomeKind.FREED, name, requested, size, handle.address, chunk.size, merged=merged
        )

    def empty_cache(self) -> None:
        """Give back every segment without a live block, and every free page of expandable ones."""
        calls = len(self.driver.calls)
        self._release_cached()
        self.last = AllocatorOutcome(OutcomeKind.EMPTIED, events=tuple(self.driver.calls[calls:]))

    def _cached(self, pool: Pool, stream: int, size: int) -> Chunk | None:
        """get_free_block: the smallest free block of the stream that is large enough, unless it may not be used."""
        candidates, limit = pool.free.from_size(stream, size), self.settings.max_split_bytes
        chunk = blocks.best_fit(candidates) if self.settings.expandable_segments else next(candidates, None)
        if chunk is None:
            return None
        if limit is not None and size < limit <= chunk.size:  # an oversize block is kept for oversize requests
            return None
        if limit is not None and size >= limit and chunk.size >= size + self.settings.slack_bytes:
            return None
        pool.free.remove(chunk)
        return chunk

    def _new(self, pool: Pool, stream: int, size: int) -> Chunk | None:
        """malloc: ask the driver; if it refuses, give back what may help and ask again, then everything."""
        chunk = self._ask(pool, stream, size)
        if chunk is None and self._release_oversize(pool, stream, size):
            chunk = self._ask(pool, stream, size)
        if chunk is None:
            self._release_cached()
            chunk = self._ask(pool, stream, size)
        return chunk

    def _ask(self, pool: Pool, stream: int, size: int) -> Chunk | None:
        """alloc_block: a new segment, or more pages of the expandable one."""
        segment = self.settings.segment_bytes(size)
        if self.allowed_bytes is not None and self.reserved_bytes + segment > self.allowed_bytes:
            return None
        if self.settings.expandable_segments:
            page = self.settings.segment_bytes(1) if pool.is_small else self.settings.large_segment_bytes
            return blocks.grow(pool, self.driver, stream, size, page)
        address = self.driver.malloc(segment, stream)
        return None if address is None else Chunk(address, segment, stream, pool)

    def _should_split(self, chunk: Chunk, size: int) -> bool:
        """should_split: 512 B are worth keeping in the small pool and in expandable segments, else over 1 MiB."""
        rest = chunk.size - size
        if chunk.pool.is_small or self.settings.expandable_segments:
            return rest >= BLOCK_BYTES
        limit = self.settings.max_split_bytes
        return (limit is None or size < limit) and rest > SMALL_BYTES

    def _take(self, chunk: Chunk, size: int) -> int:
        """Cut `chunk` down to `size`; the rest goes on the free list (alloc_found_block). Returns the rest's size."""
        rest = Chunk(chunk.address + size, chunk.size - size, chunk.stream, chunk.pool, chunk.range)
        rest.put_between(chunk, chunk.next)
        chunk.pool.free.add(rest)
        chunk.size = size
        return rest.size

    def _release_oversize(self, pool: Pool, stream: int, size: int) -> bool:
        """release_available_cached_blocks, with max_split_size_mb only: give back one oversize block, or the largest.

        False when they do not suffice; those that were given back stay so.
        """
        limit = self.settings.max_split_bytes
        if limit is None or self.settings.expandable_segments:
            return False
        wanted = max(size, limit)
        enough = next(pool.free.from_size(stream, wanted), None)
        chosen = [enough] if enough else []
        if not chosen:
            for chunk in reversed(list(pool.free.from_size(stream, limit))):
                if sum(c.size for c in chosen) >= wanted:
                    break
                chosen.append(chunk)
        for chunk in chosen:
            self._release(chunk)
        return sum(chunk.size for chunk in chosen) >= wanted

    def _release_cached(self) -> None:
        """release_cached_blocks: the large pool first, each in the order of its free list."""
        for pool in (self.large, self.small):
            chunks = list(pool.free)
            for chunk in chunks:
                if chunk.range is None and not chunk.is_split:
                    self._release(chunk)
            blocks.release([chunk for chunk in chunks if chunk.range is not None], self.driver)

    def _release(self, chunk: Chunk) -> None:
        chunk.pool.free.remove(chunk)
        self.driver.free(chunk.address, chunk.size, chunk.stream)

    def _out_of_memory(self, pool: Pool, stream: int, size: int, requested: int, name: str) -> OutOfMemory:
        limit = min(limit for limit in (self.driver.capacity_bytes, self.allowed_bytes) if limit is not None)
        allocated, segment = self.allocated_bytes, self.settings.segment_bytes(size)
        largest = max((chunk.size for chunk in pool.free.from_size(stream, 0)), default=0)
        reason = Reason.CAPPED if self.allowed_bytes == limit else Reason.FULL
        if allocated + size <= limit:
            reason = Reason.FRAGMENTED
        return OutOfMemory(name, requested, size, segment, allocated, self.reserved_bytes, limit, largest, reason)
