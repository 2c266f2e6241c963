"""Pictures of segments: widths are bytes, every block is drawn once, nothing leaves the card."""

import doctest
import xml.etree.ElementTree as ET

import pytest

from helpers.catalog import WorkbookError
from helpers.lesson.drawing import segments as figures
from helpers.lesson.drawing import segments_svg
from helpers.lesson.drawing.segments_svg import LEFT, RIGHT, WIDTH, Frame
from helpers.memory.allocator import MIB, alloc, at_step, free, read_snapshot, replay
from tests.memory.allocator.snapshots import snapshot_of

SVG = "{http://www.w3.org/2000/svg}"
STEPS = (
    alloc("x", 40 * MIB),
    free("x"),
    alloc("keep", 11 * MIB),
    alloc("odd", 11 * MIB + 1),
    alloc("whole", 49 * MIB),
    alloc("late", 36 * MIB),
)
CARD_BYTES = 96 * MIB
FULL = replay(STEPS, "", CARD_BYTES)
STAGES = [at_step(STEPS, at, "", CARD_BYTES) for at in range(1, len(FULL) + 1)]
FRAME = Frame.of(STAGES)


def drawn(stage, title="t"):
    return ET.fromstring(segments_svg.segments_svg(title, stage, FULL, FRAME, CARD_BYTES).svg)


def rects(root, name):
    return [{**rect.attrib} for rect in root.iter(f"{SVG}rect") if rect.get("class") == name]


def test_the_trace_ends_with_a_refusal():
    assert (FULL.oom.reason, FULL.oom.name) == ("full", "late")


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: f"after {len(stage)}")
def test_every_block_is_drawn_once_as_wide_as_its_bytes(stage):
    blocks = [block for segment in stage.segments for block in segment.blocks]
    boxes = rects(drawn(stage), "block")
    assert [box["data-state"] for box in boxes] == [block.state for block in blocks]
    for box, block in zip(boxes, blocks, strict=True):
        assert float(box["width"]) == pytest.approx(block.size_bytes / FRAME.scale_bytes * (RIGHT - LEFT), abs=0.1)


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: f"after {len(stage)}")
def test_blocks_of_a_row_stand_end_to_end_inside_the_card(stage):
    rows = {}
    for box in rects(drawn(stage), "block"):
        x, width = float(box["x"]), float(box["width"])
        assert x == pytest.approx(rows.get(box["y"], LEFT), abs=0.2)
        rows[box["y"]] = x + width
    assert all(end <= RIGHT + 0.2 for end in rows.values())
    assert len(rows) == len(stage.segments)


def test_every_stage_has_the_same_size_of_card():
    assert len({drawn(stage).get("viewBox") for stage in STAGES}) == 1


def test_what_nobody_asked_for_is_hatched():
    (slack,) = rects(drawn(STAGES[4]), "slack")
    assert float(slack["width"]) == pytest.approx(MIB / FRAME.scale_bytes * (RIGHT - LEFT), abs=0.6)


def test_the_block_of_the_event_is_marked():
    for stage in STAGES[:5]:
        marked = [box for box in rects(drawn(stage), "block") if box["stroke"] == segments_svg.INK]
        assert len(marked) == 1
        filled = marked[0]["fill"]
        assert filled == (segments_svg.HOLE if stage.outcomes[-1].kind == "freed" else segments_svg.MARKED)


def test_a_refused_request_is_an_outline_of_its_size():
    assert not rects(drawn(STAGES[4]), "refused")
    (refused,) = rects(drawn(STAGES[5]), "refused")
    assert float(refused["width"]) == pytest.approx(36 * MIB / FRAME.scale_bytes * (RIGHT - LEFT), abs=0.1)
    legend = min(float(text.get("y")) for text in drawn(STAGES[5]).iter(f"{SVG}text") if text.text == "in use")
    assert float(refused["y"]) + float(refused["height"]) < legend - 10
    assert any("full, out of memory" in (text.text or "") for text in drawn(STAGES[5]).iter(f"{SVG}text"))


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: f"after {len(stage)}")
def test_words_stay_in_their_blocks_and_on_the_card(stage):
    root = drawn(stage)
    height = float(root.get("viewBox").split()[3])
    for text in root.iter(f"{SVG}text"):
        reach = segments_svg.LETTER * len(text.text) * float(text.get("font-size")) / 11
        x, anchor = float(text.get("x")), text.get("text-anchor", "start")
        left = x - {"start": 0, "middle": reach / 2, "end": reach}[anchor]
        assert left >= 0, text.text
        assert left + reach <= WIDTH, text.text
        assert float(text.get("y")) < height


