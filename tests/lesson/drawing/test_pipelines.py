"""Schedules of a pipeline: a box for each action on its rank's row, as long as it takes, and nothing where it waits."""

from __future__ import annotations

from itertools import pairwise

import pytest

from helpers.lesson.drawing.marks import Box, TextMark
from helpers.lesson.drawing.pictures import MARGIN, WIDTH
from helpers.lesson.drawing.pipelines import LATER_STAGES, NAMES, schedules
from helpers.techniques.parallel.pipeline import gpipe, interleaved, lay_out, one_f_one_b, zero_bubble

LAID = {"GPipe": lay_out(gpipe(2, 3)), "ZB-H1": lay_out(zero_bubble(2, 3))}
CARD = schedules("Two", LAID)


def boxes(card):
    return [mark for mark in card.marks if isinstance(mark, Box) and mark.kind == "span"]


def test_boxes_take_as_much_room_as_their_actions_take_time():
    scale = (WIDTH - 2 * MARGIN - NAMES) / float(max(laid.length for laid in LAID.values()))
    spans = [span for laid in LAID.values() for span in laid.spans]
    drawn = [(round(box.x - MARGIN - NAMES, 6), round(box.width, 6)) for box in boxes(CARD)]
    assert drawn == [(round(s.start * scale, 6), round((s.end - s.start) * scale, 6)) for s in spans]


def test_boxes_of_a_rank_do_not_overlap_and_rows_do_not_either():
    rows = sorted({box.y for box in boxes(CARD)})
    assert len(rows) == 4
    assert all(below - above > boxes(CARD)[0].height for above, below in pairwise(rows))
    for y in rows:
        row = sorted((box.x, box.x + box.width) for box in boxes(CARD) if box.y == y)
        assert all(end <= begin + 1e-6 for (_, end), (begin, _) in pairwise(row))


def test_each_box_has_the_number_of_its_micro_batch():
    numbers = [mark.text for mark in CARD.marks if isinstance(mark, TextMark) and mark.text.isdigit()]
    assert sorted(numbers) == sorted(str(span.action.micro_batch) for laid in LAID.values() for span in laid.spans)


def test_a_second_stage_of_a_rank_is_paler():
    drawn = boxes(schedules("Two stages", {"interleaved": lay_out(interleaved(2, 2, 2))}))
    assert sum(box.fill in LATER_STAGES.values() for box in drawn) == len(drawn) / 2


@pytest.mark.parametrize("schedule", [gpipe(4, 8), one_f_one_b(4, 8)])
def test_the_words_say_how_much_is_idle(schedule):
    assert "33 units of time, 27 % idle" in schedules("One", {schedule.name: lay_out(schedule)}).alt
