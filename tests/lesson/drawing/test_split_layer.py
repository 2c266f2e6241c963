"""A layer over tensor-parallel ranks, drawn: as many sums as the formula counts, of as many bytes, all on the card."""

from __future__ import annotations

import pytest

from helpers.catalog import WorkbookError
from helpers.lesson import job
from helpers.lesson.drawing.marks import Box, Line
from helpers.lesson.drawing.split_layer import split_layer
from helpers.techniques.parallel import formula

LAYERS = len(job.SETUP.model.layers)


def test_sums_are_those_of_a_layer_forward_and_backward():
    card = split_layer("A layer", job.SETUP, 8)
    drawn = [mark for mark in card.marks if isinstance(mark, Line) and mark.kind == "sum"]
    counted = formula.tensor_traffic(job.SETUP.model, job.SETUP.tokens, 8, value_bytes=2)
    for dash, passed in {"": counted.forward, "5 4": counted.backward}.items():
        large = [call for call in passed.of("all_reduce").calls if call.payload_bytes == 16 * 2**20]
        assert len(large) == 1 + LAYERS * sum(line.dash == dash for line in drawn)
    assert "a sum over ranks of 16 MiB" in card.alt


def test_each_kind_of_bar_and_each_colour_has_a_key_that_looks_like_it():
    marks = split_layer("A layer", job.SETUP, 8).marks
    drawn, told = (
        {(one.width, one.dash) for one in marks if isinstance(one, Line) and one.kind == kind}
        for kind in ("sum", "key")
    )
    assert drawn == told
    boxes = [one for one in marks if isinstance(one, Box)]
    fills = [one.fill for one in boxes if not one.kind]
    assert {one.fill for one in boxes if one.kind} == {*fills}
    assert len({*fills}) == len(fills)


def test_a_rank_has_its_heads_and_its_share_of_the_middle():
    assert "4 of 32 heads" in split_layer("A layer", job.SETUP, 8).alt
    assert "7,168 outputs of gate and up" in split_layer("A layer", job.SETUP, 2).alt


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_boxes_stay_on_the_card(ranks):
    card = split_layer("A layer", job.SETUP, ranks)
    boxes = [mark for mark in card.marks if isinstance(mark, Box)]
    assert max(box.x + box.width for box in boxes) <= 760
    assert max(box.y + box.height for box in boxes) <= card.height


def test_more_ranks_than_kv_heads_are_not_drawn():
    with pytest.raises(WorkbookError, match="ranks"):
        split_layer("A layer", job.SETUP, 16)
