"""What runs again and when, drawn: the moments, the bytes below them, and the words."""

from __future__ import annotations

import pytest

from helpers.lesson.drawing.marks import Box, TextMark
from helpers.lesson.drawing.recomputed import LAYERS, kept_bytes, layer_moments, recomputed

INPUT, LAYER = 16, 392


@pytest.mark.parametrize(("segment", "most"), [(0, 4 * LAYER), (1, 4 * INPUT + LAYER), (2, 2 * INPUT + 2 * LAYER)])
def test_the_most_that_is_kept(segment, most):
    assert max(kept_bytes(one, segment, INPUT, LAYER) for one in layer_moments(segment)) == most


@pytest.mark.parametrize("segment", [0, 1, 2, 3, 4])
def test_every_layer_goes_forward_and_backward_once_and_keeps_all_when_its_gradients_are_due(segment):
    moments = list(layer_moments(segment))
    for doing, times in {"forward": 1, "backward": 1, "again": bool(segment)}.items():
        assert sorted(one.layer for one in moments if one.doing == doing) == list(range(LAYERS)) * times
    assert all(one.kept[one.layer] == "all" for one in moments if one.doing == "backward")


def test_backward_leaves_nothing():
    last = list(layer_moments(2))[-1]
    assert last.kept == ("all", "nothing", "nothing", "nothing")  # its own are freed when it has ended


def test_panels_say_each_moment_and_mark_the_highest():
    card = recomputed("What runs again", INPUT * 2**20, LAYER * 2**20, {"none": 0, "each": 1})
    bold = [mark.text for mark in card.body if isinstance(mark, TextMark) and mark.bold and mark.text.isdigit()]
    assert bold == ["456", "456"]  # of the panel without checkpoints they have a comma: 1,568
    assert "again of layer 4, 456 MiB kept; backward of layer 4" in card.words
    assert sum(isinstance(mark, Box) and mark.kind == "input" for mark in card.body) == 10 + 3 * 2 + 2 * 2 + 1 * 2
