"""Segments as they are shown, and the chunks and free lists that the simulator works on."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

ALLOCATED, FREE, PENDING = "allocated", "free", "pending"  # pending: freed, and another stream may still use it


@dataclass(frozen=True)
class SegmentBlock:
    """A piece of a segment. `requested_bytes` is what the program asked for, 0 when free; `name` who asked."""

    address: int
    size_bytes: int
    requested_bytes: int
    state: str
    name: str = ""

    @property
    def is_free(self) -> bool:
        return self.state == FREE


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
        return sum(block.size_bytes for block in self.blocks if block.state == ALLOCATED)

    @property
    def free_bytes(self) -> int:
        return sum(block.size_bytes for block in self.blocks if block.is_free)

    @property
    def largest_free_bytes(self) -> int:
        return max((block.size_bytes for block in self.blocks if block.is_free), default=0)


class Chunk:
    """One block at work: a node of its segment's list (struct Block in c10/cuda/CUDACachingAllocator.cpp)."""

    __slots__ = (
        "address",
        "allocated",
        "last",
        "mapped",
        "name",
        "next",
        "pool",
        "prev",
        "range",
        "requested",
        "size",
        "stream",
    )

    def __init__(self, address: int, size: int, stream: int, pool: Pool, range_: object = None) -> None:
        self.address, self.size, self.stream, self.pool, self.range = address, size, stream, pool, range_
        self.requested, self.name, self.allocated, self.mapped = 0, "", False, True
        self.last = ""  # whose memory this chunk was, exactly as it lies there now
        self.prev: Chunk | None = None
        self.next: Chunk | None = None

    @property
    def is_split(self) -> bool:
        return self.prev is not None or self.next is not None

    def put_between(self, before: Chunk | None, after: Chunk | None) -> None:
        self.prev, self.next = before, after
        if before:
            before.next = self
        if after:
            after.prev = self


class FreeList:
    """Free chunks in the order (stream, size, address): the first that is large enough is the best fit."""

    def __init__(self) -> None:
        self._keys: list[tuple[int, int, int]] = []
        self._chunks: dict[int, Chunk] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[Chunk]:
        return (self._chunks[key[2]] for key in self._keys)

    def add(self, chunk: Chunk) -> None:
        insort(self._keys, (chunk.stream, chunk.size, chunk.address))
        self._chunks[chunk.address] = chunk

    def remove(self, chunk: Chunk) -> None:
        del self._keys[bisect_left(self._keys, (chunk.stream, chunk.size, chunk.address))]
        del self._chunks[chunk.address]

    def from_size(self, stream: int, size: int) -> Iterator[Chunk]:
        """The chunks of `stream` with at least `size` bytes, smallest first."""
        for at in range(bisect_left(self._keys, (stream, size, 0)), len(self._keys)):
            if self._keys[at][0] != stream:
                return
            yield self._chunks[self._keys[at][2]]

    def of_stream(self, stream: int) -> list[Chunk]:
        return list(self.from_size(stream, 0))


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
    blocks, chunk = [], head
    while chunk is not None and chunk.mapped:
        state = ALLOCATED if chunk.allocated else FREE
        requested, name = (chunk.requested, chunk.name) if chunk.allocated else (0, "")
        blocks.append(SegmentBlock(chunk.address, chunk.size, requested, state, name))
        chunk = chunk.next
    size = sum(block.size_bytes for block in blocks)
    return Segment(head.address, size, head.stream, head.pool.name, head.range is not None, tuple(blocks))
