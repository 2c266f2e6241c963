"""KV bytes against context: a factor of two is one distance everywhere, names do not overlap, and the room is drawn."""

from itertools import pairwise

import pytest

from helpers.lesson.drawing.contexts import FOOT, LEFT, NAME_HEIGHT, RIGHT, TOP, Curve, contexts
from helpers.lesson.drawing.marks import Dot, Line, TextMark

CONTEXTS = [128 * 2**power for power in range(14)]


def curve(name, factor=1.0, window=2**20):
    return Curve(name, tuple((tokens, int(factor * 1000 * min(tokens, window))) for tokens in CONTEXTS))


def lines(card, kind):
    return [mark.points for mark in card.marks if isinstance(mark, Line) and mark.kind == kind]


def test_powers_of_two_are_evenly_spaced_and_a_window_is_flat():
    whole, bent = lines(contexts("t", [curve("a", 4), curve("b", window=4096)], (128, 128_000)), "curve")
    across = [x for x, _ in whole]
    assert (across[0], across[-1]) == (LEFT, RIGHT)
    assert [b - a for a, b in pairwise(across)] == pytest.approx([(RIGHT - LEFT) / 13] * 13)
    rises = [a - b for (_, a), (_, b) in pairwise(bent)]
    assert rises == pytest.approx([rises[0]] * 5 + [0] * 8)
    assert bent[0][1] - whole[0][1] == pytest.approx(2 * rises[0])  # four times as much: two doublings
    assert all(TOP <= y <= FOOT for _, y in whole + bent)


def test_names_keep_apart():
    curves = [curve("all heads", 1.02), curve("own attention", 1.01), curve("int4")]
    card = contexts("t", curves, (128, 128_000))
    named = {each.name for each in curves}
    ends = [mark.y for mark in card.marks if isinstance(mark, TextMark) and mark.text in named]
    assert len(ends) == 3
    assert all(b - a >= NAME_HEIGHT - 0.1 for a, b in pairwise(ends))


@pytest.mark.parametrize(("room", "drawn"), [(2**26, True), (None, False), (0, False), (-5, False), (2**60, False)])
def test_the_room_is_a_line_where_it_is_within_reach(room, drawn):
    assert bool(lines(contexts("t", [curve("a")], (128, 128_000), room), "room")) == drawn


def test_one_point_is_drawn():
    card = contexts("t", [Curve("a", ((128, 4096),))], (128, 4096))
    assert [mark.kind for mark in card.marks if isinstance(mark, Dot)] == ["here"]
