"""Pictures of roofs: marks stand where the numbers put them, names cover nothing, what cannot be drawn is told."""

import doctest
import importlib
import re
import xml.etree.ElementTree as ET
from itertools import combinations, product
from math import dist, log10

import pytest

from helpers.catalog import DEVICES, WorkbookError
from helpers.lesson.calculators import roofline
from helpers.lesson.calculators.operators import OPERATORS
from helpers.lesson.drawing import rooflines
from helpers.lesson.drawing.labels import Labels
from helpers.lesson.drawing.pictures import INK
from helpers.lesson.drawing.roofline_svg import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, roofline_svg
from helpers.lesson.units import percent, si, three_digits
from helpers.memory.closed_form.work import Roof, Work, attention, copy, layernorm, matmul, softmax

SVG = "{http://www.w3.org/2000/svg}"
H100, CPU = Roof.of("h100", "bf16"), Roof(180e9, 21e9, "this CPU, measured")
WORKS = {
    "layernorm": layernorm(8192, 4096, "bf16"),
    "softmax": softmax(8192, 4096, "bf16"),
    "GEMV": matmul(1, 4096, 14336),
    "attention, decode": attention(1, 8192, 32, 128, 8, batch=16),
    "attention, prefill": attention(4096, 4096, 32, 128, 8),
    "GEMM": matmul(4096, 4096, 4096),
}


def measured(roof, share=0.6):
    return {name: (work, roof.seconds(work) / share) for name, work in WORKS.items()}


@pytest.fixture
def drawn(monkeypatch):
    """`drawn(roofs, points)` gives the figure and the axes that became the picture."""

    def draw(roofs, points):
        kept = []
        monkeypatch.setattr(rooflines, "as_picture", lambda figure, title: kept.append(figure))
        rooflines.chart("t", roofs, points)
        return kept[0], kept[0].axes[0]

    return draw


def dots(axes):
    """Position and filling of each mark."""
    return [
        (line.get_xdata()[0], line.get_ydata()[0], line.get_markerfacecolor())
        for line in axes.lines
        if line.get_marker() == "o"
    ]


def names(axes):
    """The written words that belong to points, with their boxes."""
    labels = Labels(axes)
    return {text.get_text(): labels._extent(text) for text in axes.texts if text.get_color() == INK}


def test_a_measured_point_is_a_dot_with_a_line_to_the_roof(drawn):
    work = WORKS["GEMV"]
    _, axes = drawn(H100, {"GEMV": (work, 50e-6)})
    [(x, y, filling)] = dots(axes)
    assert (x, y) == (work.intensity, work.flops / 50e-6)
    assert filling == rooflines.MEMORY_COLOUR
    missing = [sorted(line.get_ydata()) for line in axes.lines if list(line.get_xdata()) == [x, x]]
    assert missing == [[y, H100.attainable(x)]]
    assert list(names(axes)) == [f"GEMV: {percent(y / H100.attainable(x))}"]
    assert percent(y / H100.attainable(x)) == "70 %"  # 35.07 of 50 µs


def test_a_predicted_point_is_a_ring_on_the_roof(drawn):
    _, axes = drawn(H100, {name: (work, None) for name, work in WORKS.items()})
    for x, y, filling in dots(axes):
        assert y == H100.attainable(x)
        assert filling == rooflines.CARD
    assert set(names(axes)) == set(WORKS)


@pytest.mark.parametrize("roofs", [H100, CPU, [CPU, H100], [Roof.of("t4", "fp16")]], ids=str)
@pytest.mark.parametrize("share", [0.05, 0.6, 0.95, 1.1])
def test_six_names_cover_neither_each_other_nor_a_mark(drawn, roofs, share):
    roof = roofs if isinstance(roofs, Roof) else roofs[0]
    figure, axes = drawn(roofs, measured(roof, share))
    boxes = names(axes)
    assert len(boxes) == len(WORKS)
    for (one, box), (other, second) in combinations(boxes.items(), 2):
        assert not box.overlaps(second), (one, other)
    for name, box in boxes.items():
        around = box.padded(8)  # pixels: a mark is twelve wide
        assert not any(around.contains(*axes.transData.transform((x, y))) for x, y, _ in dots(axes)), name
        assert_inside(box, figure)


def assert_inside(box, figure):
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.x1
    assert 0 <= box.y0 <= box.y1 <= figure.bbox.y1


def test_a_long_name_stays_inside_the_card(drawn):
    names_given = {f"{name}, with a name that goes on and on": (work, None) for name, work in WORKS.items()}
    figure, axes = drawn(H100, names_given)
    for box in names(axes).values():
        assert_inside(box, figure)


