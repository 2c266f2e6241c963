"""Random traces: what must hold holds after every event, with every setting."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.memory.allocator import MIB, Allocator, OutOfMemory, Settings
from tests.memory.allocator.audit import audit

CONFS = [
    "",
    "max_split_size_mb:20",
    "max_split_size_mb:64",
    "expandable_segments:True",
    "expandable_segments:True,max_split_size_mb:32",
    "roundup_power2_divisions:4",
    "large_segment_size_mb:32",
]
SIZES = st.one_of(
    st.integers(1, 4096),
    st.integers(1, 2 * MIB),
    st.integers(MIB, 64 * MIB),
    st.integers(1, 32).map(lambda mib: mib * MIB),
)
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("alloc"), SIZES, st.integers(0, 1)),
        st.tuples(st.just("free"), st.integers(0, 40), st.just(0)),
        st.tuples(st.just("empty"), st.just(0), st.just(0)),
    ),
    max_size=60,
)


def play(allocator, events, check):
    living = []
    for action, number, stream in events:
        if action == "alloc":
            try:
                living.append(allocator.alloc(number, stream))
            except OutOfMemory as error:
                _why(allocator, error)
        elif action == "empty":
            allocator.empty_cache()
            assert not any(s.allocated_bytes == 0 and not s.expandable for s in allocator.segments)
        elif living:
            allocator.free(living.pop(number % len(living)))
        assert sum(block.size_bytes for block in living) == allocator.allocated_bytes
        check(allocator)
    return living


def _why(allocator, error):
    """A reason is true: the request is larger than what is left of the limit, or than every hole."""
    if error.reason == "fragmented":
        assert allocator.allocated_bytes + error.size_bytes <= error.limit_bytes
        assert error.largest_free_bytes < max(error.size_bytes, error.segment_bytes)
    else:
        assert allocator.allocated_bytes + error.size_bytes > error.limit_bytes


@pytest.mark.parametrize("conf", CONFS)
@given(events=EVENTS, capacity_mib=st.sampled_from([None, 64, 256]))
@settings(max_examples=40)
def test_whatever_is_asked(conf, events, capacity_mib):
    capacity = None if capacity_mib is None else capacity_mib * MIB
    allocator = Allocator(Settings.parse(conf), capacity)
    living = play(allocator, events, audit)
    assert capacity is None or allocator.peak_reserved_bytes <= capacity
    for block in living:
        allocator.free(block)
        audit(allocator)
    allocator.empty_cache()
    audit(allocator)
    assert (allocator.allocated_bytes, allocator.reserved_bytes, allocator.segments) == (0, 0, ())


@pytest.mark.parametrize("conf", CONFS)
@given(events=EVENTS)
@settings(max_examples=15)
def test_the_same_trace_gives_the_same_answer(conf, events):
    def calls():
        allocator = Allocator(Settings.parse(conf), 128 * MIB)
        play(allocator, events, lambda _: None)
        return allocator.driver.calls, allocator.segments

    assert calls() == calls()
