"""Copies beside computing, against a clock that runs the events."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.catalog.errors import WorkbookError
from helpers.memory import offload

SECONDS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=9)


def by_ticks(layers, buffers):
    """The same schedule, found by asking each second what may begin."""
    now, copied, computed, copying, computing = 0, 0, 0, 0, 0
    while True:
        moved = True
        while moved:  # what takes no time is over at once
            moved = False
            if copying == 0 and copied < len(layers) and copied < computed + buffers:
                copying = layers[copied][0]
                copied, moved = (copied + 1, True) if copying == 0 else (copied, False)
            arrived = copied
            if computing == 0 and computed < arrived:
                computing = layers[computed][1]
                computed, moved = (computed + 1, True) if computing == 0 else (computed, moved)
        if computed == len(layers):
            return now
        now += 1
        if copying:
            copying -= 1
            copied += copying == 0
        if computing:
            computing -= 1
            computed += computing == 0


@given(SECONDS, st.integers(1, 4))
def test_overlap_is_what_events_in_turn_give(layers, buffers):
    copies, computes = zip(*layers, strict=True)
    assert offload.overlapped_s(copies, computes, buffers) == by_ticks(layers, buffers)


@given(st.integers(1, 40), st.integers(0, 9), st.integers(0, 9))
def test_equal_layers_have_a_formula(layers, copy, compute):
    found = offload.overlapped_s([copy] * layers, [compute] * layers)
    assert found == copy + (layers - 1) * max(copy, compute) + compute
    assert offload.overlapped_s([copy] * layers, [compute] * layers, buffers=1) == layers * (copy + compute)


@given(SECONDS)
def test_more_buffers_are_never_slower_and_equal_layers_need_two(layers):
    copies, computes = zip(*layers, strict=True)
    times = [offload.overlapped_s(copies, computes, buffers) for buffers in (1, 2, 3, 99)]
    assert times == sorted(times, reverse=True)
    same = [copies[0]] * len(layers), [computes[0]] * len(layers)
    assert offload.overlapped_s(*same, buffers=2) == offload.overlapped_s(*same, buffers=99)


@pytest.mark.parametrize(
    ("flops", "link", "format_name", "tokens"),
    [
        (989.4e12, 64e9, "bf16", 15459),
        (312e12, 32e9, "bf16", 9750),
        (989.4e12, 64e9, "nf4", 4348),
        (989.4e12, 64e9, "int8", 7737),
        (8, 1, "fp32", 16),
    ],
)
def test_break_even_tokens(flops, link, format_name, tokens):
    assert round(offload.break_even_tokens(flops, link, format_name)) == tokens


@given(SECONDS, st.integers(1, 4))
def test_turns_follow_one_another_on_each_lane_and_in_each_buffer(layers, buffers):
    copies, computes = zip(*layers, strict=True)
    found = offload.turns(copies, computes, buffers)
    for at, (turn, copy, compute) in enumerate(zip(found, copies, computes, strict=True)):
        assert turn.copy_ends_s - turn.copy_starts_s == copy
        assert turn.ends_s - turn.starts_s == compute
        waited = [found[at - 1].copy_ends_s] if at else [0]
        waited += [found[at - buffers].ends_s] if at >= buffers else []
        assert turn.copy_starts_s == max(waited)
        assert turn.starts_s == max([turn.copy_ends_s] + ([found[at - 1].ends_s] if at else []))


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: offload.overlapped_s([1], [1, 2]), "1 copies and 2 layers"),
        (lambda: offload.overlapped_s([], []), "0 copies"),
        (lambda: offload.overlapped_s([1], [1], buffers=0), "buffers is 0"),
        (lambda: offload.break_even_tokens(0, 1), "flops_per_s is 0"),
        (lambda: offload.break_even_tokens(1, -1), "link_bytes_per_s is -1"),
        (lambda: offload.break_even_tokens(1, 1, "bf17"), "bf17"),
        (lambda: offload.break_even_tokens(1, 1, active=0), "active is 0"),
        (lambda: offload.break_even_tokens(1, 1, active=1.1), "active is 1.1"),
    ],
)
def test_bad_input(call, told):
    with pytest.raises(WorkbookError, match=told):
        call()
