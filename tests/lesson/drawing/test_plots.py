"""Pictures: PNG bytes with a title that reads, the same every time, no part left out."""

import math
import re
import struct

import pytest
import torch

from helpers.catalog import TrainSetup
from helpers.lesson.drawing import plots
from helpers.lesson.drawing.marks import COLOURS, LINES, label
from helpers.memory.breakdown import PARTS
from helpers.memory.meter.timeline import Timeline

GIB = 2**30
LLAMA = TrainSetup("llama-2-7b", precision="bf16", sequence=2048)
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
    "spans": lambda: plots.spans("Seeds", {"one": [3.1, 3.0, 3.2], "two": [3.4]}, "loss"),
    "spans of ratios": lambda: plots.spans("Prices", {"one": [3.1, 1.4, 51.5]}, "dollars", log=True),
    "bars": lambda: plots.bars("Rows", {"small": 10, "large": GIB}),
    "levels": lambda: plots.levels("Levels", torch.linspace(-1, 1, 50), {"a": [-1.0, 0.0, 1.0], "b": [0.5]}),
    "channels": lambda: plots.channels("Channels", torch.tensor([9.0, 1]), torch.tensor([2.0, 1]), ("before", "after")),
    "lost": lambda: plots.lost("Lost", [2, 4], {"groups": [0.5, -0.01]}, "lost"),
    "hierarchy": lambda: plots.hierarchy("Levels", "h100"),
    "saved_tensors": lambda: plots.saved_tensors("Saved", LLAMA, LLAMA.model.layers[0]),
}


def png_size(data):
    """Width and height in the header of a PNG."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", data[16:24])


@pytest.mark.parametrize("name", FIGURES)
def test_each_figure_is_a_png_with_its_title_as_text(name):
    picture = FIGURES[name]()
    width, height = png_size(picture.png)
    assert 600 < width < 1200
    assert 100 < height < 800
    assert repr(picture) == f"[picture: {picture.title}]"
    assert not hasattr(picture, "_repr_svg_")  # JupyterLab would hide it, and nbval compare it


@pytest.mark.parametrize("name", FIGURES)
def test_each_figure_says_in_words_what_it_shows(name):
    picture = FIGURES[name]()
    assert picture.alt.startswith(f"{picture.title}. ")
    assert re.search(r"\d.*\.$", picture.words), "no number, or no sentence"
    assert len(picture.words) > 40


@pytest.mark.parametrize("name", FIGURES)
def test_the_same_input_gives_the_same_bytes(name):
    assert FIGURES[name]().png == FIGURES[name]().png


def test_another_input_gives_another_picture():
    assert plots.bars("Rows", {"a": 1, "b": 2}).png != plots.bars("Rows", {"a": 1, "b": 1}).png


def test_every_part_has_its_own_colour_and_name():
    assert set(COLOURS) == {*PARTS, "scores"}
    assert len(set(COLOURS.values())) == len(COLOURS)
    assert len({label(part) for part in COLOURS}) == len(COLOURS)
    assert len(set(LINES)) == len(LINES)


def test_every_public_figure_is_tested():
    assert set(plots.__all__) == {name.split(" ")[0] for name in FIGURES}


@pytest.fixture
def drawn(monkeypatch):
    """`drawn(picture, *arguments)` gives the axes that became the picture."""
    kept = []
    monkeypatch.setattr(plots, "as_picture", lambda figure, title, words: kept.append(figure))

    def call(function, *arguments):
        function(*arguments)
        return kept[-1].axes[0]

    return call


def test_every_level_is_a_tick_under_the_histogram(drawn):
    axes = drawn(plots.levels, "t", torch.randn(500), {"a": [-1.0, 0.0, 1.0], "b": [0.5]})
    ticks = [sorted(segment[0][0] for segment in lines.get_segments()) for lines in axes.collections]
    assert ticks == [[-1.0, 0.0, 1.0], [0.5]]
    assert all(segment[:, 1].max() < 0 for lines in axes.collections for segment in lines.get_segments())


def test_a_channel_is_two_dots_at_its_values_and_a_line_between(drawn):
    axes = drawn(plots.channels, "t", torch.tensor([100.0, 1.0]), torch.tensor([2.0, 1.0]), ("before", "after"))
    assert [segment[:, 1].tolist() for segment in axes.collections[0].get_segments()] == [[100.0, 2.0], [1.0, 1.0]]
    assert [list(line.get_ydata()) for line in axes.lines] == [[100.0, 1.0], [2.0, 1.0]]
    low, high = axes.get_ylim()
    assert low < 1 < 100 < high


def test_a_width_that_loses_nothing_has_no_dot(drawn):
    axes = drawn(plots.lost, "t", [2, 4], {"groups": [0.5, -0.01]}, "lost")
    assert axes.get_yscale() == "log"
    heights = axes.transData.transform([(2, 0.5), (4, -0.01)])[:, 1]
    assert [math.isfinite(height) for height in heights] == [True, False]


def test_the_names_of_curves_that_end_together_stand_apart():
    _, axes = plots.new_figure("Lines", height=3.0)
    axes.set_ylim(0, 20)
    plots._name_ends(axes, 5, {"rising": 20.0, "flat": 1.0, "as flat": 1.0})
    places = sorted(text.xy[1] for text in axes.texts)
    assert places == [1.0, 1.0 + 0.075 * 20, 20.0]
    assert {text.xy[0] for text in axes.texts} == {5}


def test_the_name_of_a_curve_that_ends_on_the_axis_stands_clear_of_it():
    _, axes = plots.new_figure("Lines", height=3.0)
    axes.set_ylim(0, 20)
    plots._name_ends(axes, 5, {"kept": 0.1})
    assert axes.texts[0].xy[1] == 0.04 * 20


def test_whole_numbers_on_the_x_axis_get_no_ticks_between_them(drawn):
    for x, whole in (([1, 2, 3, 4, 5], True), ([0.5, 1.0, 1.5, 2.0, 2.5], False)):
        ticks = drawn(plots.lines, "t", x, {"a": [0, 1, 2, 3, 4]}, "calls", "MiB").get_xticks()
        assert all(float(tick).is_integer() for tick in ticks) == whole, ticks


def test_an_inset_begins_near_what_lives_longer(drawn):
    flat = {"parameters": [100 * GIB] * 90, "logits": [*[0] * 40, GIB, *[0] * 49]}
    timeline = Timeline(flat, ["forward"] * 90)
    (inset,) = drawn(lambda: plots.timeline("t", timeline, enlarged=20)).child_axes
    assert (inset.get_xlim(), inset.get_ylim()) == ((30, 50), (99.75, 101.25))
    assert not drawn(lambda: plots.timeline("t", timeline)).child_axes
