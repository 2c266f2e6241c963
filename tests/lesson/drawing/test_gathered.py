"""Which units are whole when, drawn: the moments, the boxes and the words."""

from __future__ import annotations

import pytest

from helpers.lesson.drawing.gathered import LAYERS, gathered, gathered_moments
from helpers.lesson.drawing.marks import Box


@pytest.mark.parametrize("reshard", [True, False])
def test_a_layer_that_computes_is_whole_and_every_layer_computes_twice(reshard):
    moments = list(gathered_moments(reshard))
    assert all(one.layer in one.whole for one in moments)
    assert sorted(one.layer for one in moments) == sorted([*range(LAYERS)] * 2)


@pytest.mark.parametrize(("reshard", "gathers"), [(True, 2 * LAYERS - 1), (False, LAYERS)])
def test_without_resharding_no_layer_is_gathered_for_the_backward(reshard, gathers):
    """The last layer of the forward is the first of the backward: drawn, it stays."""
    found, before = 0, frozenset()
    for one in gathered_moments(reshard):
        found += len(one.whole - before)
        before = one.whole
    assert found == gathers


def test_a_box_for_each_unit_that_is_whole_and_words_for_each_moment():
    card = gathered("Whole", {"stage 3": True})
    kinds = [mark.kind for mark in card.body if isinstance(mark, Box)]
    assert kinds.count("whole") == 2 * LAYERS + 2 * LAYERS  # the root at every moment, and a layer
    assert kinds.count("coming") == 2 * (LAYERS - 1)
    assert "forward of layer 1, whole: 1, 2 on its way" in card.words
