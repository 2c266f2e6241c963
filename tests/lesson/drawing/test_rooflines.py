"""Pictures of roofs: marks stand where the numbers put them, names cover nothing, what cannot be drawn is told."""

from itertools import combinations
from math import log10

import pytest

from helpers.catalog import DEVICES, WorkbookError
from helpers.lesson.drawing.marks import CARD, INK, Dot, Line, TextMark, text_width
from helpers.lesson.drawing.pictures import WIDTH
from helpers.lesson.drawing.rooflines import COMPUTE_COLOUR, FOOT, LEFT, MEMORY_COLOUR, RIGHT, TOP, chart
from helpers.memory.work import Roof, Work, attention, copy, layernorm, matmul, softmax

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


def of(card, kind, name=""):
    return [mark for mark in card.body if isinstance(mark, kind) and (not name or mark.kind == name)]


def names(card):
    """The boxes of the words that belong to points."""
    boxes = {}
    for text in (text for text in of(card, TextMark) if text.size == 12.5 and text.colour == INK):
        width = text_width(text.text, text.size)
        left = text.x - (width if text.anchor == "end" else 0)
        boxes[text.text] = (left, text.y - 0.85 * text.size, left + width, text.y + 0.3 * text.size)
    return boxes


def overlap(a, b):
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def test_a_measured_point_is_a_dot_with_a_line_to_the_roof():
    work = WORKS["GEMV"]
    card = chart("t", H100, {"GEMV": (work, 50e-6)})
    (dot,), (missing,), (roof,) = of(card, Dot), of(card, Line, "missing"), of(card, Line, "memory")
    assert (dot.fill, dot.edge) == (MEMORY_COLOUR, CARD)
    assert missing.points[0] == (dot.x, dot.y)
    (x0, y0), (x1, y1) = roof.points
    x, y = missing.points[1]
    assert y == pytest.approx(y0 + (y1 - y0) * (x - x0) / (x1 - x0))  # it ends on the slope
    assert list(names(card)) == ["GEMV: 70 %"]  # 35.07 of 50 µs


def test_a_predicted_point_is_a_ring_on_the_roof():
    card = chart("t", H100, {name: (work, None) for name, work in WORKS.items()})
    assert {dot.fill for dot in of(card, Dot)} == {CARD}
    assert not of(card, Line, "missing")
    assert set(names(card)) == set(WORKS)


@pytest.mark.parametrize("roofs", [H100, CPU, [CPU, H100], [Roof.of("t4", "fp16")]], ids=str)
@pytest.mark.parametrize("share", [0.05, 0.6, 0.95, 1.1])
def test_six_names_cover_neither_each_other_nor_a_mark(roofs, share):
    roof = roofs if isinstance(roofs, Roof) else roofs[0]
    card = chart("t", roofs, measured(roof, share))
    boxes = names(card)
    assert len(boxes) == len(WORKS)
    for (one, box), (other, second) in combinations(boxes.items(), 2):
        assert not overlap(box, second), (one, other)
    for name, box in boxes.items():
        assert not any(overlap(box, (dot.x - 6, dot.y - 6, dot.x + 6, dot.y + 6)) for dot in of(card, Dot)), name
        assert 0 <= box[0] <= box[2] <= WIDTH
        assert 0 <= box[1] <= box[3] <= card.height


def test_a_long_name_stays_inside_the_card():
    card = chart("t", H100, {f"{name}, with a name that goes on and on": (work, None) for name, work in WORKS.items()})
    assert len(names(card)) == len(WORKS)
    assert all(0 <= left <= right <= WIDTH for left, _, right, _ in names(card).values())


def test_the_roof_names_its_slopes_and_its_ridge():
    card = chart("t", [H100, CPU], measured(H100))
    texts = {text.text for text in of(card, TextMark)}
    assert {"memory: 3.35 TB/s", "compute: 989 TFLOP/s", "ridge: 295 FLOPs per byte", CPU.name} <= texts
    for dot in of(card, Dot):
        assert LEFT < dot.x < RIGHT
        assert TOP < dot.y < card.height - FOOT


@pytest.mark.parametrize(("seconds", "note"), [(1e-3, "2.00 TB/s, 60 % of the bandwidth"), (None, "597 µs at least")])
def test_work_without_flops_is_told_below(seconds, note):
    card = chart("t", H100, {"copy": (copy(10**9, "fp8-e4m3"), seconds), **measured(H100)})
    assert len(of(card, Dot)) == len(WORKS)
    (said,) = (text.text for text in of(card, TextMark) if "copy" in text.text)
    assert said.startswith("copy computes nothing")
    assert note in said


def test_the_same_points_give_the_same_png():
    one, two = (chart("Roof", H100, measured(H100)) for _ in range(2))
    assert one.png.startswith(b"\x89PNG")
    assert (one, repr(one), one.png) == (two, "[picture: Roof]", two.png)
    assert one.png != chart("Roof", H100, measured(H100, 0.5)).png


BAD = [
    ([], {}, "without a roof"),
    (H100, {"x": (WORKS["GEMM"], 0.0)}, "x took 0.0 seconds"),
    (H100, {"x": (WORKS["GEMM"], float("nan"))}, "took nan seconds"),
    (H100, {"x": (WORKS["GEMM"], -1.0)}, "took -1.0 seconds"),
]


@pytest.mark.parametrize(("roofs", "points", "phrase"), BAD)
def test_bad_points_are_refused(roofs, points, phrase):
    with pytest.raises(WorkbookError, match=phrase):
        chart("t", roofs, points)


@pytest.mark.parametrize("gpu", [name for name, entry in DEVICES.items() if entry.peak_flops])
def test_the_ring_lies_on_the_slope_that_limits_and_the_axes_stand_still(gpu):
    roof = Roof.of(gpu, "fp32")
    for work in WORKS.values():
        card = chart("t", roof, {"x": (work, None)}, height=300, decades=True)
        (ring,) = of(card, Dot)
        ((x1, y1), (x2, y2)) = of(card, Line, roof.bound(work))[0].points
        assert x1 <= ring.x <= x2
        assert ring.y == pytest.approx(y1 + (y2 - y1) * (ring.x - x1) / (x2 - x1))
        assert ring.edge == {"memory": MEMORY_COLOUR, "compute": COMPUTE_COLOUR}[roof.bound(work)]
        decades = 6  # of intensity, from a tenth to 100,000
        assert ring.x == pytest.approx(LEFT + (RIGHT - LEFT) * (log10(work.intensity) + 1) / decades)


def test_the_slopes_meet_at_the_ridge_inside_the_axes():
    card = chart("t", H100, {"x": (WORKS["GEMM"], None)}, height=300, decades=True)
    memory, compute, ridge = (of(card, Line, name)[0].points for name in ("memory", "compute", "ridge"))
    assert memory[1] == compute[0] == ridge[0]
    assert compute[0][1] == compute[1][1] > TOP
    assert TOP < memory[0][1] <= 300 - FOOT
    assert (memory[0][0], compute[1][0], ridge[1][1]) == (LEFT, RIGHT, 300 - FOOT)


@pytest.mark.parametrize("work", [Work(1, 10**15, 1), Work(10**18, 1, 1)])
@pytest.mark.parametrize("decades", [False, True])
def test_work_far_outside_still_draws(work, decades):
    card = chart("t", H100, {"x": (work, None)}, decades=decades)
    (ring,) = of(card, Dot)
    assert LEFT <= ring.x <= RIGHT
    assert TOP <= ring.y <= card.height - FOOT
    assert card.png
