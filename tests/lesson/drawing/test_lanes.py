"""Schedules: a box for each piece of work, as long as it took, on the row of its lane."""

from helpers.lesson.drawing import lanes
from helpers.lesson.drawing.marks import Box, TextMark, text_width
from helpers.lesson.drawing.pictures import MARGIN, WIDTH
from helpers.techniques.offload.streams import Lane, Span

HIDDEN = [
    Span(Lane.UP, "layer 0", 0, 0, 0.0, 1.0),
    Span(Lane.UP, "layer 1", 0, 1, 1.0, 2.0),
    Span(Lane.COMPUTE, "layer 0", 0, 0, 1.0, 4.0),
    Span(Lane.COMPUTE, "layer 1", 0, 1, 4.0, 7.0),
]
SERIAL = [
    Span(Lane.UP, "layer 0", 0, 0, 0.0, 1.0),
    Span(Lane.COMPUTE, "layer 0", 0, 0, 1.0, 4.0),
    Span(Lane.UP, "layer 1", 0, 0, 4.0, 5.0),
    Span(Lane.COMPUTE, "layer 1", 0, 0, 5.0, 8.0),
]
CARD = lanes.lanes("Copies", {"two buffers": HIDDEN, "one buffer": SERIAL})


def spans(card):
    return [mark for mark in card.marks if isinstance(mark, Box) and mark.kind == "span"]


def test_a_box_is_as_long_as_its_work_on_one_axis_for_all():
    scale = (WIDTH - 2 * MARGIN - lanes.NAMES) / 8
    assert sorted(round(box.width / scale, 6) for box in spans(CARD)) == [1, 1, 1, 1, 3, 3, 3, 3]
    assert max(box.x + box.width for box in spans(CARD)) <= WIDTH - MARGIN + 1e-6
    assert len({box.y for box in spans(CARD)}) == 4


def test_what_does_not_overlap_in_time_does_not_on_a_row():
    for y in {box.y for box in spans(CARD)}:
        row = sorted((box.x, box.x + box.width) for box in spans(CARD) if box.y == y)
        assert all(end <= begin + 1e-6 for (_, end), (begin, _) in zip(row, row[1:]))  # noqa: B905, RUF007


def test_names_where_there_is_room_and_numbers_where_there_is_less():
    texts = [mark.text for mark in CARD.marks if isinstance(mark, TextMark)]
    assert texts.count("layer 0") == 4
    many = [Span(Lane.UP, f"layer {at}", 0, 0, at / 10, (at + 1) / 10) for at in range(30)]
    texts = [mark.text for mark in lanes.lanes("Many", {"": many}).marks if isinstance(mark, TextMark)]
    assert "layer 7" not in texts
    assert "7" in texts


def test_a_box_shows_its_buffer_and_the_legend_says_how():
    one, two = (lanes.lanes("Copies", {"": spans_}) for spans_ in (SERIAL, HIDDEN))
    assert len({box.fill for box in spans(one)}) == 2  # a colour for each lane
    assert len({box.fill for box in spans(two)}) == 4
    first, second = (next(box for box in spans(two) if box.tooltip.startswith(name)) for name in ("layer 0", "layer 1"))
    assert first.fill != second.fill
    keys = [
        [mark.text for mark in card.marks if isinstance(mark, TextMark) and "in buffer" in mark.text]
        for card in (one, two)
    ]
    assert keys == [[], ["in buffer 0", "in buffer 1"]]


def test_the_words_count_seconds_and_busy_lanes():
    assert "two buffers: 7 s, host to device busy for 29%, compute busy for 86%" in CARD.alt
    assert "one buffer: 8 s, host to device busy for 25%, compute busy for 75%" in CARD.alt


def test_the_end_of_a_short_schedule_keeps_off_its_name_and_the_last_tick_stays_on_the_card():
    short, long = Span(Lane.COMPUTE, "layer 0", 0, 0, 0.0, 1e-3), Span(Lane.COMPUTE, "layer 0", 0, 0, 0.0, 0.5)
    card = lanes.lanes("Copies", {"the same, with all weights on the card": [short], "long": [long]})
    texts = {mark.text: mark for mark in card.body if isinstance(mark, TextMark)}
    name, end, tick = texts["the same, with all weights on the card"], texts["1.00 ms"], texts["500 ms"]
    assert end.anchor == "end"
    assert end.x - text_width(end.text, end.size) > name.x + text_width(name.text, name.size, name.bold)
    ticks = [
        mark for mark in card.body if isinstance(mark, TextMark) and mark.anchor == "middle" and mark.text == tick.text
    ]
    assert all(mark.x + text_width(mark.text, mark.size) / 2 <= WIDTH for mark in ticks)
