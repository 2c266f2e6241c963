"""Two panels over one axis: rings on every curve, the saturation point through both, and the words say it again."""

from helpers.lesson.drawing.loads import BELOW, FOOT, HEIGHT, MIDDLE, TOP, LoadPoint, loads
from helpers.lesson.drawing.marks import Dot, Line, TextMark

POINTS = [LoadPoint(1, 50.0, 0.4, 0.02), LoadPoint(16, 400.0, 0.5, 0.04), LoadPoint(64, 400.0, 8.0, 0.04)]
CARD = loads("Title", POINTS, POINTS[2], 16)


def of(kind, marks=Line):
    return [mark for mark in CARD.body if isinstance(mark, marks) and mark.kind == kind]


def test_a_ring_lies_on_each_curve():
    rings, curves = of("here", Dot), of("curve")
    assert len(rings) == len(curves) == 3
    assert [(ring.x, ring.y) for ring in rings] == [curve.points[-1] for curve in curves]
    throughput, ttft, itl = curves
    assert all(TOP <= y <= MIDDLE for _, y in throughput.points)
    assert all(BELOW <= y <= FOOT for _, y in ttft.points + itl.points)
    assert ttft.points[-1][1] < itl.points[-1][1]


def test_the_saturation_point_goes_through_both_panels():
    lines = of("saturation")
    assert {line.points[0][0] for line in lines} == {of("curve")[0].points[1][0]}
    assert [line.points[1][1] for line in lines] == [MIDDLE, FOOT]
    texts = {mark.text: mark for mark in CARD.body if isinstance(mark, TextMark)}
    assert {"saturation: 16 clients", "64 clients", "10 s", "100 ms", "tokens/s in all", "first token"} <= set(texts)
    assert all(0 < mark.y < HEIGHT for mark in texts.values())


def test_its_words():
    assert CARD.words.startswith("Across, clients at once from 1 to 64; above, tokens/s in all goes from 50.0 to 400;")
    assert "first token goes from 400 ms to 8 s" in CARD.words
    assert "Rings at 64 clients: 400 tokens/s, 8 s and 40.0 ms. Dashed: saturation at 16." in CARD.words
