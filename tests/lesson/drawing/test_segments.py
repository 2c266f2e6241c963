"""Pictures of segments: widths are bytes, every block is drawn once, nothing leaves the card."""

import pytest

from helpers.catalog import WorkbookError
from helpers.lesson.drawing import segments as figures
from helpers.lesson.drawing.marks import INK, Area, Box, Line, TextMark, text_width
from helpers.lesson.drawing.pictures import WIDTH, svg_of
from helpers.lesson.drawing.segments import HOLE, LEFT, MARKED, RIGHT, TOP, SegmentGrid, segments_at_event
from helpers.memory.allocator import MIB, alloc, free, read_snapshot, replay
from tests.memory.allocator.snapshots import snapshot_of

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
STAGES = [replay(STEPS[:at], "", CARD_BYTES) for at in range(1, len(FULL) + 1)]
GRID = SegmentGrid.of(STAGES)


def drawn(stage):
    return segments_at_event("t", stage, FULL, GRID, CARD_BYTES)


def boxes(card, kind):
    return [mark for mark in card.marks if isinstance(mark, Box) and mark.kind.split(" ")[0] == kind]


def test_the_trace_ends_with_a_refusal():
    assert (FULL.oom.reason, FULL.oom.name) == ("full", "late")


stages = pytest.mark.parametrize("stage", STAGES, ids=lambda stage: f"after {len(stage)}")


@stages
def test_every_block_is_drawn_once_as_wide_as_its_bytes(stage):
    blocks = [block for segment in stage.segments for block in segment.blocks]
    found = boxes(drawn(stage), "block")
    assert [box.kind for box in found] == [f"block {block.state}" for block in blocks]
    expected = [block.size_bytes / GRID.row_bytes * (RIGHT - LEFT) for block in blocks]
    assert [box.width for box in found] == pytest.approx(expected)


@stages
def test_blocks_of_a_row_stand_end_to_end_inside_the_card(stage):
    rows = {}
    for box in boxes(drawn(stage), "block"):
        assert box.x == pytest.approx(rows.get(box.y, LEFT))
        rows[box.y] = box.x + box.width
    assert all(end <= RIGHT + 0.2 for end in rows.values())
    assert len(rows) == len(stage.segments)


def test_every_stage_has_the_same_size_of_card():
    assert len({drawn(stage).height for stage in STAGES}) == 1


def test_what_nobody_asked_for_is_hatched():
    (spare,) = boxes(drawn(STAGES[4]), "spare")
    assert spare.pattern == "stripes"
    assert spare.width == pytest.approx(MIB / GRID.row_bytes * (RIGHT - LEFT), abs=0.6)


def test_the_block_of_the_event_is_marked():
    for stage in STAGES[:5]:
        (marked,) = (box for box in boxes(drawn(stage), "block") if box.edge == INK)
        assert marked.fill == (HOLE if stage.outcomes[-1].kind == "freed" else MARKED)


def test_a_refused_request_is_an_outline_of_its_size():
    assert not boxes(drawn(STAGES[4]), "refused")
    card = drawn(STAGES[5])
    (refused,) = boxes(card, "refused")
    assert refused.width == pytest.approx(36 * MIB / GRID.row_bytes * (RIGHT - LEFT))
    texts = {mark.text: mark for mark in card.marks if isinstance(mark, TextMark)}
    assert refused.y + refused.height < texts["in use"].y - 10
    assert "late 36 MiB: full, out of memory" in texts


@stages
def test_text_stays_on_the_card(stage):
    card = drawn(stage)
    for mark in (mark for mark in card.marks if isinstance(mark, TextMark)):
        width = text_width(mark.text, mark.size, mark.bold)
        left = mark.x - {"start": 0, "middle": width / 2, "end": width}[mark.anchor]
        assert 0 <= left <= left + width <= WIDTH, mark
        assert mark.y < card.height


@pytest.mark.parametrize("size_mib", [1.5, 2, 3, 4, 6, 9, 14, 30])
def test_a_name_is_written_where_its_block_has_room(size_mib):
    card = figures.segments("t", replay([alloc("scale", 90 * MIB), alloc("a name", int(size_mib * MIB))]))
    blocks = boxes(card, "block")
    for mark in card.marks:
        if isinstance(mark, TextMark) and mark.anchor == "middle" and mark.y < TOP + 60:
            reach = text_width(mark.text, mark.size) / 2
            assert any(box.x <= mark.x - reach and mark.x + reach <= box.x + box.width for box in blocks), mark


def test_the_strip_shows_both_series_to_scale():
    heights = {}
    for shape in (mark for mark in drawn(STAGES[0]).marks if isinstance(mark, Area)):
        heights[shape.kind] = max(y for _, y in shape.points) - min(y for _, y in shape.points)
    assert heights["allocated"] / heights["reserved"] == pytest.approx(max(FULL.allocated) / max(FULL.reserved))


def test_nothing_and_a_long_trace_still_draw():
    nothing = replay([])
    card = segments_at_event("t", nothing, nothing, SegmentGrid.of([nothing]))
    assert any("nothing is reserved" in mark.text for mark in card.marks if isinstance(mark, TextMark))
    assert card.png.startswith(PNG)
    assert svg_of(card)


PNG = b"\x89PNG"
SNAPSHOT = read_snapshot(snapshot_of(STEPS[:4]))


