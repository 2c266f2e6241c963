"""The block map's picture: who owns what, how full, and the waste as the frame has it."""

import doctest
import re
from collections import Counter
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from helpers.lesson.calculators import block_map_answer
from helpers.lesson.calculators.block_map import TRACES, small
from helpers.lesson.drawing import block_maps
from helpers.lesson.drawing.block_maps import block_map, listed, look, share, slots
from helpers.lesson.drawing.marks import Box, TextMark
from helpers.lesson.drawing.pictures import WIDTH, svg_of
from helpers.techniques.paging import POLICIES, BlockCell, BlockMapFrame

SCENES = [(trace, policy, *size) for trace in TRACES for policy in POLICIES for size in ((16, 512), (8, 1024))]
EMPTY = BlockMapFrame(1, (), (BlockCell(0), BlockCell(1)), {}, {}, (), 16)


def boxes(answer, kind):
    return [mark for mark in answer.cards[0].marks if isinstance(mark, Box) and mark.kind == kind]


def texts(svg):
    return [text.text for text in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


@pytest.mark.parametrize("policy", POLICIES)
def test_the_picture_shows_every_owner_and_the_waste(policy):
    for step in (1, 9, 20, 40):
        answer = block_map_answer("chat", policy, 4, 1024, step=step)
        frame, written = answer.frame, texts(answer.svg)
        assert f"waste {share(frame.waste)}" in written
        assert {str(name) for name in frame.lengths} <= set(written)
        alone = Counter(str(cell.owners[0]) for cell in frame.cells if len(cell.owners) == 1)
        assert all(written.count(name) >= count for name, count in alone.items())
        states = Counter(mark.kind for mark in answer.cards[0].marks if isinstance(mark, Box))
        assert states["owned"] + states["shared"] == states["filled"] == sum(bool(c.owners) for c in frame.cells)
        assert states["shared"] == frame.shared == sum(text.startswith("×") for text in written)
        assert states["owned"] + states["shared"] + states["kept"] + states["free"] == len(frame.cells)


def test_the_dark_part_of_a_block_is_what_is_filled():
    answer = block_map_answer("chat", "paged", 16, 1024, step=12)
    owned, filled = boxes(answer, "owned"), boxes(answer, "filled")
    for cell, whole_box, part in zip([c for c in answer.frame.cells if c.owners], owned, filled, strict=True):
        assert part.width / whole_box.width == pytest.approx(cell.filled / 16)
        assert (part.fill, part.pattern) == look(cell.owners[0])
    assert sum(box.width for box in filled) / sum(box.width for box in owned) == pytest.approx(1 - answer.frame.waste)


@pytest.mark.parametrize("policy", POLICIES)
def test_the_bar_is_the_pool(policy):
    answer = block_map_answer("chat", policy, 4, 1024, step=30)
    parts = {name: size for name, size in slots(answer.frame).items() if size}
    drawn = {name: boxes(answer, f"part {name}")[0].width for name in parts}
    assert [mark.kind for mark in answer.cards[0].marks if isinstance(mark, Box) and mark.kind.startswith("part")] == [
        f"part {name}" for name in parts
    ]
    assert sum(drawn.values()) == pytest.approx(block_maps.RIGHT - block_maps.LEFT)
    reserved = sum(drawn.get(name, 0) for name in ("shared", "filled", "empty"))
    assert drawn["empty"] / reserved == pytest.approx(answer.frame.waste)


def test_requests_that_run_together_look_different():
    assert len({look(request) for request in range(5, 5 + 24)}) == 24
    for trace in TRACES:  # whoever runs at the same time
        requests = range(len(small(trace).requests))
        assert len({look(request) for request in requests}) == len(requests)


def test_a_new_block_has_a_dark_edge():
    answer = block_map_answer("chat", "paged", 4, 1024, step=12)
    assert answer.sentence == "Requests 1, 6 and 13 took a block each."
    dark = [box.tooltip for box in boxes(answer, "owned") if box.line > 1]
    assert [re.search(r"request (\d+)", tooltip)[1] for tooltip in dark] == ["1", "6", "13"]
    assert any("thick edge" in text for text in texts(answer.svg))


def test_tables_and_the_queue_are_named():
    answer = block_map_answer("chat", "paged", 16, 512, step=40)
    frame, written = answer.frame, texts(answer.svg)
    for name, table in frame.tables.items():
        assert listed(table, block_maps.TABLE_BLOCKS) in written, name
    assert f"waiting: {' '.join(map(str, frame.waiting))}" in written
    regions = texts(block_map_answer("chat", "contiguous", 16, 1024, step=1).svg)
    assert {"0–15", "16–31", "32–47", "48–63"} <= set(regions)
    assert "waiting: " + " ".join(map(str, range(4, 24))) in regions
    many = svg_of(block_map("", replace(EMPTY, waiting=tuple(range(26)))))
    assert f"waiting: {' '.join(map(str, range(20)))} and 6 more" in texts(many)


def test_an_empty_pool_and_markup_in_a_title_are_drawn():
    svg = svg_of(block_map("a <b>", EMPTY))
    assert "nobody runs" in texts(svg)
    assert "nobody waits" in texts(svg)
    assert "a <b>" in texts(svg)


def test_every_pattern_that_is_used_is_defined_once():
    svg = block_map_answer("chat", "prefix", step=20).svg
    defined = re.findall(r'<pattern id="([^"]+)"', svg)
    assert len(defined) == len(set(defined))
    assert set(re.findall(r"url\(#([^)]+)\)", svg)) == set(defined)


def test_words_stay_on_the_card():
    """At 0.53 of its size per letter, which is wide for a sans serif."""
    for scene in SCENES:
        for step in (1, 8, 15):
            for mark in block_map_answer(*scene, step=step).cards[0].marks:
                if isinstance(mark, TextMark):
                    width = 0.53 * mark.size * len(mark.text)
                    left = mark.x - {"start": 0, "middle": width / 2, "end": width}[mark.anchor]
                    assert left >= 0, mark
                    assert left + width <= WIDTH, mark


def test_the_examples_in_the_docstrings():
    assert doctest.testmod(block_maps) == (0, 4)
