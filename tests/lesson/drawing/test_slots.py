"""Maps of slots: a box for each answer on its row, as long as the answer, and the counts in words."""

from helpers.lesson.drawing import slots
from helpers.lesson.drawing.marks import Box
from helpers.lesson.drawing.pictures import MARGIN, WIDTH
from helpers.techniques.scheduling import batching

ANSWERS = [9, 1, 9, 1, 4]
MAPS = {"static": batching.static_slots(ANSWERS, 2), "continuous": batching.continuous_slots(ANSWERS, 2)}


def boxes(card):
    return [mark for mark in card.marks if isinstance(mark, Box) and mark.edge == slots.CARD]


def test_a_box_is_as_long_as_its_answer():
    scale = (WIDTH - 2 * MARGIN) / 22
    lengths = sorted(round(box.width / scale, 6) for box in boxes(slots.slots("Slots", MAPS)))
    assert lengths == sorted(ANSWERS + ANSWERS)
    assert max(box.x + box.width for box in boxes(slots.slots("Slots", MAPS))) <= WIDTH - MARGIN + 1e-6


def test_the_words_count_forwards_and_slots():
    card = slots.slots("Slots", MAPS)
    assert "static: 2 slots, 22 forwards, 55% of the slots taken" in card.alt
    assert "continuous: 2 slots, 14 forwards, 86% of the slots taken" in card.alt
