"""The allocation-step calculator: every event of every trace answers, in text and in the widget alike."""

import pytest

from helpers.catalog import WorkbookError
from helpers.lesson.calculators import allocation, allocation_answer
from helpers.lesson.calculators.allocation import SETTINGS, TRACES
from helpers.memory.allocator import MIB, replay
from tests.calls import CALLS_IN_50_MS, calls_of
from tests.lesson.calculators.live import live

ALL = [(name, settings) for name in TRACES for settings in SETTINGS]


@pytest.mark.parametrize(("name", "settings"), ALL)
def test_every_event_answers_with_the_replays_own_figures(name, settings):
    steps, capacity_bytes = TRACES[name].steps, TRACES[name].capacity_bytes
    ran = replay(steps, "" if settings == "default" else settings, capacity_bytes)
    for at in range(len(ran)):
        answer = allocation_answer(name, settings, at + 1)
        figures = answer.figures
        assert (figures["allocated_bytes"], figures["reserved_bytes"]) == (ran.allocated[at], ran.reserved[at])
        assert figures["outcome"] == ran.outcomes[at].kind
        assert answer.title == f"event {at + 1} of {len(steps)}: {steps[at]}"
        assert [line.split()[0] for line in answer.formula] == ["allocated", "reserved", "unused", "driver"]
        told = ran.format_outcome(at)
        assert answer.sentence.lower().startswith(told.lower())
        assert "<svg" in answer.as_html()


def test_lines_and_traces_are_short():
    for name, settings in ALL:
        for at in range(1, len(TRACES[name].steps) + 1):
            assert all(len(line) <= 92 for line in allocation_answer(name, settings, at).formula)
        assert len(TRACES[name].steps) <= 40


ENDS = {
    ("batch first", "default"): (40, "fragmented"),
    ("batch first", "max_split_size_mb:20"): (52, None),
    ("batch first", "expandable_segments:True"): (60, None),
    ("weights first", "default"): (52, None),
    ("KV cache by cat", "default"): (208, None),
    ("KV cache by cat", "expandable_segments:True"): (100, None),
    ("equal steps", "default"): (56, None),
    ("equal steps", "expandable_segments:True"): (40, None),
    ("training", "default"): (224, None),
    ("small tensors", "default"): (24, None),
}


@pytest.mark.parametrize(("choice", "end"), ENDS.items(), ids=lambda value: str(value))
def test_each_trace_shows_what_it_is_there_for(choice, end):
    last = allocation_answer(*choice, 99)
    assert (last.full.peak_reserved_bytes // MIB, last.figures["oom"]) == end


def test_the_refused_request_is_told():
    sentence = allocation_answer("batch first", step=7).sentence
    assert sentence.startswith("Cannot serve 36.00 MiB though 52.00 MiB are free: the largest hole is 28.00 MiB, and")
    assert sentence.endswith(TRACES["batch first"].watch)


def test_a_cure_is_compared_with_default_settings():
    assert "Default settings fail here: alloc batch 2" in allocation_answer("batch first", SETTINGS[2], 7).sentence
    assert "Default settings reserve 208.00 MiB." in allocation_answer("KV cache by cat", SETTINGS[2], 15).sentence
    assert "Default settings" not in allocation_answer("KV cache by cat", SETTINGS[2], 14).sentence


def test_training_shows_a_retry():
    told = [allocation_answer("training", step=step).sentence for step in range(1, 33)]
    assert any(sentence.startswith("The driver had too little, so") for sentence in told)


BROKEN = [
    ({"trace_name": "KV cache"}, "unknown trace 'KV cache'", "did you mean 'KV cache by cat'?"),
    ({"trace_name": None}, "unknown trace None", ""),
    ({"trace_name": "training", "step": 0}, "step is 0", "pass step=1"),
    ({"trace_name": "training", "step": 2.5}, "step is 2.5", ""),
    ({"trace_name": "training", "step": True}, "step is True", ""),
    ({"trace_name": "training", "settings": "max_split:20"}, "unknown allocator setting 'max_split'", "did you mean"),
]


@pytest.mark.parametrize(("arguments", "what", "do"), BROKEN, ids=[row[1] for row in BROKEN])
def test_what_cannot_be_answered_is_told(arguments, what, do):
    with pytest.raises(WorkbookError) as caught:
        allocation_answer(**arguments)
    assert caught.value.what == what
    assert do in caught.value.do


def parts(calculator):
    controls, play, *_, output = live(calculator)
    return controls, play, output


def test_the_player_and_the_slider_move_each_other():
    controls, play, output = parts(allocation())
    play.value = 7
    assert controls["step"].value == 7
    assert "fragmented" in output.value
    controls["step"].value = 2
    assert play.value == 2


def test_the_player_ends_where_the_trace_does():
    controls, play, _ = parts(allocation())
    assert (play.min, play.max) == (1, 7)
    controls["trace_name"].value = "training"
    assert play.max == 32


def test_a_redraw_is_quick():
    """About 0.3 ms; the whole of a trace and its frame, done once, about 10."""
    calculator = allocation(trace_name="training")
    calculator.answer()
    for step in range(1, 33):
        assert calls_of(lambda step=step: calculator.render({**calculator.start, "step": step})) < CALLS_IN_50_MS / 10
