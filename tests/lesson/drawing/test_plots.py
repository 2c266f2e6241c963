"""Pictures: PNG bytes with a title that reads, the same every time, no part left out."""

import struct

import pytest

from helpers.lesson import Picture
from helpers.lesson.drawing import plots
from helpers.lesson.drawing.pictures import COLOURS, LINES, label
from helpers.memory.closed_form.breakdown import PARTS
from helpers.memory.meter.timeline import Timeline

GIB = 2**30
PART_BYTES = {part: (at + 1) * GIB for at, part in enumerate(PARTS)}
STEP = Timeline(
    {"parameters": [GIB] * 6, "activations": [0, GIB, 2 * GIB, GIB, 0, 0], "gradients": [0, 0, 0, 0, GIB, 0]},
    ["forward"] * 3 + ["backward"] * 2 + ["optimizer step"],
)
FIGURES = {
    "stacked_bars": lambda: plots.stacked_bars("Bars", {"a": PART_BYTES, "b": {"parameters": 1}}, {"H100": 20 * GIB}),
    "stacked_bars of pairs": lambda: plots.stacked_bars("Bars", [("a", PART_BYTES), ("a", PART_BYTES)]),
    "timeline": lambda: plots.timeline("A step", STEP, budget_bytes=3 * GIB),
    "lines": lambda: plots.lines(
        "Lines", [1, 2, 4], {"one": [1, 2, 3], "two": [3, 2, 1]}, "x", "y", points={"one": ([1, 4], [1, 3])}, log=True
    ),
    "bars": lambda: plots.bars("Rows", {"small": 10, "large": GIB}),
}


def png_size(data):
    """Width and height in the header of a PNG."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", data[16:24])


@pytest.mark.parametrize("name", FIGURES)
def test_each_figure_is_a_png_with_its_title_as_text(name):
    picture = FIGURES[name]()
    width, height = png_size(picture._repr_png_())
    assert 600 < width < 1200
    assert 100 < height < 800
    assert repr(picture) == f"[picture: {picture.title}]"
    assert picture.title in ("Bars", "A step", "Lines", "Rows")
    assert picture._repr_svg_() is None


@pytest.mark.parametrize("name", FIGURES)
def test_the_same_input_gives_the_same_bytes(name):
    assert FIGURES[name]() == FIGURES[name]()


def test_another_input_gives_another_picture():
    assert plots.bars("Rows", {"a": 1, "b": 2}).png != plots.bars("Rows", {"a": 1, "b": 1}).png


def test_every_part_has_its_own_colour_and_name():
    assert set(COLOURS) == set(PARTS)
    assert len(set(COLOURS.values())) == len(PARTS)
    assert len({label(part) for part in PARTS}) == len(PARTS)
    assert len(set(LINES)) == len(LINES)


def test_every_public_figure_is_tested():
    public = {
        name
        for name, value in vars(plots).items()
        if callable(value) and getattr(value, "__module__", "") == plots.__name__ and name[0] != "_"
    }
    assert public == {name.split(" ")[0] for name in FIGURES}


def test_a_picture_of_nothing_is_only_its_title():
    assert (repr(Picture("t")), Picture("t")._repr_png_()) == ("[picture: t]", None)
