"""The calculator's bar: widths are bytes, colours are parts, and nothing is cut."""

import xml.etree.ElementTree as ET

import pytest

from helpers.lesson.drawing.bars import MARGIN, WIDTH, stacked_bar
from helpers.memory.closed_form.breakdown import PARTS

GIB = 2**30
SVG = "{http://www.w3.org/2000/svg}"
SIZES = {"parameters": 25 * GIB, "optimizer": 50 * GIB, "activations": 20 * GIB, "logits": GIB}


def read(picture):
    return ET.fromstring(picture.svg)


def widths(picture):
    return {r.get("data-part"): float(r.get("width")) for r in read(picture).iter(f"{SVG}rect") if r.get("data-part")}


@pytest.mark.parametrize("capacity_bytes", [None, 10 * GIB, 80 * GIB, 4000 * GIB])
def test_widths_are_proportional_to_bytes_and_the_line_to_the_capacity(capacity_bytes):
    picture = stacked_bar("t", SIZES, capacity_bytes, "GPU")
    drawn = widths(picture)
    per_byte = sum(drawn.values()) / sum(SIZES.values())
    for part, size in SIZES.items():
        assert drawn[part] == pytest.approx(size * per_byte, abs=0.1)
    lines = [float(line.get("x1")) for line in read(picture).iter(f"{SVG}line")]
    assert lines == ([pytest.approx(MARGIN + capacity_bytes * per_byte, rel=0.01)] if capacity_bytes else [])
    assert all(x < WIDTH for x in lines)


def test_blocks_stand_end_to_end_inside_the_card():
    x = MARGIN
    for rect in (r for r in read(stacked_bar("t", SIZES)).iter(f"{SVG}rect") if r.get("data-part")):
        assert float(rect.get("x")) == pytest.approx(x, abs=0.2)
        x += float(rect.get("width"))
    assert x <= WIDTH - MARGIN


def test_legend_names_each_part_inside_the_card():
    every = dict.fromkeys(PARTS, 999 * 2**20)
    texts = [t for t in read(stacked_bar("t", every)).iter(f"{SVG}text") if t.get("font-size") == "11.5"]
    assert [t.text.rsplit(" ", 2)[0] for t in texts][-2:] == ["workspace", "KV cache"]
    assert len(texts) == len(every)
    height = float(read(stacked_bar("t", every)).get("viewBox").split()[3])
    assert all(float(t.get("x")) + 6.3 * len(t.text) <= WIDTH and float(t.get("y")) < height for t in texts)


@pytest.mark.parametrize("parts", [{}, {"parameters": 0}, {"parameters": 1}, {"parameters": 10**18}])
def test_nothing_and_far_too_much_still_draw(parts):
    assert read(stacked_bar("t", parts, GIB, "GPU")).tag == f"{SVG}svg"


def test_text_is_escaped():
    picture = stacked_bar('<b> & "q"', {"<part>": GIB}, GIB, "<GPU>")
    assert read(picture).get("aria-label") == '<b> & "q"'
    assert "<b>" not in picture.svg