@pytest.mark.parametrize("size_mib", [1.5, 2, 3, 4, 6, 9, 14, 30])
def test_a_name_is_written_where_its_block_has_room(size_mib):
    ran = replay([alloc("scale", 90 * MIB), alloc("a name", int(size_mib * MIB)), alloc("b", 30 * MIB)])
    root = ET.fromstring(segments_svg.segments_svg("t", ran, ran, Frame.of([ran])).svg)
    boxes = [(float(box["x"]), float(box["width"])) for box in rects(root, "block")]
    for text in (text for text in root.iter(f"{SVG}text") if text.get("text-anchor") == "middle"):
        reach = segments_svg.LETTER * len(text.text) / 2
        left, right = float(text.get("x")) - reach, float(text.get("x")) + reach
        assert any(x <= left and right <= x + width for x, width in boxes), text.text


def test_the_strip_shows_both_series_to_scale():
    root = drawn(STAGES[0])
    tops = {}
    for shape in root.iter(f"{SVG}polygon"):
        ys = [float(point.split(",")[1]) for point in shape.get("points").split()]
        tops[shape.get("class")] = max(ys) - min(ys)
    ratio = max(FULL.allocated) / max(FULL.reserved)
    assert tops["allocated"] / tops["reserved"] == pytest.approx(ratio, rel=0.02)


def test_names_and_titles_are_escaped():
    steps = (alloc("<b>", 30 * MIB),)
    ran = replay(steps)
    svg = segments_svg.segments_svg('a & "b"', ran, ran, Frame.of([ran])).svg
    assert "<b>" not in svg
    assert ET.fromstring(svg).get("aria-label") == 'a & "b"'


def test_nothing_and_a_long_trace_still_draw():
    nothing = replay([])
    assert "nothing is reserved" in segments_svg.segments_svg("t", nothing, nothing, Frame.of([nothing])).svg


PNG = b"\x89PNG"
SNAPSHOT = read_snapshot(snapshot_of(STEPS[:4]))


@pytest.mark.parametrize(
    "source", [FULL, SNAPSHOT, SNAPSHOT.segments, list(SNAPSHOT.segments)], ids=["replay", "snapshot", "tuple", "list"]
)
def test_segments_of_anything_are_a_png(source):
    picture = figures.segments("what to see", source)
    assert picture.png.startswith(PNG)
    assert repr(picture) == "[picture: what to see]"


@pytest.fixture
def kept(monkeypatch):
    """The axes of what is drawn."""
    figure = []
    monkeypatch.setattr(figures, "as_picture", lambda drawing, title: figure.append(drawing))
    return lambda: figure[-1].axes[0]


def test_bars_of_the_figure_are_the_blocks(kept):
    figures.segments("t", FULL)
    blocks = [block for segment in FULL.segments for block in segment.blocks]
    widths = [bar.get_width() for bar in kept().patches if not bar.get_hatch()]
    assert widths == [block.size_bytes / MIB for block in blocks]
    hatched = [bar.get_width() for bar in kept().patches if bar.get_hatch()]
    assert hatched == [1.0]


def test_of_many_segments_the_largest_are_drawn_and_the_rest_told(kept):
    many = replay([alloc(f"t{n}", (12 + 2 * n) * MIB) for n in range(20)])
    figures.segments("t", many, rows=5)
    axes = kept()
    assert [text.get_text().split(",")[0] for text in axes.get_yticklabels()] == [
        f"{size} MiB" for size in (42, 44, 46, 48, 50)
    ]
    assert "15 smaller segments, 390.00 MiB, are not drawn" in axes.get_xlabel()


def test_reserved_draws_both_series_and_the_card(kept):
    figures.reserved("t", FULL, CARD_BYTES)
    axes = kept()
    names = axes.get_legend_handles_labels()[1]
    assert any(name == "reserved, at most 90.00 MiB, 20% of it idle" for name in names), names
    curve = next(line for line in axes.lines if len(line.get_xdata()) > 2)
    assert list(curve.get_ydata())[:-1] == [value / MIB for value in FULL.reserved]
    assert any(list(line.get_ydata()) == [96, 96] for line in axes.lines)


def test_the_same_figure_is_the_same_bytes():
    assert figures.reserved("t", FULL).png == figures.reserved("t", FULL).png


def test_nothing_to_draw_is_told():
    for call in (
        lambda: figures.segments("t", replay([])),
        lambda: figures.segments("t", []),
        lambda: figures.reserved("t", replay([])),
    ):
        with pytest.raises(WorkbookError, match="no"):
            call()


def test_the_examples_in_the_docstrings():
    assert doctest.testmod(segments_svg).failed == 0
