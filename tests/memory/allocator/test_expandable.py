"""Expandable segments: they grow by pages, merge where cudaMalloc's never do, and give back free pages."""

import pytest

from helpers.memory.allocator import MIB, Allocator, OutOfMemory, Settings
from tests.memory.allocator.audit import audit

EXPANDABLE = Settings(expandable_segments=True)


@pytest.fixture
def allocator():
    return Allocator(EXPANDABLE)


def blocks(allocator):
    return [[(1 if b.state == "allocated" else -1) * b.size_bytes // MIB for b in s.blocks] for s in allocator.segments]


def calls(allocator):
    return [(event.action, event.size_bytes // MIB) for event in allocator.driver.calls]


def test_the_large_pool_grows_by_pages_of_20_mib(allocator):
    allocator.alloc(3 * MIB)
    allocator.alloc(30 * MIB)  # 17 are left of the first page: 13 more need one page
    assert blocks(allocator) == [[3, 30, -7]]
    assert calls(allocator) == [("segment_map", 20), ("segment_map", 20)]
    assert allocator.last.kind == "grown"


def test_the_small_pool_grows_by_pages_of_2_mib(allocator):
    for _ in range(3):
        allocator.alloc(MIB)
    assert calls(allocator) == [("segment_map", 2), ("segment_map", 2)]
    assert blocks(allocator) == [[1, 1, 1, -1]]


def test_a_fresh_request_maps_whole_pages_at_once(allocator):
    allocator.alloc(45 * MIB)
    assert calls(allocator) == [("segment_map", 60)]
    assert blocks(allocator) == [[45, -15]]


def test_remainders_of_512_bytes_are_kept_in_the_large_pool_too(allocator):
    allocator.alloc(20 * MIB - 512)
    assert [block.size_bytes for block in allocator.segments[0].blocks] == [20 * MIB - 512, 512]


def test_holes_merge_that_cudamalloc_would_keep_apart(allocator):
    for block in [allocator.alloc(20 * MIB) for _ in range(2)]:
        allocator.free(block)
    allocator.alloc(40 * MIB)
    assert blocks(allocator) == [[40]]
    assert allocator.reserved_bytes == 40 * MIB


def test_empty_cache_unmaps_whole_free_pages_around_what_lives(allocator):
    a, b, c = allocator.alloc(30 * MIB), allocator.alloc(30 * MIB), allocator.alloc(30 * MIB)
    assert blocks(allocator) == [[30, 30, 30, -10]]
    allocator.free(b)  # 30 to 60 MiB: the page from 40 to 60 is free, 30 to 40 shares one with `a`
    allocator.empty_cache()
    assert blocks(allocator) == [[30, -10], [30, -10]]
    assert calls(allocator)[-1] == ("segment_unmap", 20)
    audit(allocator)
    allocator.free(a)
    allocator.free(c)
    allocator.empty_cache()
    assert (allocator.reserved_bytes, allocator.segments) == (0, ())
    assert allocator.large.unmapped == {}, "an empty range is given back"


def test_a_gap_that_was_unmapped_is_filled_before_the_end_grows(allocator):
    _a, b, _c = (allocator.alloc(20 * MIB) for _ in range(3))
    allocator.free(b)
    allocator.empty_cache()
    again = allocator.alloc(15 * MIB)
    assert again.address == b.address
    assert blocks(allocator) == [[20, 15, -5, 20]]


def test_a_gap_too_narrow_is_left_for_the_end(allocator):
    _a, b, c = (allocator.alloc(20 * MIB) for _ in range(3))
    allocator.free(b)
    allocator.empty_cache()
    wide = allocator.alloc(25 * MIB)
    assert wide.address == c.address + 20 * MIB


def test_the_growing_end_is_spared_when_a_hole_fits(allocator):
    """Best fit counts the end with all the addresses that it can grow into, so the hole of 20 wins over 5."""
    a = allocator.alloc(20 * MIB)
    allocator.alloc(35 * MIB)
    allocator.free(a)
    assert blocks(allocator) == [[-20, 35, -5]]
    assert allocator.alloc(4 * MIB).address == a.address


def test_streams_have_ranges_of_their_own(allocator):
    allocator.alloc(MIB, stream=1)
    allocator.alloc(MIB, stream=2)
    assert [segment.stream for segment in allocator.segments] == [1, 2]


def test_what_fragments_plain_segments_fits_here():
    def needs(settings):
        allocator = Allocator(settings, capacity_bytes=64 * MIB)
        allocator.free(allocator.alloc(40 * MIB))
        allocator.alloc(12 * MIB)
        allocator.alloc(36 * MIB)
        return allocator.reserved_bytes

    assert needs(EXPANDABLE) == 60 * MIB
    with pytest.raises(OutOfMemory):
        needs(Settings())


def test_out_of_memory_after_unmapping_and_trying_again():
    allocator = Allocator(EXPANDABLE, capacity_bytes=60 * MIB)
    a, _b = allocator.alloc(20 * MIB), allocator.alloc(20 * MIB)
    allocator.free(a)
    allocator.alloc(30 * MIB)  # one page left, two needed: a's page goes back first
    assert blocks(allocator) == [[20, 30, -10]]
    with pytest.raises(OutOfMemory) as caught:
        allocator.alloc(15 * MIB)
    assert caught.value.reason == "full"
    audit(allocator)
    with pytest.raises(OutOfMemory):
        allocator.alloc(512)  # the small pool's page of 2 MiB finds no room either, though 10 MiB are free
    allocator.alloc(8 * MIB)


def test_the_limit_counts_a_page_per_request():
    """alloc_block compares reserved + 20 MiB with the limit, though no page would be needed but one."""
    allocator = Allocator(EXPANDABLE, allowed_bytes=30 * MIB)
    allocator.alloc(20 * MIB)
    with pytest.raises(OutOfMemory) as caught:
        allocator.alloc(5 * MIB)
    assert caught.value.reason == "fragmented"
