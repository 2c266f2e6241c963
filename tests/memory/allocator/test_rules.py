"""The allocator's rules, each by a case that was worked out by hand."""

import pytest

from helpers.catalog import WorkbookError
from helpers.memory.allocator import MIB, Allocator, OutOfMemory, Settings
from helpers.memory.allocator.driver import Driver
from tests.memory.allocator.audit import audit

KIB = 1024


def sizes(allocator):
    """Each segment as its blocks' sizes in MiB, negative where free, the oldest first."""
    return [[(1 if b.state == "allocated" else -1) * b.size_bytes / MIB for b in s.blocks] for s in allocator.segments]


def test_a_small_and_a_large_request_come_from_two_pools():
    allocator = Allocator()
    allocator.alloc(MIB)  # just small: a segment of 2 MiB
    allocator.alloc(MIB + 1)  # just large: 20 MiB
    assert sizes(allocator) == [[1, -1], [1 + 512 / MIB, -19 + 512 / MIB]]
    assert [segment.pool for segment in allocator.segments] == ["small", "large"]
    assert (allocator.allocated_bytes, allocator.reserved_bytes) == (2 * MIB + 512, 22 * MIB)


def test_one_segment_serves_until_it_is_full():
    allocator = Allocator()
    for _ in range(6):
        allocator.alloc(3 * MIB)
    assert sizes(allocator) == [[3, 3, 3, 3, 3, 3, -2]]
    allocator.alloc(3 * MIB)
    assert sizes(allocator)[1] == [3, -17]


def test_from_10_mib_on_a_segment_is_as_large_as_its_request():
    allocator = Allocator()
    allocator.alloc(10 * MIB)
    allocator.alloc(11 * MIB)  # 12 MiB: the 1 MiB left is not more than 1 MiB, so it is not split off
    assert sizes(allocator) == [[10], [12]]
    assert allocator.segments[1].blocks[0].requested_bytes == 11 * MIB
    assert allocator.allocated_bytes == 22 * MIB


@pytest.mark.parametrize(
    ("request_bytes", "blocks"),
    [
        (19 * MIB, [20]),  # exactly 1 MiB would remain: kept whole
        (19 * MIB - 512, [19 - 512 / MIB, -1 - 512 / MIB]),  # 512 B more than 1 MiB remain: split
    ],
)
def test_a_large_block_is_split_when_more_than_1_mib_remains(request_bytes, blocks):
    allocator = Allocator()
    allocator.free(allocator.alloc(20 * MIB))
    allocator.alloc(request_bytes)
    assert sizes(allocator) == [blocks]


def test_a_small_block_is_split_down_to_512_bytes():
    allocator = Allocator()
    hole = allocator.alloc(1024)
    allocator.alloc(512)
    allocator.free(hole)
    allocator.alloc(512)
    assert [block.size_bytes for block in allocator.segments[0].blocks] == [512, 512, 512, 2 * MIB - 1536]


def test_best_fit_takes_the_smallest_hole_that_is_large_enough():
    allocator = Allocator()
    holes = [allocator.alloc(size * MIB) for size in (40, 24, 30)]
    for hole in holes:
        allocator.free(hole)
    taken = allocator.alloc(23 * MIB)
    assert taken.address == holes[1].address
    assert sizes(allocator) == [[-40], [24], [-30]]


def test_equal_holes_are_taken_by_address():
    allocator = Allocator()
    first, second = allocator.alloc(32 * MIB), allocator.alloc(32 * MIB)
    allocator.free(second)
    allocator.free(first)
    assert second.address == first.address - 32 * MIB  # below: each takes a whole stretch of addresses
    assert allocator.alloc(32 * MIB).address == second.address


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (0, 2, 1), (1, 0, 2)])
def test_free_neighbours_merge_in_every_order(order):
    allocator = Allocator()
    blocks = [allocator.alloc(6 * MIB) for _ in range(3)]
    for at in order:
        allocator.free(blocks[at])
        audit(allocator)
    assert sizes(allocator) == [[-20]]


def test_segments_never_merge_with_each_other():
    allocator = Allocator()
    for block in [allocator.alloc(16 * MIB) for _ in range(2)]:
        allocator.free(block)
    allocator.alloc(32 * MIB)
    assert sizes(allocator) == [[-16], [-16], [32]]


def test_a_stream_does_not_use_what_another_has_freed():
    allocator = Allocator()
    allocator.free(allocator.alloc(16 * MIB, stream=1))
    allocator.alloc(16 * MIB, stream=2)
    assert [(segment.stream, segment.allocated_bytes) for segment in allocator.segments] == [(1, 0), (2, 16 * MIB)]
    allocator.alloc(16 * MIB, stream=1)
    assert len(allocator.segments) == 2


