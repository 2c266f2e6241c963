"""Bars as shares of a memory: the line stands where it is full; seconds beside a line; every number in words."""

import pytest

from helpers.lesson.drawing.marks import LINES, Box, Line, TextMark, text_width
from helpers.lesson.drawing.pictures import MARGIN, WIDTH
from helpers.lesson.drawing.shares import Memory, memory_shares, time_bars

CARD = Memory("card", {"parameters": 6 * 2**30, "workspace": 2 * 2**30}, 16 * 2**30, {"workspace": "buffers"})
HOST = Memory("host", {"parameters": 96 * 2**30}, 64 * 2**30)
WIRE = Memory("wire", {"parameters": 2**30}, None)


def of(card, kind, marks=Box):
    return [mark for mark in card.body if isinstance(mark, marks) and mark.kind == kind]


def test_a_bar_is_as_long_as_its_share():
    card = memory_shares("Shares", [CARD, HOST])
    lines, parts = of(card, "capacity", Line), of(card, "part")
    full = lines[0].points[0][0] - MARGIN
    assert [line.points[0][0] - MARGIN for line in lines] == [full, full]
    lengths = {part.part: part.width for part in parts[:2]}
    assert sum(lengths.values()) == pytest.approx(full / 2)
    assert lengths["parameters"] == pytest.approx(3 * lengths["workspace"])
    assert parts[2].width == pytest.approx(1.5 * full)
    assert MARGIN + parts[2].width <= WIDTH - MARGIN


def test_a_memory_without_a_capacity_has_words_alone():
    card = memory_shares("Shares", [WIRE, CARD])
    assert len(of(card, "capacity", Line)) == 1
    assert {part.y for part in of(card, "part")} == {of(card, "memory")[0].y}
    told = "wire: 1.00 GiB, of a memory whose capacity is not known"
    assert [mark.text for mark in card.body if isinstance(mark, TextMark)].count(told) == 1
    assert told in card.alt
    assert memory_shares("Shares", [WIRE]).height > 0


def test_sizes_stand_in_the_legend_where_they_are_one_memory_s():
    def texts(*memories):
        return {mark.text for mark in memory_shares("Shares", memories).body if isinstance(mark, TextMark)}

    assert {"buffers 2.00 GiB", "parameters 6.00 GiB"} < texts(CARD)
    assert {"buffers", "parameters"} < texts(CARD, HOST)
    assert "card: 8.00 GiB of 16.00 GiB, 50 % (parameters 6.00 GiB, buffers 2.00 GiB)" in memory_shares("S", [CARD]).alt


@pytest.mark.parametrize("limit", [0.01, 1.05, 1.9, 2.0, 50.0])
def test_bars_that_pass_the_line_have_another_colour_and_no_number_is_crossed(limit):
    seconds = {"short": 1.0, "long": 2.0}
    card = time_bars("Times", seconds, ("compute", limit), "long")
    line = of(card, "limit", Line)[0].points[0][0]
    bars = of(card, "time")
    assert [bar.fill == LINES[1] for bar in bars] == [value > limit for value in seconds.values()]
    for bar, value in zip(bars, seconds.values(), strict=True):
        assert (bar.x + bar.width > line + 1e-6) == (value > limit)
    for text in (mark for mark in card.body if isinstance(mark, TextMark) and mark.halo):
        assert not text.x - 1 < line < text.x + text_width(text.text, text.size, text.bold)
    assert "short 1 s, long 2 s. Dashed: compute" in card.alt
