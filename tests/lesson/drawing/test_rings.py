"""An all-reduce drawn on a ring: what each rank holds after each step, and that the picture shows it."""

import pytest

from helpers.catalog import WorkbookError
from helpers.lesson.drawing import rings
from helpers.lesson.drawing.marks import Box

worlds = pytest.mark.parametrize("ranks", [2, 3, 4, 5])


@worlds
def test_a_reduce_scatter_leaves_rank_r_with_part_r_complete_and_with_no_other(ranks):
    scattered = rings.ring_steps(ranks)[ranks - 1].added
    assert [[part for part, count in enumerate(row) if count == ranks] for row in scattered] == [
        [r] for r in range(ranks)
    ]


@worlds
def test_after_the_all_gather_every_part_is_complete_everywhere(ranks):
    steps = rings.ring_steps(ranks)
    assert len(steps) == 1 + 2 * (ranks - 1)
    assert {count for row in steps[-1].added for count in row} == {ranks}


@worlds
def test_what_a_rank_passes_on_is_what_it_has_just_received(ranks):
    for before, after in zip(rings.ring_steps(ranks)[1:], rings.ring_steps(ranks)[2:], strict=False):
        assert all(after.arrived[(rank + 1) % ranks] == before.arrived[rank] for rank in range(ranks))


def test_the_picture_has_a_box_for_each_part_and_a_frame_for_each_arrival_and_stays_on_the_card():
    card = rings.all_reduce("Ring", 4)
    boxes = [mark for mark in card.marks if isinstance(mark, Box)]
    assert sum(box.kind == "part" for box in boxes) == 7 * 4 * 4
    assert sum(box.kind == "arrived" for box in boxes) == 6 * 4
    assert all(box.x + box.width <= 760 for box in boxes)
    assert "rank 0 has sums of 4, 3, 2, 1 ranks" in card.alt


def test_a_ring_of_one_is_refused():
    with pytest.raises(WorkbookError, match="ranks"):
        rings.ring_steps(1)
