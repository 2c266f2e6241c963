"""Stacked bars: widths are bytes, colours are parts, and nothing is cut."""

import pytest

from helpers.lesson.drawing.bars import stacked_bars
from helpers.lesson.drawing.marks import ON_A_CARD, Box, Line, TextMark, colour_of, text_width
from helpers.lesson.drawing.pictures import MARGIN, WIDTH
from helpers.memory import format_bytes
from helpers.memory.breakdown import PARTS

GIB = 2**30
SIZES = {"parameters": 25 * GIB, "optimizer": 50 * GIB, "activations": 20 * GIB, "logits": GIB}


def blocks(card):
    return [mark for mark in card.marks if isinstance(mark, Box) and mark.part]


def capacity_lines(card):
    return [mark.points[0][0] for mark in card.marks if isinstance(mark, Line)]


@pytest.mark.parametrize("capacity_bytes", [None, 10 * GIB, 80 * GIB, 4000 * GIB])
def test_widths_are_proportional_to_bytes_and_the_line_to_the_capacity(capacity_bytes):
    card = stacked_bars("t", {"": SIZES}, {"GPU": capacity_bytes} if capacity_bytes else None)
    drawn = {block.part: block.width for block in blocks(card)}
    px = sum(drawn.values()) / sum(SIZES.values())
    assert drawn == pytest.approx({part: size * px for part, size in SIZES.items()})
    assert capacity_lines(card) == ([pytest.approx(MARGIN + capacity_bytes * px)] if capacity_bytes else [])
    assert all(x < WIDTH for x in capacity_lines(card))


def test_blocks_stand_end_to_end_inside_the_card():
    x = MARGIN
    for block in blocks(stacked_bars("t", {"": SIZES})):
        assert block.x == pytest.approx(x)
        x += block.width
    assert x <= WIDTH - MARGIN


def test_bars_share_a_scale_and_the_chosen_one_is_marked():
    rows = {"a": {"parameters": 100, "gradients": 50}, "b": {"parameters": 25}}
    card = stacked_bars("t", rows, {"GPU": 60}, "b")
    widths, lefts = ([getattr(block, name) for block in blocks(card)] for name in ("width", "x"))
    assert widths == pytest.approx([4 * widths[2], 2 * widths[2], widths[2]])
    assert lefts == pytest.approx([lefts[2], lefts[2] + widths[0], lefts[2]])
    assert max(left + width for left, width in zip(lefts, widths, strict=True)) < WIDTH
    assert capacity_lines(card) == [pytest.approx(lefts[0] + 0.6 * widths[0])]
    assert {mark.text for mark in card.body if isinstance(mark, TextMark) and mark.bold} == {"b", format_bytes(25)}


@pytest.mark.parametrize("crossed", [0.3, 0.5, 0.52, 0.7])
def test_no_number_stands_on_the_line_of_the_capacity(crossed):
    card = stacked_bars("t", {"": {"parameters": 50 * GIB}}, {"GPU": int(50 * GIB * crossed)})
    (number,) = (mark for mark in card.marks if isinstance(mark, TextMark) and mark.text == "50.0")
    half = text_width(number.text, number.size) / 2
    assert not number.x - half < capacity_lines(card)[0] < number.x + half


@pytest.mark.parametrize("middle", range(30, 90, 5))
def test_the_name_of_a_capacity_ends_before_the_next_line(middle):
    capacities = {"first": 22 * GIB, "second": middle * GIB, "third": 95 * GIB}
    card = stacked_bars("t", {"a long name of a row": SIZES, "b": SIZES}, capacities)
    (first,) = (mark for mark in card.marks if isinstance(mark, TextMark) and mark.text.startswith("first"))
    lines, width = sorted(capacity_lines(card)), text_width(first.text, first.size)
    reaches = first.x + width if first.anchor == "start" else first.x
    assert reaches < lines[1]


def test_a_part_too_thin_to_be_seen_is_not_in_the_legend():
    card = stacked_bars("t", {"a": SIZES | {"workspace": 2**20}, "b": SIZES})
    texts = {mark.text for mark in card.marks if isinstance(mark, TextMark)}
    assert "activations" in texts
    assert "workspace" not in texts


def test_the_legend_names_each_part_once_inside_the_card():
    every = dict.fromkeys(PARTS, 999 * 2**20)
    card = stacked_bars("t", [("", every)])
    texts = [mark for mark in card.marks if isinstance(mark, TextMark) and mark.size == 11.5]
    assert [text.text.rsplit(" ", 2)[0] for text in texts][-2:] == ["workspace", "KV cache"]
    assert len(texts) == len(every)
    assert all(text.x + text_width(text.text, 11.5) <= WIDTH and text.y < card.height for text in texts)


@pytest.mark.parametrize("parts", [{}, {"parameters": 0}, {"parameters": 1}, {"parameters": 10**18}])
def test_nothing_and_far_too_much_still_draw(parts):
    card = stacked_bars("t", {"": parts}, {"GPU": GIB})
    assert all(0 <= block.x <= block.x + block.width <= WIDTH for block in blocks(card))


@pytest.mark.parametrize("capacity_gib", range(4, 130, 3))
def test_no_capacity_crosses_a_number(capacity_gib):
    """Neither a part's nor a bar's: with the line where the number would be, the number stands beside it."""
    rows = {"one": SIZES, "two": {"parameters": 10 * GIB, "logits": GIB}, "three": {"optimizer": 60 * GIB}}
    for bars in (rows, {"": SIZES}):
        card = stacked_bars("t", bars, {"GPU": capacity_gib * GIB}, "two" if len(bars) > 1 else "")
        (line,) = capacity_lines(card)
        top, foot = next((mark.points[0][1], mark.points[1][1]) for mark in card.marks if isinstance(mark, Line))
        for text in card.marks:
            if not isinstance(text, TextMark) or not top < text.y < foot:
                continue
            width = text_width(text.text, text.size, text.bold)
            left = text.x - {"start": 0, "middle": width / 2, "end": width}[text.anchor]
            assert not left < line < left + width, text
            assert left + width <= WIDTH, text


def test_names_of_lines_that_are_near_each_other_stand_in_rows():
    cards = {"24 GB": 24 * GIB, "48 GB": 45 * GIB, "80 GB": 79 * GIB}
    card = stacked_bars("t", {"a": {"parameters": 120 * GIB}, "b": {"parameters": GIB}}, cards)
    names = [mark for mark in card.body if isinstance(mark, TextMark) and mark.text[:5] in cards]
    spans = []
    for mark in names:
        start = mark.x - text_width(mark.text, 12) * (mark.anchor == "end")
        spans.append((mark.y, start, start + text_width(mark.text, 12)))
    assert len(names) == 3
    assert not [
        (one, other)
        for at, one in enumerate(spans)
        for other in spans[:at]
        if one[0] == other[0] and one[1] < other[2] and other[1] < one[2]
    ]
    swatches = [mark.y for mark in card.body if isinstance(mark, Box) and not mark.part]
    assert max(mark.y for mark in names) < min(swatches), "the legend is below them all"


def test_the_parts_of_a_message_have_colours_of_their_own_and_one_order():
    parts = dict.fromkeys(reversed(ON_A_CARD), GIB)
    card = stacked_bars("t", {"A": parts, "B": SIZES})
    drawn = [block.part for block in blocks(card)]
    assert drawn[: len(parts)] == list(ON_A_CARD)
    assert len({colour_of(part) for part in parts}) == len(parts)
