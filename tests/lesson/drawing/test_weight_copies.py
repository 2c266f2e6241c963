"""The drawing of a weight's copies: its bytes are those of the closed form at every moment, and boxes stay apart."""

from itertools import pairwise

import pytest

from helpers.catalog import TrainSetup
from helpers.catalog.recipes import PRECISIONS
from helpers.lesson.drawing.marks import Box
from helpers.lesson.drawing.weight_copies import HELD, MOMENTS, bytes_of_a_weight, weight_copies
from helpers.memory import budget

RECIPES = {"FP32": "fp32", "autocast": "autocast-bf16", "master copy": "megatron-bf16", "BF16": "bf16"}


@pytest.mark.parametrize("precision", RECIPES.values())
@pytest.mark.parametrize(("moment", "at"), [("loss", "end_of_forward"), ("optimizer step", "optimizer step")])
def test_a_weight_has_the_bytes_of_the_closed_form(precision, moment, at):
    """On one token, where hardly anything is in memory but weights; all but 2 % of them are those of matrices."""
    setup = TrainSetup("llama-2-7b", precision, "adamw-fused", sequence=1)
    found = budget.train(setup).at(at).total / setup.model.parameters
    assert sum(bytes_of_a_weight(PRECISIONS[precision], moment).values()) == pytest.approx(found, rel=0.01)


def test_a_box_is_as_wide_as_its_bytes_and_none_meets_the_next():
    card = weight_copies("One weight", RECIPES)
    boxes = [mark for mark in card.marks if isinstance(mark, Box) and mark.kind == "held"]
    widths = {(box.part, round(box.width / boxes[0].width * 4, 3)) for box in boxes}
    assert widths >= {("weight", 4), ("weight", 2), ("BF16 copy for the product", 2), ("AdamW's two averages", 8)}
    rows = {box.y: [one for one in boxes if one.y == box.y] for box in boxes}
    assert all(one.x + one.width <= next_one.x + 1e-6 for row in rows.values() for one, next_one in pairwise(row))
    assert max(box.x + box.width for box in boxes) <= 760 - 20
    assert "autocast: forward begins 12, loss 14, halfway back 15, optimizer step 16" in card.words


def test_halfway_back_copies_go_as_gradients_come():
    half = bytes_of_a_weight(PRECISIONS["autocast-bf16"], MOMENTS[2])
    assert [half.get(name) for name in HELD] == [4, 1, None, 2, 8]
