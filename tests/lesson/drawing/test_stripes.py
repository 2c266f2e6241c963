"""Stripes of a history: where each begins, sinks and ends, and which are never freed."""

import pytest

from helpers.catalog import WorkbookError
from helpers.lesson.drawing.marks import Area
from helpers.lesson.drawing.stripes import FREED, KEPT, stacked, stripes
from helpers.memory.allocator import MIB, alloc, free, read_snapshot, replay, write_for_viewer

EVENTS = [alloc("a", 4 * MIB), alloc("b", 2 * MIB), alloc("c", MIB), free("a"), alloc("d", 2 * MIB), free("c")]


def test_a_stripe_sinks_when_an_older_one_is_freed():
    a, c, b, d = stacked(replay(EVENTS))
    assert (a.foot, a.end, a.freed) == (((0, 0),), 3, True)
    assert (b.foot, b.end, b.freed) == (((1, 0 + 4 * MIB), (3, 0)), 6, False)
    assert (c.foot, c.end, c.freed) == (((2, 6 * MIB), (3, 2 * MIB)), 5, True)
    assert (d.foot, d.freed) == (((4, 3 * MIB), (5, 2 * MIB)), False)


def test_the_heights_are_what_is_allocated():
    ran = replay(EVENTS)
    for at, allocated in enumerate(ran.allocated):
        live = [one for one in stacked(ran) if one.foot[0][0] <= at < one.end]
        assert sum(one.size_bytes for one in live) == allocated


def test_a_file_of_a_snapshot_is_drawn_as_its_replay_is(tmp_path):
    write_for_viewer(replay(EVENTS), tmp_path / "x.pickle")
    assert [*stacked(read_snapshot(tmp_path / "x.pickle"))] == [*stacked(replay(EVENTS))]


def test_colours_say_which_are_never_freed():
    card = stripes("t", {"one": replay(EVENTS), "two": replay(EVENTS[:2])})
    fills = [mark.fill for mark in card.marks if isinstance(mark, Area)]
    assert (fills.count(KEPT), fills.count(FREED)) == (4, 2)
    assert "one: 4 stripes, of which 2 are never freed, 4.00 MiB. two: 2 stripes" in card.words


def test_nothing_to_draw_is_told():
    for histories in ({}, {"x": replay([])}):
        with pytest.raises(WorkbookError, match="without an allocation"):
            stripes("t", histories)
