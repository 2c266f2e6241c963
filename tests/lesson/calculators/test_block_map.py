"""The block map calculator: the frames' own numbers in text, picture and widget, at every step of every policy."""

import re
from functools import partial

import pytest

from helpers.catalog import WorkbookError
from helpers.lesson.calculators import block_map, block_map_answer
from helpers.lesson.calculators.block_map import BLOCK_SIZES, POOLS, TRACES, USERS, happened, small
from helpers.lesson.drawing.block_maps import share, slots
from helpers.techniques.paging import POLICIES, ReplayEventKind, frames, waste_of
from tests.calls import CALLS_IN_50_MS, calls_of
from tests.lesson.calculators.live import live

ADMITTED, WAITS, PREEMPTED, DONE = ReplayEventKind
SIZES = ((16, 512), (8, 1024))
SCENES = [(trace, policy, *size) for trace in TRACES for policy in POLICIES for size in SIZES]


def whole(trace, policy, block_size, pool):
    return frames(small(trace), policy, pool // block_size, block_size, USERS, steps=1000)


@pytest.mark.parametrize("scene", SCENES, ids=str)
def test_every_step_answers_with_the_frames_own_figures(scene):
    made = whole(*scene)
    for frame in made:
        answer = block_map_answer(*scene, step=frame.step)
        assert answer.frame == frame
        figures = answer.figures
        assert (figures["step"], figures["steps"]) == (frame.step, len(made))
        assert (figures["reserved"], figures["filled"], figures["waste"]) == (frame.reserved, frame.filled, frame.waste)
        assert figures["free"] == sum(not (cell.owners or cell.cached) for cell in frame.cells) * frame.block_size
        assert sum(slots(frame).values()) == len(frame.cells) * frame.block_size
        assert all(size >= 0 for size in slots(frame).values())
    assert made[-1].lengths == {} == answer.frame.lengths
    assert "everybody has finished" in answer.title
    assert block_map_answer(*scene, step=10_000).title == answer.title


@pytest.mark.parametrize("scene", SCENES[::2], ids=str)
def test_the_formula_says_the_same_and_is_narrow(scene):
    usage = waste_of(small(scene[0]), scene[1], scene[2], USERS, scene[3] // scene[2])
    for step in range(1, usage.steps + 1):
        answer = block_map_answer(*scene, step=step)
        lines = {line[:10].strip(): line[10:] for line in answer.formula}
        frame = answer.frame
        assert int(lines["reserved"].split()[0].replace(",", "")) == frame.reserved
        assert int(lines["filled"].split()[0].replace(",", "")) == frame.filled
        assert share(frame.waste) in lines["waste"]
        assert share(usage.waste) in lines["all steps"]
        assert ("hit rate" in lines) == (scene[1] == "prefix")
        assert int(lines["free"].split()[0]) == sum(not (cell.owners or cell.cached) for cell in frame.cells)
        terms = [int(term.replace(",", "")) for term in re.findall(r"[\d,]+", lines["free"])]
        assert terms[0] == terms[1] - sum(terms[2:])
        assert all(len(line) <= 92 for line in answer.formula)


def test_the_hit_rate_ends_as_that_of_the_whole_trace():
    for trace in TRACES:
        last = block_map_answer(trace, "prefix", 8, 512, step=10_000)
        assert last.hits == last.whole.hits
    assert share(last.hits.rate) in "\n".join(last.formula)


def test_waste_is_most_of_contiguous_and_little_of_paged_memory():
    waste = {policy: block_map_answer("chat", policy).whole for policy in POLICIES}
    assert waste["contiguous"].waste > 0.6
    assert waste["paged"].waste < 0.04
    assert waste["prefix"].peak_slots < waste["paged"].peak_slots / 2


EVENTS = [
    (
        ("chat", "contiguous", 4, 1024, 1),
        "Requests 0, 1, 2 and 3 were admitted; request 4 waits until a region is free.",
    ),
    (
        ("chat", "contiguous", 4, 1024, 20),
        "Every running request put its token into the region that it had; request 5 waits until a region is free.",
    ),
    (("chat", "paged", 4, 1024, 71), "Request 20 took a block."),
    (("chat", "paged", 4, 1024, 61), "Every running request put its token into a block that it had."),
    (
        ("chat", "prefix", 4, 1024, 1),
        "15 requests were admitted, 480 tokens of their prompts found in the cache; request 0 was admitted.",
    ),
    (
        ("chat", "prefix", 4, 1024, 20),
        "Request 8 finished; request 23 was admitted, 32 tokens of its prompt found "
        "in the cache; requests 1, 6 and 13 took a block each.",
    ),
    (
        ("chat", "paged", 16, 512, 40),
        "Request 18 was preempted, blocks given back; requests 1 and 17 took a block "
        "each; request 19 waits until enough blocks for its prompt are free.",
    ),
]


@pytest.mark.parametrize(("choice", "sentence"), EVENTS, ids=[str(row[0]) for row in EVENTS])
def test_the_sentence_says_what_happened(choice, sentence):
    trace, policy, block_size, pool, step = choice
    assert block_map_answer(trace, policy, block_size, pool, step).sentence == sentence


@pytest.mark.parametrize("scene", SCENES, ids=str)
def test_every_event_is_told(scene):
    told = {DONE: "finished", ADMITTED: "admitted", PREEMPTED: "preempted", WAITS: "waits"}
    for frame in whole(*scene):
        sentence = block_map_answer(*scene, step=frame.step).sentence
        for kind, word in told.items():
            happened_now = any(event.kind is kind for event in frame.events)
            assert (word in sentence.split(" Over the whole")[0]) == happened_now, (frame.step, frame.events, sentence)
        for name in {event.request for event in frame.events if event.kind is WAITS}:
            assert f"request {name} waits" in sentence.lower()


def test_the_last_step_compares_the_policies():
    for policy in POLICIES:
        last = block_map_answer("chat", policy, step=10_000)
        for other in POLICIES:
            usage = waste_of(small("chat"), other, 4, USERS, 256)
            told = f"{other} wastes {share(usage.waste)} of at most {usage.peak_slots:,} slots in {usage.steps} steps"
            assert told in last.sentence
    assert "Over the whole" not in block_map_answer("chat", policy, step=last.whole.steps - 1).sentence


def test_steps_in_any_order_answer_the_same():
    forwards = {step: str(block_map_answer("code", "prefix", 8, 512, step=step)) for step in range(1, 30)}
    block_map.__globals__["_moment"].cache_clear()
    for step in (29, 3, 17, 1, 18, 2):
        assert str(block_map_answer("code", "prefix", 8, 512, step=step)) == forwards[step]


BROKEN = [
    ({"trace": "chatt"}, "unknown trace 'chatt'", "did you mean 'chat'?"),
    ({"trace": ["chat"]}, "unknown trace ['chat']", ""),
    ({"policy": "page"}, "unknown policy 'page'", "did you mean 'paged'?"),
    ({"policy": None}, "unknown policy None", ""),
    ({"block_size": 0}, "block_size is 0", "pass block_size=16"),
    ({"block_size": 3}, "block_size is 3", ""),
    ({"block_size": 4.0}, "block_size is 4.0", ""),
    ({"block_size": True}, "block_size is True", ""),
    ({"pool_tokens": 128}, "pool_tokens is 128 in blocks of 4", "pass pool_tokens=1024"),
    ({"pool_tokens": 1025}, "pool_tokens is 1025 in blocks of 4", ""),
    ({"pool_tokens": 10**9}, "pool_tokens is 1000000000 in blocks of 4", ""),
    ({"pool_tokens": "big"}, "pool_tokens is 'big' in blocks of 4", ""),
    ({"pool_tokens": 600, "block_size": 64}, "pool_tokens is 600 in blocks of 64", ""),
    ({"step": 0}, "step is 0", "pass step=1"),
    ({"step": 2.5}, "step is 2.5", ""),
    ({"step": True}, "step is True", ""),
]


@pytest.mark.parametrize(("arguments", "what", "do"), BROKEN, ids=[row[1] for row in BROKEN])
def test_what_cannot_be_answered_is_told(arguments, what, do):
    with pytest.raises(WorkbookError) as caught:
        block_map_answer(**{"trace": "chat", **arguments})
    assert caught.value.what == what
    assert do in caught.value.do
    calculator = block_map()
    assert 'class="error"' in calculator.render({**calculator.start, **arguments})
    if "step" not in arguments:
        with pytest.raises(WorkbookError):
            block_map(**arguments)


def parts(calculator):
    controls, play, *_, output = live(calculator)
    return controls, play, output


def test_moving_a_control_redraws():
    calculator = block_map()
    controls, play, output = parts(calculator)
    assert output.value == calculator.answer().as_html()
    controls["step"].value = 20
    assert output.value == calculator.render({**calculator.start, "step": 20})
    assert play.value == 20
    controls["policy"].value = "prefix"
    assert "tokens of its prompt found" in output.value


def test_the_player_ends_where_the_replay_does():
    controls, play, output = parts(block_map(policy="contiguous", step=150))
    assert (play.value, play.max) == (150, 172)
    controls["policy"].value = "paged"
    assert (play.value, play.max) == (91, 91)
    assert controls["step"].value == 91
    assert "everybody has finished" in output.value
    play.value = 1
    assert "16 requests were admitted" in output.value


def test_a_pool_that_is_not_whole_blocks_is_told_and_the_controls_stay():
    controls, play, output = parts(block_map(pool_tokens=1000, block_size=8))
    controls["block_size"].value = 256
    assert 'class="error"' in output.value
    assert play.max == 1
    controls["block_size"].value = 8
    assert "<svg" in output.value


def test_the_slider_reaches_the_end_of_every_choice():
    for start in ({}, {"pool_tokens": 256, "block_size": 16}):
        calculator = block_map(**start)
        longest = calculator.options["step"][1][-1]
        for policy in POLICIES:
            for trace in TRACES:
                for pool in (*POOLS, *start.values()):
                    if pool >= 256:
                        assert (
                            calculator.last({"trace": trace, "policy": policy, "block_size": 16, "pool_tokens": pool})
                            <= longest
                        )


def test_a_redraw_is_quick():
    """Playing forwards; a choice that was not shown before is replayed first."""
    for policy in POLICIES:
        calculator = block_map(policy=policy)
        calculator.answer(step=1)
        for step in range(2, 92):
            render = partial(calculator.render, {**calculator.start, "step": step})
            if step % 6:
                render()  # counting calls is dear: every sixth step is enough
            else:
                assert calls_of(render) < CALLS_IN_50_MS / 6
    for size in BLOCK_SIZES:
        calculator.answer(block_size=size, step=1)
        render = {**calculator.start, "block_size": size, "step": 2}
        assert calls_of(lambda render=render: calculator.render(render)) < CALLS_IN_50_MS / 3


def test_a_step_without_a_frame_before_it_is_told():
    first = whole("chat", "paged", 16, 1024)[0]
    assert happened(None, first).endswith("were admitted.")
