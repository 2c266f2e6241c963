"""What must hold of an allocator at every moment, whatever it was asked."""

from __future__ import annotations

from itertools import pairwise

from helpers.memory.allocator import Allocator, BlockState


def audit(allocator: Allocator) -> None:
    """No overlap, no bytes lost, counters true, free neighbours merged, free lists equal to what is free."""
    segments = allocator.segments
    for before, after in pairwise(sorted(segments, key=lambda segment: segment.address)):
        assert before.address + before.size_bytes <= after.address, "two segments overlap"
    for segment in segments:
        _audit_segment(segment)
    assert sum(segment.size_bytes for segment in segments) == allocator.reserved_bytes
    assert sum(segment.allocated_bytes for segment in segments) == allocator.allocated_bytes
    assert allocator.allocated_bytes <= allocator.reserved_bytes
    assert allocator.peak_allocated_bytes <= allocator.peak_reserved_bytes
    listed = [(chunk.address, chunk.size) for pool in (allocator.small, allocator.large) for chunk in pool.free]
    shown = [(block.address, block.size_bytes) for segment in segments for block in segment.blocks if block.is_free]
    assert sorted(listed) == sorted(shown), "the free lists and the segments disagree"
    for pool in (allocator.small, allocator.large):
        keys = [(chunk.stream, chunk.size, chunk.address) for chunk in pool.free]
        assert keys == sorted(keys), "a free list is out of order"


def _audit_segment(segment) -> None:
    address = segment.address
    for block in segment.blocks:
        assert block.address == address, "a gap or an overlap within a segment"
        assert block.size_bytes > 0
        assert block.size_bytes % 512 == 0
        assert block.requested_bytes <= block.size_bytes
        address += block.size_bytes
    assert address == segment.address + segment.size_bytes
    states = [block.state for block in segment.blocks]
    pairs = list(pairwise(states))
    assert (BlockState.FREE, BlockState.FREE) not in pairs, "free neighbours that nobody merged"
