"""Expandable segments: one range of addresses per pool and stream, backed by memory page by page.

Pages are 2 MiB in the small pool and 20 MiB in the large one, so the range grows where it ends instead of leaving
a separate hole for each size. Note [Expandable Segments] in c10/cuda/CUDACachingAllocator.cpp.
"""

from __future__ import annotations

from collections.abc import Iterator

from .blocks import Chunk, Pool, merge
from .driver import RANGE_BYTES, Driver


class Range:
    """The reserved addresses of one expandable segment."""

    __slots__ = ("address", "page", "size")

    def __init__(self, address: int, page: int) -> None:
        self.address, self.page = address, page
        self.size = RANGE_BYTES // page * page


def grow(pool: Pool, driver: Driver, stream: int, size: int, page: int) -> Chunk | None:
    """A mapped free chunk of at least `size`, off the free list; None when the driver has no pages left.

    try_allocate_expandable_block: what was mapped before a failure stays mapped, and free.
    """
    chunk = _room(pool, driver, stream, size, page)
    if not chunk.mapped and not _map(chunk, driver, min(chunk.size, size)):
        return None
    while chunk.size < size:
        following = chunk.next  # free -> unmapped: mapping merges the two, and `following` is what remains
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
        if _room_to_grow(other) >= _room_to_grow(chosen):
            break
        chosen = other
    return chosen


def _room_to_grow(chunk: Chunk) -> int:
    return chunk.size + (chunk.next.size if chunk.next and not chunk.next.mapped else 0)


def _room(pool: Pool, driver: Driver, stream: int, size: int, page: int) -> Chunk:
    """The lowest address from which free and unmapped chunks make up `size`; a new range if none does."""
    unmapped = (chunk for chunk in pool.unmapped.values() if chunk.stream == stream)
    for chunk in sorted(unmapped, key=lambda chunk: chunk.address):
        start = chunk.prev if chunk.prev and not chunk.prev.allocated else chunk
        if _has_room(start, size):
            return start
    pages = -(-size // page) * page
    range_ = Range(driver.reserve_addresses(pages), page)
    chunk = Chunk(range_.address, range_.size, stream, pool, range_)
    chunk.mapped = False
    pool.unmapped[chunk.address] = chunk
    return chunk


def _has_room(chunk: Chunk | None, size: int) -> bool:
    while size > 0 and chunk and not chunk.allocated:
        size -= chunk.size
        chunk = chunk.next
    return size <= 0


def _map(chunk: Chunk, driver: Driver, size: int) -> bool:
    """Back the front of an unmapped chunk with pages, and join it to its free neighbours (map_block)."""
    page, pool = chunk.range.page, chunk.pool
    mapped = -(-size // page) * page
    if not driver.map(chunk.address, mapped, chunk.stream):
        return False
    del pool.unmapped[chunk.address]
    chunk.mapped = True
    if mapped < chunk.size:
        rest = Chunk(chunk.address + mapped, chunk.size - mapped, chunk.stream, pool, chunk.range)
        rest.mapped = False
        rest.put_between(chunk, chunk.next)
        pool.unmapped[rest.address] = rest
        chunk.size = mapped
    merge(chunk, chunk.prev)
    merge(chunk, chunk.next)
    pool.free.add(chunk)
    return True


def _unmap(chunk: Chunk, driver: Driver) -> None:
    """Give back the whole pages inside a free chunk; what sticks out at either end stays (unmap_block)."""
    base, page, pool = chunk.range.address, chunk.range.page, chunk.pool
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
