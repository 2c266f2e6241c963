"""What lab 03 says in words is what its code does: its programs die as told, and its budgets have room for cures."""

from __future__ import annotations

import json
import re

import pytest
import torch

from helpers.course.release import stub
from helpers.lesson import draw
from helpers.memory.allocator import MIB
from tests.labs.common import answers, lab_path, printed, source, weighed
from tests.labs.otherwise import answered_otherwise, differences, others, with_others

LAB = lab_path("03")


@pytest.mark.parametrize(
    ("question", "shown"),
    [
        ("q2", ["watched-training"]),
        ("q3", ["concatenating", "growing-cache-check"]),
        ("q6", ["budget-check", "meter-shown"]),
    ],
)
def test_every_number_of_a_target_is_printed(lab, question, shown):
    target = re.search(r"\*\*Target:\*\*.*", source(lab, question))[0]
    wanted = set(re.findall(r"\d{1,3}(?:,\d{3})+", target)) - {"320,000", "145,408", "1,000", "8,192"}
    found = "".join(printed(lab, cell_id) for cell_id in shown)
    assert wanted
    assert {number for number in wanted if number not in found} == set()


def test_the_worked_loop_keeps_what_its_target_says(names):
    live = names["watched"](names["train_lean"], 0)[1]
    assert {size for size, rows in zip(live, names["ROWS"], strict=True) if rows == 64} == {145_408}


def test_the_allocator_by_hand_agrees_with_maps_of_pages(names):
    page_by_page = with_others(names, "03")["first_fit_page_by_page"]
    for seed in range(20):
        steps = names["draw_steps"](draw(f"test-lab-03/{seed}"), 80)
        assert names["first_fit"](steps) == [tuple(sizes) for sizes in page_by_page(steps)]


def test_the_loader_dies_of_fragmentation_and_three_cures_fit(names):
    loaded = names["loaded"]
    tried = with_others(names, "03")
    cures = [names["load"], tried["load_one_block_for_features"], tried["load_largest_first"]]
    clips = names["CLIPS"]
    capacity = names["card_bytes"](clips)
    question = loaded(names["load_and_die"], clips)[1]
    assert (question.peak_reserved_bytes, question.peak_allocated_bytes, capacity) == (108 * MIB, 69 * MIB, 83.5 * MIB)
    assert loaded(names["load_and_die"], clips, capacity)[1].oom.reason == "fragmented"
    for cure in cures:
        assert loaded(cure, clips, capacity)[1].oom is None, cure.__name__


def test_the_wall_is_where_the_target_says(names):
    def died(loss_of, net, xs, ys, micro_batch, count):
        net.zero_grad()
        parts = list(zip(xs.split(micro_batch), ys.split(micro_batch), strict=True))[:count]
        for x, y in parts:
            (loss_of(x, y) * len(x) / len(xs)).backward()

    for rows in (641, 700):
        outcomes = []
        for micro_batch, count in [(320, 1), (160, 1), (160, 2), (80, 99)]:
            try:
                names["attempt"](lambda *given, n=count: died(*given, n), 0, rows, micro_batch, names["WALL_KIB"])
                outcomes.append("fits")
            except torch.OutOfMemoryError:
                outcomes.append("dies")
        assert outcomes == ["dies", "fits", "dies", "fits"]


def test_the_stub_of_the_budget_leaves_no_mode_behind(lab, names):
    cell = next(cell for cell in lab.cells if cell.id == "budget")
    untouched = dict(names)
    exec(stub(cell.source), untouched)
    with pytest.raises(NotImplementedError), untouched["Budget"](10):
        torch.zeros(1)
    assert torch.zeros(1).item() == 0


@pytest.mark.all
@pytest.mark.parametrize("seed", ["0", "7"])
@pytest.mark.parametrize("other", others("03"))
def test_a_right_answer_written_otherwise_passes(lab, names, other, seed):
    assert differences(lab, names, "03", other, seed) == []


def test_every_answer_was_written_otherwise(lab):
    assert len(answered_otherwise(lab, "03")) == 6


def changed(recorded, path, value):
    """The recorded answer with what is at `path` replaced."""
    *parents, last = path
    inner = recorded
    for key in parents:
        inner = inner[key]
    inner[last] = value
    return json.dumps(recorded)


@pytest.mark.parametrize(
    ("check", "path", "value", "words"),
    [
        ("train-lean-check", ("numbers", "hidden"), 0.4606, "both forwards"),
        ("train-lean-check", ("live",), [145_408, 145_409], "still hold"),
        ("train-lean-check", ("live",), [320_001, 320_001], "no further use"),
        ("train-lean-check", ("left",), 150_000, "after the call"),
        ("train-lean-check", ("hooks",), 1, "your hook"),
        ("load-check", ("features", 3), [1, 1.0, 1.0, 1.0], "clip 3"),
        ("load-check", ("features",), [], "you return 0"),
        ("load-check", ("steps",), [["alloc", 0, 100 * MIB]], "dies on a card"),
        ("load-check", ("steps",), [["alloc", 0, 69 * MIB], ["free", 0]], "alive at the end"),
        ("load-check", ("steps",), [["alloc", 0, 55 * MIB]], "as a whole"),
        ("backward-that-fits-check", ("live",), [[160, 1]], "begin with"),
        ("backward-that-fits-check", ("live",), [[320, 1], [160, 1], [80, 4098]], "leave the except block"),
        ("backward-that-fits-check", ("micro_batch",), 160, "80 is the first"),
        ("backward-that-fits-check", ("gradient", 2), 0.5, "off by"),
    ],
)
def test_a_judge_refuses_a_recorded_answer_that_is_wrong(lab, names, check, path, value, words):
    first, *rest = answers(printed(lab, check))
    with pytest.raises(AssertionError, match=words):
        weighed(lab, names, check, [changed(json.loads(first), path, value), *rest])


def test_a_judge_asks_which_error_came_out(lab, names):
    *first, came = answers(printed(lab, "backward-that-fits-check"))
    assert came == '"RuntimeError"'
    with pytest.raises(AssertionError, match="is let out"):
        weighed(lab, names, "backward-that-fits-check", [*first, '"nothing"'])