@pytest.mark.parametrize(
    "source", [FULL, SNAPSHOT, SNAPSHOT.segments, list(SNAPSHOT.segments)], ids=["replay", "snapshot", "tuple", "list"]
)
def test_segments_of_anything_are_a_png(source):
    picture = figures.segments("what to see", source)
    assert picture.png.startswith(PNG)
    assert repr(picture) == "[picture: what to see]"


def test_bars_of_the_figure_are_the_blocks():
    card = figures.segments("t", FULL)
    blocks = [block for segment in FULL.segments for block in segment.blocks]
    px = (RIGHT - LEFT) / max(segment.size_bytes for segment in FULL.segments)
    assert [box.width for box in boxes(card, "block")] == pytest.approx([block.size_bytes * px for block in blocks])
    (spare,) = boxes(card, "spare")
    assert spare.width == pytest.approx(MIB * px, abs=0.6)


def test_of_many_segments_the_largest_are_drawn_and_the_rest_told():
    many = replay([alloc(f"t{n}", (12 + 2 * n) * MIB) for n in range(20)])
    card = figures.segments("t", many, rows=5)
    texts = [mark.text for mark in card.marks if isinstance(mark, TextMark)]
    sizes = [text for text in texts if text in {f"{size} MiB" for size in range(100)}]
    assert sizes == [f"{size} MiB" for size in (42, 44, 46, 48, 50)]
    assert any("15 smaller segments, 390.00 MiB, are not drawn" in text for text in texts)


def test_reserved_draws_both_series_and_the_card():
    card = figures.reserved("t", FULL, CARD_BYTES)
    assert any(getattr(mark, "text", "") == "reserved, at most 90.00 MiB" for mark in card.marks)
    curve = next(mark for mark in card.marks if isinstance(mark, Line) and len(mark.points) == 2 * len(FULL))
    (line,) = (mark for mark in card.marks if isinstance(mark, Line) and mark.kind == "capacity")
    foot = next(mark for mark in card.marks if isinstance(mark, Area)).points[-1][1]
    px = (foot - line.points[0][1]) / CARD_BYTES
    assert [foot - y for _, y in curve.points[::2]] == pytest.approx([value * px for value in FULL.reserved])


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


def test_a_card_in_one_row_is_all_of_it_and_the_refused_request_stands_below_at_the_same_scale():
    events = (alloc("batch", 40 * MIB), free("batch"), alloc("weights", 12 * MIB), alloc("next", 36 * MIB))
    ran = replay(events, "", 64 * MIB)
    card = figures.on_card("t", ran, 64 * MIB)
    (row,) = {box.y for kind in ("block", "segment", "open") for box in boxes(card, kind)}
    widths = [box.width / (RIGHT - LEFT) * 64 for box in [*boxes(card, "block"), *boxes(card, "open")]]
    assert widths == pytest.approx([12, 28, 24])
    (refused,) = boxes(card, "refused")
    assert refused.y > row
    assert refused.width / (RIGHT - LEFT) * 64 == pytest.approx(36)
    assert card.words.endswith("24 MiB in no segment. Refused: next 36 MiB, fragmented.")


def test_two_replays_have_a_row_each_and_what_was_refused_stands_under_its_own():
    refused, runs = (replay([alloc("x", size * MIB)], "", 64 * MIB) for size in (80, 40))
    card = figures.on_card("t", {"before": refused, "after": runs}, 64 * MIB)
    at = {mark.text: mark.y for mark in card.body if isinstance(mark, TextMark)}
    assert at["before"] < at["refused"] < at["after"]
    (outline,) = boxes(card, "refused")
    assert outline.y < next(box.y for box in boxes(card, "block"))
    assert "before: Nothing is reserved; 64 MiB in no segment. Refused: x 80 MiB" in card.words
    assert "after: Segments" in card.words


def test_a_card_that_is_full_has_no_open_part():
    assert not boxes(figures.on_card("t", replay([alloc("x", 64 * MIB)], "", 64 * MIB), 64 * MIB), "open")


def test_a_card_smaller_than_its_segments_is_refused():
    with pytest.raises(WorkbookError, match="a card of 32"):
        figures.on_card("t", replay([alloc("x", 64 * MIB)]), 32 * MIB)


def test_a_segments_life_has_a_row_for_each_event():
    events = [alloc("a", 8 * MIB), alloc("b", 2 * MIB), free("a"), alloc("c", 3 * MIB), free("b")]
    card = figures.one_by_one("t", events)
    assert [mark.text for mark in card.body if isinstance(mark, TextMark)].count("free a") == 1
    assert "free a: free 8 MiB, b 2 MiB, free 10 MiB" in card.words
    assert "free b: c 3 MiB, free 17 MiB" in card.words
    assert len({mark.y for mark in card.body if isinstance(mark, Box) and mark.kind.startswith("block")}) == len(events)
    legends = [{mark.text for mark in figures.one_by_one("t", some).body if isinstance(mark, TextMark)}
               for some in (events, [alloc("x", 12 * MIB - 1)])]  # fmt: skip
    assert [("more than was asked for" in texts) for texts in legends] == [False, True]
    with pytest.raises(WorkbookError, match="do not share one segment"):
        figures.one_by_one("t", [alloc("a", 8 * MIB), alloc("z", 30 * MIB)])
