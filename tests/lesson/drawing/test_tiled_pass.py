"""A row of tiles under way, drawn: which tiles there are, and what is on the chip."""

from __future__ import annotations

import pytest

from helpers.catalog.errors import WorkbookError
from helpers.lesson.drawing.marks import Box
from helpers.lesson.drawing.tiled_pass import CHIP, MEMORY, tiled_pass
from helpers.techniques.attention.counts import Call
from helpers.techniques.attention.masks import Window


def boxes(call: Call, kind: str) -> list[Box]:
    card = tiled_pass("One row", call)
    return [mark for mark in card.body if isinstance(mark, Box) and mark.kind == kind]


def test_a_causal_map_has_the_tiles_on_and_under_the_diagonal_and_one_of_them_is_at_work():
    call = Call(1024, heads=8, kv_heads=1)
    counted = {kind: len(boxes(call, kind)) for kind in ("done", "now", "later")}
    assert counted == {"done": 15 + 3, "now": 1, "later": 36 - 19}


@pytest.mark.parametrize(("kind", "written"), [("key", 0), ("query", 0), ("output", 5)])
def test_one_row_and_one_column_are_on_the_chip_and_the_rows_above_are_written(kind, written):
    fills = [box.fill for box in boxes(Call(1024), kind)]
    assert len(fills) == 8
    assert fills.count(CHIP) == (kind != "output")
    assert fills.count(MEMORY) == (written or 7)


def test_a_window_leaves_tiles_out_and_the_words_say_how_many():
    call = Call(1024, mask=Window(128))
    assert sum(len(boxes(call, kind)) for kind in ("done", "now", "later")) == 8 + 7
    assert "of which 15 are visited" in tiled_pass("One row", call).words


def test_a_long_prompt_is_refused():
    with pytest.raises(WorkbookError, match="rows of tiles"):
        tiled_pass("One row", Call(32_768))
