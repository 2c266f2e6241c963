"""A token's way into the cache, drawn: one new column behind the old ones, heads as the model has them, on the card."""

from __future__ import annotations

import pytest

from helpers.catalog import WorkbookError, model
from helpers.lesson.drawing.cached_token import MOST, cached_token
from helpers.lesson.drawing.marks import Box, TextMark

ATTENTION = model("llama-3.1-70b").layers[0].attention


@pytest.mark.parametrize("tokens", [2, 7, MOST])
def test_a_column_is_added_and_all_stays_on_the_card(tokens):
    card = cached_token("A token", ATTENTION, tokens)
    boxes = [mark for mark in card.marks if isinstance(mark, Box)]
    assert [sum(box.kind == kind for box in boxes) for kind in ("old", "new")] == [2 * tokens, 2]
    newest = {box.x for box in boxes if box.kind == "new"}
    assert len(newest) == 1
    assert newest.pop() > max(box.x for box in boxes if box.kind == "old")
    assert max(box.x + box.width for box in boxes) <= 760
    assert max(mark.y for mark in card.marks if isinstance(mark, TextMark)) <= card.height


def test_it_says_the_heads_and_what_is_read():
    assert "q of 64 heads, and k and v of 8" in cached_token("A token", ATTENTION, 9).alt
    assert "reads all 10" in cached_token("A token", ATTENTION, 9).alt


def test_more_tokens_than_fit_are_refused():
    with pytest.raises(WorkbookError, match="tokens"):
        cached_token("A token", ATTENTION, MOST + 1)