@pytest.fixture
def bare():
    """Labels over empty axes where a unit is a pixel is a typographer's point, and a mark in the middle."""
    from matplotlib.figure import Figure

    axes = Figure(figsize=(8, 8), dpi=72).add_axes([0, 0, 1, 1])
    axes.set(xlim=(0, 576), ylim=(0, 576))
    labels = Labels(axes)
    labels.avoid_point(300, 300)
    return labels


def spot(labels):
    labels.place((300, 300), "A")
    return labels.axes.texts[-1].xyann


def test_a_name_stands_beside_its_mark_or_where_it_is_free(bare):
    assert spot(bare) == (9, 0)
    assert spot(bare) == (-9, 0)  # the first A is in the way
    bare.avoid_point(314, 285)
    assert spot(bare) == (-12, 17)  # at the end of a thin line


def test_a_name_is_not_put_where_another_mark_is_nearer(bare):
    bare.avoid_line([312, 330], [300, 300])
    bare.avoid_line([270, 288], [300, 300])
    assert spot(bare) == (8, -11)
    other = type(bare)(bare.axes)
    other.avoid_point(300, 300)
    other.avoid_line([312, 330], [300, 300])
    other.avoid_line([270, 288], [300, 300])
    other.avoid_point(299, 284)  # touches no name, but is nearer to one below on the right than A is
    assert spot(other) == (-8, 11)


def test_a_name_is_nearest_to_its_own_mark_or_tied_to_it(drawn):
    _, axes = drawn(H100, {name: (work, None) for name, work in WORKS.items()})
    places = {
        name: axes.transData.transform((work.intensity, H100.attainable(work.intensity)))
        for name, work in WORKS.items()
    }
    tied = {text.get_text() for text in axes.texts if getattr(text, "arrow_patch", None)}
    for name, box in names(axes).items():
        ends = [(x, (box.y0 + box.y1) / 2) for x in (box.x0, box.x1)]
        nearest = min(places, key=lambda other: min(dist(places[other], end) for end in ends))
        assert nearest == name or name in tied, (name, nearest)


def test_a_thin_line_crosses_no_words_and_no_words_cover_it(bare):
    bare.place((331, 240), "words", spots=[(9, 0)])
    bare.place((300, 300), "A", spots=[(80, -117), (-80, 117)])
    assert bare.axes.texts[-1].xyann == (-80, 117)
    bare.place((244, 360), "B", spots=[(9, 0), (8, -11)])  # beside it goes the line of A
    assert bare.axes.texts[-1].xyann == (8, -11)


def test_every_mark_is_kept_free_of_names(drawn, monkeypatch):
    kept = []
    monkeypatch.setattr(Labels, "avoid_point", lambda self, x, y: kept.append((x, y)))
    _, axes = drawn(H100, measured(H100))
    assert sorted(kept) == sorted((x, y) for x, y, _ in dots(axes))


def test_the_roof_names_its_slopes_and_its_ridge(drawn):
    _, axes = drawn([H100, CPU], measured(H100))
    told = {text.get_text() for text in axes.texts}
    assert {"memory: 3.35 TB/s", "compute: 989 TFLOP/s", "ridge: 295 FLOPs per byte", CPU.name} <= told
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    for x, y, _ in (*dots(axes), (H100.ridge, H100.flops_per_s, None), (CPU.ridge, CPU.flops_per_s, None)):
        assert left < x < right
        assert low < y < high


@pytest.mark.parametrize(("seconds", "note"), [(1e-3, "2.00 TB/s, 60 % of the bandwidth"), (None, "597 µs at least")])
def test_work_without_flops_is_told_below(drawn, seconds, note):
    figure, axes = drawn(H100, {"copy": (copy(10**9, "fp8-e4m3"), seconds), **measured(H100)})
    assert len(dots(axes)) == len(WORKS)
    assert any(text.get_text().startswith("copy computes nothing") and note in text.get_text() for text in figure.texts)
    assert not any("copy" in text.get_text() for text in axes.texts)


def test_the_same_points_give_the_same_png():
    one, two = (rooflines.chart("Roof", H100, measured(H100)) for _ in range(2))
    assert one.png.startswith(b"\x89PNG")
    assert (one, repr(one)) == (two, "[picture: Roof]")
    assert one.png != rooflines.chart("Roof", H100, measured(H100, 0.5)).png


BAD = [
    ([], {}, "without a roof"),
    (H100, {"x": (WORKS["GEMM"], 0.0)}, "x took 0.0 seconds"),
    (H100, {"x": (WORKS["GEMM"], float("nan"))}, "took nan seconds"),
    (H100, {"x": (WORKS["GEMM"], -1.0)}, "took -1.0 seconds"),
]


