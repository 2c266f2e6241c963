"""Lines of times with rings where they cross: everything is on the card, and the words say it again."""

from helpers.lesson.drawing.crossings import HEIGHT, TimeCurve, crossings
from helpers.lesson.drawing.marks import Dot, Line, TextMark

TIMES = [TimeCurve("flat", ((128, 1e-3), (1024, 1e-3))), TimeCurve("steep", ((128, 1e-4), (1024, 1e-2)))]


def card(crossed=None):
    return crossings("Title", TIMES, {"steep: 362 tokens": (362, 1e-3)} if crossed is None else crossed, 512)


def test_a_ring_lies_on_both_lines():
    marks = card().body
    (ring,) = (mark for mark in marks if isinstance(mark, Dot))
    flat, steep = (mark for mark in marks if isinstance(mark, Line) and mark.kind == "times")
    assert abs(ring.y - flat.points[0][1]) < 0.1
    (x, y), (far, high) = steep.points
    assert abs(y + (ring.x - x) / (far - x) * (high - y) - ring.y) < 0.5
    assert flat.dash
    assert not steep.dash


def test_names_and_marked_length():
    texts = {mark.text: mark for mark in card().body if isinstance(mark, TextMark)}
    assert {"flat", "steep", "512 tokens", "steep: 362 tokens", "1 ms"} <= set(texts)
    assert all(0 < mark.y < HEIGHT for mark in texts.values())


def test_its_words():
    assert "steep goes from 100 µs to 10.0 ms" in card().words
    assert "A ring at 362 tokens: steep: 362 tokens." in card().words
    assert "ring" not in card({}).words