def test_empty_cache_returns_only_segments_without_a_live_block():
    allocator = Allocator()
    kept, gone = allocator.alloc(3 * MIB), allocator.alloc(18 * MIB)
    small = allocator.alloc(KIB)
    allocator.free(gone)
    allocator.free(small)
    allocator.empty_cache()
    assert sizes(allocator) == [[3, -17]]
    allocator.free(kept)
    assert allocator.reserved_bytes == 20 * MIB
    allocator.empty_cache()
    assert (allocator.reserved_bytes, allocator.segments) == (0, ())
    actions = [(event.action, event.size_bytes // MIB) for event in allocator.driver.calls]
    assert actions == [
        ("segment_alloc", 20),
        ("segment_alloc", 18),
        ("segment_alloc", 2),
        ("segment_free", 18),
        ("segment_free", 2),
        ("segment_free", 20),
    ]


def test_an_oversize_block_is_neither_split_nor_given_to_a_smaller_request():
    allocator = Allocator(Settings(max_split_size_mb=32))
    allocator.free(allocator.alloc(40 * MIB))
    allocator.alloc(12 * MIB)  # smaller than 32: may not touch the block of 40
    assert sizes(allocator) == [[-40], [12]]
    allocator.alloc(33 * MIB)  # oversize itself: takes it whole
    assert sizes(allocator) == [[40], [12]]


@pytest.mark.parametrize(("cached_mib", "reused"), [(58, True), (60, True), (61, False), (64, False)])
def test_an_oversize_request_takes_a_block_less_than_20_mib_larger(cached_mib, reused):
    """42 + 20 = 62 is too large, and 61 MiB come as a segment of 62."""
    allocator = Allocator(Settings(max_split_size_mb=32))
    allocator.free(allocator.alloc(cached_mib * MIB))
    segment = allocator.reserved_bytes
    allocator.alloc(42 * MIB)
    assert (allocator.reserved_bytes == segment) == reused


def test_without_a_limit_a_block_of_any_size_is_split():
    allocator = Allocator()
    allocator.free(allocator.alloc(400 * MIB))
    allocator.alloc(2 * MIB)
    assert sizes(allocator) == [[2, -398]]


def test_before_it_fails_the_cache_goes_back_and_the_request_is_tried_again():
    allocator = Allocator(capacity_bytes=64 * MIB)
    for block in [allocator.alloc(16 * MIB) for _ in range(3)]:
        allocator.free(block)
    allocator.alloc(40 * MIB)
    assert sizes(allocator) == [[40]]
    assert allocator.last.returned_bytes == 48 * MIB
    assert allocator.peak_reserved_bytes == 48 * MIB


def test_with_max_split_size_only_what_the_retry_needs_goes_back():
    allocator = Allocator(Settings(max_split_size_mb=20), capacity_bytes=150 * MIB)
    for block in [allocator.alloc(size * MIB) for size in (30, 40, 60)]:
        allocator.free(block)
    allocator.alloc(70 * MIB)  # 20 left; from the largest: 60, then 40 make up 70; 30 stays
    assert sizes(allocator) == [[-30], [70]]


def test_with_max_split_size_one_block_that_is_large_enough_goes_back_alone():
    allocator = Allocator(Settings(max_split_size_mb=20), capacity_bytes=130 * MIB)
    for block in [allocator.alloc(size * MIB) for size in (30, 90)]:
        allocator.free(block)
    allocator.alloc(35 * MIB)  # 90 is more than 20 MiB larger, so it may not serve; it goes back
    assert sizes(allocator) == [[-30], [35 + 1]]


REASONS = [
    ({"capacity_bytes": 64 * MIB}, 60, 8, "full"),
    ({"capacity_bytes": 64 * MIB, "allowed_bytes": 32 * MIB}, 30, 8, "capped"),
    ({"allowed_bytes": 32 * MIB}, 30, 8, "capped"),
    ({"capacity_bytes": 64 * MIB, "allowed_bytes": 128 * MIB}, 60, 8, "full"),
]


@pytest.mark.parametrize(("limits", "used_mib", "wanted_mib", "reason"), REASONS)
def test_why_there_is_no_memory(limits, used_mib, wanted_mib, reason):
    allocator = Allocator(**limits)
    allocator.alloc(used_mib * MIB)
    with pytest.raises(OutOfMemory) as caught:
        allocator.alloc(wanted_mib * MIB)
    assert (caught.value.reason, caught.value.allocated_bytes) == (reason, used_mib * MIB)
    assert caught.value.limit_bytes == min(limits.values())
    audit(allocator)


def test_fragmented_means_enough_bytes_in_pieces_too_small():
    allocator = Allocator(capacity_bytes=64 * MIB)
    big = allocator.alloc(40 * MIB)
    allocator.free(big)
    allocator.alloc(12 * MIB, name="keep")
    with pytest.raises(OutOfMemory) as caught:
        allocator.alloc(36 * MIB)
    error = caught.value
    assert (error.reason, error.largest_free_bytes, error.free_bytes) == ("fragmented", 28 * MIB, 52 * MIB)
    assert str(error) == (
        "cannot serve 36.00 MiB though 52.00 MiB are free: the largest hole is 28.00 MiB, and the "
        "driver, asked for 36.00 MiB, has 24.00 MiB"
    )
    assert error._render_traceback_() == [f"OutOfMemory (fragmented): {error}"]


def test_a_failed_request_changes_nothing_but_the_cache():
    allocator = Allocator(capacity_bytes=40 * MIB)
    kept = allocator.alloc(20 * MIB)
    with pytest.raises(OutOfMemory):
        allocator.alloc(21 * MIB)
    allocator.free(kept)
    allocator.alloc(40 * MIB)
    assert sizes(allocator) == [[40]]


def test_zero_bytes_take_nothing_as_on_cuda():
    allocator = Allocator(capacity_bytes=0)
    nothing = allocator.alloc(0)
    assert (nothing.size_bytes, allocator.reserved_bytes, allocator.segments) == (0, 0, ())
    allocator.free(nothing)
    allocator.free(nothing)  # the pointer is null, and freeing null is allowed


@pytest.mark.parametrize("size", [-1, 1.5, "3", None, True, 2**40 + 1])
def test_a_size_that_is_none(size):
    with pytest.raises(WorkbookError, match="size_bytes is"):
        Allocator().alloc(size)


@pytest.mark.parametrize("limits", [{"capacity_bytes": -1}, {"allowed_bytes": 1.5}])
def test_a_limit_that_is_none(limits):
    with pytest.raises(WorkbookError, match=next(iter(limits))):
        Allocator(**limits)


def test_a_block_is_freed_once_and_where_it_came_from():
    allocator, other = Allocator(), Allocator()
    block = allocator.alloc(MIB)
    other.alloc(MIB)
    other.alloc(MIB)
    allocator.free(block)
    for use in (lambda: allocator.free(block), lambda: allocator.free(object()), lambda: allocator.free(None)):
        with pytest.raises(WorkbookError):
            use()
    allocator.alloc(MIB)  # the same address lives again, and the old handle is still dead
    with pytest.raises(WorkbookError, match="not allocated"):
        allocator.free(block)
    audit(allocator)


def test_a_second_equal_step_may_need_more_than_the_first():
    """Best fit puts the 3 MiB into the segment of 18 the second time, and then 17 MiB find no hole."""
    allocator, reserved = Allocator(), []
    for _ in range(3):
        for block in [allocator.alloc(size * MIB) for size in (3, 18, 17)]:
            allocator.free(block)
        reserved.append(allocator.reserved_bytes // MIB)
    assert reserved == [38, 56, 56]


@pytest.mark.parametrize(
    ("sizes_mib", "above_the_first"),
    [
        ((32, 64, 96), (0, -64, -160)),  # whole stretches, each below the last
        ((20, 12), (0, 20)),  # the room above 20 of 32 MiB is 12
        ((20, 14), (0, -32)),  # and 14 do not fit
        ((40, 20, 12), (0, 40, -32)),  # 40 of 64 leave 24, 20 of them leave 4
        ((20, 24, 10), (0, -32, 20)),  # the oldest room, not the nearest: 12 above 20, then 8 above 24
        ((2, 2, 2), (0, 2, 4)),  # small segments rise
    ],
)
def test_where_the_driver_lays_segments(sizes_mib, above_the_first):
    driver = Driver()
    addresses = [driver.malloc(size * MIB, stream=0) for size in sizes_mib]
    assert tuple((address - addresses[0]) // MIB for address in addresses) == above_the_first


def test_segments_are_listed_as_they_were_made_wherever_they_lie():
    allocator = Allocator()
    for size in (40, 11, 70):
        allocator.alloc(size * MIB)
    assert sizes(allocator) == [[40], [12], [70]]
    lie = [segment.address for segment in allocator.segments]
    assert lie[2] < lie[0] < lie[1]
