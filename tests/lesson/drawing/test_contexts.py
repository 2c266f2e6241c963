"""KV bytes against context: a factor of two is one distance everywhere, names do not overlap, and the room is drawn."""

import re
import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest

from helpers.lesson.drawing.contexts import BOTTOM, LEFT, NAME_HEIGHT, RIGHT, TOP, Curve, contexts_svg

SVG = "{http://www.w3.org/2000/svg}"
CONTEXTS = [128 * 2**power for power in range(14)]


def curve(name, factor=1.0, window=2**20):
    return Curve(name, tuple((tokens, int(factor * 1000 * min(tokens, window))) for tokens in CONTEXTS))


def paths(svg):
    found = re.findall(r'class="curve" points="([^"]*)"', svg)
    return [[tuple(map(float, point.split(","))) for point in path.split()] for path in found]


def test_powers_of_two_are_evenly_spaced_and_a_window_is_flat():
    whole, bent = paths(contexts_svg("t", [curve("a", 4), curve("b", window=4096)], (128, 128_000)).svg)
    across = [x for x, _ in whole]
    assert (across[0], across[-1]) == (LEFT, RIGHT)
    assert [b - a for a, b in pairwise(across)] == pytest.approx([(RIGHT - LEFT) / 13] * 13, abs=0.1)
    rises = [a - b for (_, a), (_, b) in pairwise(bent)]
    assert rises == pytest.approx([rises[0]] * 5 + [0] * 8, abs=0.15)
    assert bent[0][1] - whole[0][1] == pytest.approx(2 * rises[0], abs=0.2)  # four times as much: two doublings
    assert all(TOP <= y <= BOTTOM for _, y in whole + bent)


def test_names_keep_apart_and_inside():
    curves = [curve("all heads", 1.02), curve("own attention", 1.01), curve("int4")]
    texts = ET.fromstring(contexts_svg("a <title> & more", curves, (128, 128_000)).svg).iter(f"{SVG}text")
    ends = [float(one.get("y")) for one in texts if one.text in {each.name for each in curves}]
    assert len(ends) == 3
    assert all(b - a >= NAME_HEIGHT - 0.1 for a, b in pairwise(ends))


@pytest.mark.parametrize(("room", "drawn"), [(2**26, True), (None, False), (0, False), (-5, False), (2**60, False)])
def test_the_room_is_a_line_where_it_is_within_reach(room, drawn):
    assert ('class="room"' in contexts_svg("t", [curve("a")], (128, 128_000), room).svg) == drawn


def test_one_point_is_drawn():
    assert 'class="here"' in contexts_svg("t", [Curve("a", ((128, 4096),))], (128, 4096)).svg