@pytest.mark.parametrize(("roofs", "points", "phrase"), BAD)
def test_bad_points_are_refused(roofs, points, phrase):
    with pytest.raises(WorkbookError, match=phrase):
        rooflines.chart("t", roofs, points)


@pytest.mark.parametrize(
    "module", ["units", "drawing.rooflines", "drawing.labels", "calculators.roofline", "calculators.operators"]
)
def test_the_examples_in_the_docstrings(module):
    assert doctest.testmod(importlib.import_module(f"helpers.lesson.{module}")).failed == 0


def read(roof, name, work):
    return ET.fromstring(roofline_svg("t", roof, name, work).svg)


def line(root, name):
    found = next(line for line in root.iter(f"{SVG}line") if line.get("class") == name)
    return [float(found.get(key)) for key in ("x1", "y1", "x2", "y2")]


@pytest.mark.parametrize("gpu", [name for name, entry in DEVICES.items() if entry.peak_flops])
def test_the_ring_of_the_svg_lies_on_the_slope_that_limits(gpu):
    roof = Roof.of(gpu, "fp32")
    for work in WORKS.values():
        root = read(roof, "x", work)
        ring = next(root.iter(f"{SVG}circle"))
        x, y = float(ring.get("cx")), float(ring.get("cy"))
        x1, y1, x2, y2 = line(root, roof.bound(work))
        assert x1 <= x <= x2
        assert y == pytest.approx(y1 + (y2 - y1) * (x - x1) / (x2 - x1), abs=0.2)
        decades = 6  # of intensity, from a tenth to 100,000
        assert x == pytest.approx(LEFT + (RIGHT - LEFT) * (log10(work.intensity) + 1) / decades, abs=0.1)


def test_the_slopes_meet_at_the_ridge_inside_the_axes():
    root = read(H100, "x", WORKS["GEMM"])
    memory, compute, ridge = (line(root, name) for name in ("memory", "compute", "ridge"))
    assert memory[2:] == compute[:2] == ridge[:2]
    assert compute[1] == compute[3] > TOP
    assert TOP < memory[1] <= BOTTOM
    assert (memory[0], compute[2], ridge[3]) == (LEFT, RIGHT, BOTTOM)


def test_nothing_is_written_outside_the_card():
    calculator = roofline()
    for gpu, op, tokens in product(calculator.options["gpu"][1], OPERATORS, (1, 1024, 65536)):
        html = calculator.render({**calculator.start, "gpu": gpu, "op": op, "tokens": tokens, "number_format": "fp16"})
        if 'class="error"' in html:
            continue
        root = ET.fromstring(html[: html.index("</svg>") + 6])
        for text in root.iter(f"{SVG}text"):
            width = 0.57 * float(text.get("font-size")) * len(text.text)
            before = {"middle": width / 2, "end": width}.get(text.get("text-anchor"), 0)
            start = float(text.get("x")) - before
            assert start >= 0, text.text
            assert start + width <= WIDTH, text.text
            assert 10 < float(text.get("y")) < HEIGHT, text.text


def test_the_svg_tells_work_without_flops_in_words_and_escapes():
    root = read(H100, "<copy>", copy(4096))
    assert not list(root.iter(f"{SVG}circle"))
    assert "← <copy>: 0 FLOPs" in {text.text for text in root.iter(f"{SVG}text")}
    assert ET.fromstring(roofline_svg('<b> & "q"', H100, "x", WORKS["GEMM"]).svg).get("aria-label") == '<b> & "q"'


@pytest.mark.parametrize("work", [Work(1, 10**15, 1), Work(10**18, 1, 1)])
def test_work_far_outside_still_draws(work):
    root = read(H100, "x", work)
    ring = next(root.iter(f"{SVG}circle"))
    assert LEFT <= float(ring.get("cx")) <= RIGHT
    assert TOP <= float(ring.get("cy")) <= BOTTOM
    assert rooflines.chart("t", H100, {"x": (work, None)}).png


UNITS = [
    (3.35e12, "B/s", "3.35 TB/s"),
    (989.4e12, "FLOP/s", "989 TFLOP/s"),
    (999.9e9, "FLOP/s", "1.00 TFLOP/s"),
    (1978.9e12, "FLOP/s", "1.98 PFLOP/s"),
    (7, "B", "7 B"),
    (0, "s", "0 s"),
    (1234.0, "s", "1,234 s"),
    (2.5e-9, "s", "2.50 ns"),
    (3e-12, "s", "0.00 ns"),
    (4e22, "FLOP", "40,000,000 PFLOP"),
]


@pytest.mark.parametrize(("value", "unit", "told"), UNITS)
def test_units(value, unit, told):
    assert si(value, unit) == told
    assert re.fullmatch(r"[\d.,]+", three_digits(max(value, 0.01)))
