"""Tables and their pool, drawn: an entry for each page of a text, a box for each page of the pool, and the slots."""

from __future__ import annotations

from helpers.lesson.drawing.block_maps import SHARED
from helpers.lesson.drawing.block_tables import block_tables
from helpers.lesson.drawing.marks import Box, Line
from helpers.techniques import paging


def drawn(fork=False):
    manager = paging.BlockManager(blocks=8, block_size=4)
    manager.append("a", 6)
    manager.append("b", 3)
    manager.append("a", 3)
    if fork:
        manager.fork("a", "c")
    return block_tables("Pages", manager.tables, manager.lengths, 8, 4)


def kinds(card, kind):
    return [mark for mark in card.body if isinstance(mark, Box) and mark.kind == kind]


def test_an_entry_a_line_and_a_page_for_each_block_that_is_used_and_the_rest_is_free():
    card = drawn()
    assert len(kinds(card, "entry")) == 4 == len(kinds(card, "page"))
    assert len(kinds(card, "free")) == 4
    assert sum(isinstance(mark, Line) and mark.kind == "entry" for mark in card.body) == 4
    assert "a has 9 tokens in pages 0, 1, 3; b has 3 tokens in pages 2" in card.words


def test_filled_slots_are_as_wide_as_their_tokens():
    card = drawn()
    (whole,) = {round(box.width, 6) for box in kinds(card, "page")}
    in_pool = kinds(card, "slots")[4:]
    assert sum(box.width for box in in_pool) / whole * 4 == 9 + 3


def test_pages_of_several_tables_are_grey():
    grey = [box for box in kinds(drawn(fork=True), "page") if box.edge == SHARED]
    assert len(grey) == 3
    assert not [box for box in kinds(drawn(), "page") if box.edge == SHARED]
