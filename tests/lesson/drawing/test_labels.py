"""Names beside points: none over another, over a mark or over a line."""

from itertools import combinations

import pytest

from helpers.lesson.drawing.labels import Bounds, Labels
from helpers.lesson.drawing.marks import Line, TextMark, text_width


@pytest.fixture
def bare():
    """Empty room with one mark in its middle."""
    labels = Labels(Bounds(0, 0, 600, 600))
    labels.avoid_point(300, 300)
    return labels


def spot(labels, at=(300, 300), text="A", **more):
    """Where a name went: right of its mark, and above it."""
    text = list(labels.place(at, text, **more))[-1]
    return round(text.x - at[0]), round(at[1] + 0.35 * text.size - text.y)


def test_a_name_stands_beside_its_mark_or_where_it_is_free(bare):
    assert spot(bare) == (12, 0)
    assert spot(bare) == (-12, 0)  # the first A is in the way
    assert spot(bare) == (11, -15)
    marks = [mark for _ in range(6) for mark in bare.place((300, 300), "A")]
    assert isinstance(marks[-2], Line)  # far off, at the end of a thin line


def test_a_name_is_not_put_on_a_line(bare):
    bare.avoid_line([(305, 300), (340, 300)])
    assert spot(bare) == (-12, 0)
    bare.avoid_line([(310, 290), (330, 330)])
    assert spot(bare) == (-11, 15)  # both right and below are taken


def test_a_name_is_not_put_where_another_mark_is_nearer(bare):
    bare.avoid_line([(312, 300), (330, 300)])
    bare.avoid_line([(270, 300), (288, 300)])
    assert spot(bare) == (11, -15)
    other = Labels(bare.room)
    other.avoid_point(300, 300)
    other.avoid_line([(312, 300), (330, 300)])
    other.avoid_line([(270, 300), (288, 300)])
    other.avoid_point(300, 326)  # touches no name, but is nearer to one below on the right than A is
    assert spot(other) == (-11, 15)


def test_a_thin_line_crosses_no_words_and_no_words_cover_it(bare):
    spot(bare, (331, 360), "words", spots=[(12, 0)])
    assert spot(bare, spots=[(110, -157), (-110, 157)]) == (-110, 157)
    assert spot(bare, (240, 220), "B", spots=[(12, 0), (-12, 0)]) == (-12, 0)  # beside it goes the line of A


def test_ten_names_at_one_point_cover_no_other(bare):
    texts = [mark for at in range(10) for mark in bare.place((300, 300), f"policy {at}") if isinstance(mark, TextMark)]
    assert len(texts) == 10
    for a, b in combinations(texts, 2):
        left, other = (text.x - (width(text) if text.anchor == "end" else 0) for text in (a, b))
        apart = left + width(a) <= other or other + width(b) <= left
        assert apart or abs(a.y - b.y) >= a.size, (a, b)


def width(text):
    return text_width(text.text, text.size)
