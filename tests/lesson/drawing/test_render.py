"""One list of marks, two renderers: both draw every kind of mark, and no text becomes markup."""

import doctest
import re
import struct
import xml.etree.ElementTree as ET

import pytest

from helpers.lesson.drawing import axes, labels, marks, pareto
from helpers.lesson.drawing.marks import CARD, INK, Area, Box, Dot, Line, TextMark
from helpers.lesson.drawing.pictures import WIDTH, Card, png_of, svg_of

SVG = "{http://www.w3.org/2000/svg}"
EVERY = (
    Box(10, 40, 50, 20, "#0072B2", "stripes", kind="block", part="<part>", tooltip="a & b"),
    Box(70, 40, 50, 20, edge=INK, dashed=True),
    TextMark(20, 90, "<b> & 'c'", bold=True, halo=True),
    TextMark(200, 90, "turned", angle=-30, anchor="middle"),
    Line(((10, 100), (90, 120), (95, 100)), INK, 2, "5 3", tooltip="a line"),
    Area(((10, 130), (90, 130), (50, 150)), "#D55E00", 0.5),
    Dot(200, 140, CARD, INK, tooltip="a ring"),
)
EVERYTHING = Card("a <title> & more", 160, EVERY)


def test_the_svg_has_each_mark_with_its_numbers_and_escapes_what_it_says():
    root = ET.fromstring(svg_of(EVERYTHING))
    found = [child.tag.removeprefix(SVG) for child in root]
    assert found == ["defs", "rect", "text", "rect", "rect", "text", "text", "polyline", "polygon", "circle"]
    assert (root.get("aria-label"), root.find(f"{SVG}text").text) == ("a <title> & more",) * 2
    block = root.findall(f"{SVG}rect")[1]
    assert (block.get("data-part"), block.find(f"{SVG}title").text) == ("<part>", "a & b")
    assert [block.get(name) for name in ("x", "y", "width", "height")] == ["10.0", "40.0", "50.0", "20.0"]
    assert root.find(f"{SVG}polyline").get("points") == "10.0,100.0 90.0,120.0 95.0,100.0"
    assert "rotate(-30.0 200.0 90.0)" in svg_of(EVERYTHING)
    assert re.findall(r'id="([^"]+)"', svg_of(EVERYTHING)) == re.findall(r"url\(#([^)]+)\)", svg_of(EVERYTHING))


@pytest.mark.parametrize("mark", EVERY, ids=lambda mark: type(mark).__name__)
def test_each_mark_changes_the_png(mark):
    without = Card(EVERYTHING.title, EVERYTHING.height, tuple(other for other in EVERY if other is not mark))
    assert without.png != EVERYTHING.png


def test_a_card_shows_itself_as_png_of_its_own_size_and_reads_as_its_title():
    width, height = struct.unpack(">II", EVERYTHING.png[16:24])
    assert (width, height) == (round(1.1 * WIDTH), 176)
    assert repr(EVERYTHING) == "[picture: a <title> & more]"
    assert Card(EVERYTHING.title, 160, EVERY).png == EVERYTHING.png  # the same bytes, whenever it is drawn


def test_cards_stand_below_one_another_in_both():
    root = ET.fromstring(svg_of(EVERYTHING, EVERYTHING))
    assert [(card.get("y"), card.get("height")) for card in root] == [("0", "160"), ("166", "160")]
    assert root.get("viewBox") == f"0 0 {WIDTH} 326"
    assert struct.unpack(">II", png_of(EVERYTHING, EVERYTHING)[16:24])[1] == int(1.1 * 326)


def test_a_long_title_gets_smaller_letters():
    short, long = (Card(text, 50, ()).marks[0] for text in ("short", "a title that goes on and on " * 4))
    assert short.size == 15 > long.size
    assert marks.text_width(long.text, long.size, bold=True) < WIDTH - 30


@pytest.mark.parametrize("module", [axes, labels, marks, pareto], ids=lambda module: module.__name__)
def test_the_examples_in_the_docstrings(module):
    assert doctest.testmod(module).attempted
    assert doctest.testmod(module).failed == 0
