"""Bargains: the front is the front, and every point is drawn where its numbers put it and named."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.lesson.drawing.marks import CARD, Dot, Line, TextMark
from helpers.lesson.drawing.pareto import LEFT, RIGHT, TOP, Measure, ParetoPoint, bargain, front, trade, unbeaten
from helpers.memory.plan.report import dollars

POINTS = {"fp32": (6.9e6, 3.50), "4 bits": (1.5e6, 3.52), "2 bits": (1.1e6, 5.1), "pruned": (4.0e6, 4.4)}


def of(card, kind):
    return [mark for mark in card.body if isinstance(mark, kind)]


def test_the_front_joins_the_best_and_names_all():
    best = unbeaten(POINTS)
    card = front("t", POINTS, "perplexity", best)
    dots = {dot.tooltip: (dot.x, dot.y) for dot in of(card, Dot)}
    assert set(dots) == set(POINTS) <= {text.text for text in of(card, TextMark)}
    (joined,) = (line for line in of(card, Line) if line.kind == "front")
    assert list(joined.points) == sorted(dots[name] for name in best)
    in_order = sorted(POINTS, key=lambda name: POINTS[name][0])
    assert in_order == sorted(dots, key=lambda name: dots[name][0])
    assert not [line for line in of(front("t", POINTS, "perplexity"), Line) if line.kind == "front"]


def traded(title, points, y_label, best):
    return trade(title, points, [points[name] for name in best], "bits", y_label, best)


@pytest.mark.parametrize("draw", [front, traded])
def test_the_best_are_full_and_of_one_colour_and_the_others_hollow(draw):
    best = unbeaten(POINTS)
    dots = of(draw("t", POINTS, "perplexity", best), Dot)
    assert {dot.tooltip for dot in dots if dot.fill != CARD} == set(best)
    assert len({dot.edge for dot in dots if dot.tooltip in best}) == 1
    assert not {dot.edge for dot in dots if dot.tooltip in best} & {dot.edge for dot in dots if dot.tooltip not in best}


def test_points_of_a_trade_stand_to_scale_over_the_curve():
    card = trade("t", {"a": (1, 10), "b": (3, 20)}, [(1, 5), (2, 4), (3, 3)], "GiB", "%")
    a, b = ((dot.x, dot.y) for dot in of(card, Dot))
    (curve,) = (line.points for line in of(card, Line) if line.kind == "front")
    assert [x for x, _ in curve] == pytest.approx([a[0], (a[0] + b[0]) / 2, b[0]])
    assert (a[1] - b[1]) / (curve[0][1] - a[1]) == pytest.approx(10 / 5)
    assert all(LEFT <= x <= RIGHT and y >= TOP for x, y in (a, b, *curve))


def test_steps_go_right_and_then_down_and_a_limit_is_drawn_within_reach():
    points = [ParetoPoint("a", 0, 9, "#000000"), ParetoPoint("b", 5, 4, "#000000", filled=False)]
    measures = Measure("x", from_zero=True), Measure("y", from_zero=True)
    card = bargain("t", points, *measures, [(0, 9), (5, 4)], steps=True, limit=(8, "80 GB"))
    (steps,) = (line.points for line in of(card, Line) if line.kind == "front")
    assert [(x0 == x1, y0 == y1) for (x0, y0), (x1, y1) in pairwise(steps)] == [(False, True), (True, False)]
    assert [dot.tooltip for dot in of(card, Dot) if dot.fill == CARD] == ["b"]
    assert [line.kind for line in of(card, Line)].count("limit") == 1
    far = bargain("t", points, *measures, limit=(80, "80 GB"))
    assert "limit" not in {line.kind for line in of(far, Line)}


def test_the_pictures_are_png():
    picture = front("what to see", POINTS, "perplexity")
    assert picture.png.startswith(b"\x89PNG")
    assert repr(picture) == "[picture: what to see]"


@given(st.dictionaries(st.text(max_size=3), st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1))
def test_nothing_beats_what_is_on_the_front_and_all_else_is_beaten(points):
    best = unbeaten(points)
    for name, (size, score) in points.items():
        beaten = any(s <= size and q <= score and (s, q) != (size, score) for s, q in points.values())
        assert (name in best) == (not beaten)
    assert [points[name] for name in best] == sorted(points[name] for name in best)


@given(st.floats(0.001, 1e9), st.floats(1, 1e4))
def test_a_log_axis_has_three_ticks_at_least_and_each_is_written_as_itself(low, ratio):
    x = Measure("dollars", dollars, log=True)
    ticks = x.ticks(x.axis([low, low * ratio], LEFT, RIGHT))
    assert len(ticks) >= 3
    assert low < 0.02 or len(set(ticks.values())) == len(ticks)
