"""What lab 03 says in words is what its code does: its programs die as told, and its budgets have room for cures."""

from __future__ import annotations

import copy
import re

import pytest
import torch

from helpers.course import lab_cells
from helpers.course.stubs import stub
from helpers.lesson import draw
from helpers.memory.allocator import MIB
from tests.labs.common import lab_path, printed, source
from tests.labs.honest import table

LAB = lab_path("03")


@pytest.fixture(scope="module")
def observed(lab, names):
    """What the lab's cells define, and what the asking cells bring."""
    found = dict(names)
    for cell in filter(lab_cells.is_ask, lab.cells):
        exec(cell.source, found)
    return found


def with_honest(names):
    """What the lab's cells define, and the honest answers."""
    defined = dict(names)
    exec(table("03"), defined)
    return defined


@pytest.mark.parametrize(
    ("question", "shown"),
    [
        ("q2", ["leaking-shown"]),
        ("q3", ["concatenating-shown", "growing-cache-traffic"]),
        ("q6", ["budget-peak", "budget-ask", "meter-shown"]),
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
    page_by_page = with_honest(names)["first_fit_page_by_page"]
    for seed in range(20):
        steps = names["draw_steps"](draw(f"test-lab-03/{seed}"), 80)
        assert names["first_fit"](steps) == [tuple(sizes) for sizes in page_by_page(steps)]


def test_the_loader_dies_of_fragmentation_and_three_cures_fit(names):
    loaded = names["loaded"]
    tried = with_honest(names)
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


@pytest.mark.parametrize(
    ("check", "answers", "path", "value", "words"),
    [
        ("first-fit-back", "full", (0, -1), [0, 1], "only when nothing is left"),
        ("train-lean-numbers", "done", (0, "numbers", "hidden"), 0.47, "both forwards"),
        ("train-lean-numbers", "done", (0, "live"), [0, 10**6], "half of that is mended"),
        ("train-lean-live", "done", (0, "live"), [145_408, 145_409], "still hold"),
        ("train-lean-live", "done", (0, "live"), [320_001, 320_001], "no further use"),
        ("train-lean-live", "done", (0, "weights", 1), 100.0, "train as it does"),
        ("train-lean-left", "done", (0, "left"), 150_000, "after the call"),
        ("train-lean-left", "done", (0, "hooks"), 1, "your hook"),
        ("growing-cache-order", "caches", (0, "wrong"), [0, 1], "in their order"),
        ("growing-cache-traffic", "caches", (1, "moved"), 0, "PyTorch only"),
        ("growing-cache-peak", "caches", (0, "moved"), 10**9, "a quarter of concatenation"),
        ("growing-cache-peak", "caches", (3, "worst"), 2.51, "room that nobody may need"),
        ("load-features", "plans", (0, "features", 3), [1, 1.0, 1.0, 1.0], "clip 3"),
        ("load-features", "plans", (0, "features"), [], "you return 0"),
        ("load-plan", "plans", (0, "features", 3), [1, 1.0, 1.0, 1.0], "clip 3"),
        ("load-plan", "plans", (0, "steps"), [["alloc", 0, 100 * MIB]], "dies on a card"),
        ("load-plan", "plans", (0, "steps"), [["alloc", 0, 69 * MIB], ["free", 0]], "alive at the end"),
        ("load-plan", "plans", (0, "steps"), [["alloc", 0, 55 * MIB]], "as a whole"),
        ("backward-that-fits-nothing", "tries", (0, "tried"), [160, 80], "begin with that"),
        ("backward-that-fits-nothing", "tries", (0, "tried"), [320, 160, 80], "not all"),
        ("backward-that-fits-nothing", "tries", (0, "live"), [[320, 1], [160, 1], [80, 4098]], "leave the except"),
        ("backward-that-fits-halves", "tries", (0, "micro_batch"), 160, "80 is the first"),
        ("backward-that-fits-halves", "came_out", (1,), "nothing", "is let out"),
        ("backward-that-fits-gradient", "tries", (0, "gradient", 2), 100.0, "off by"),
        ("budget-raises", "budgets", (0, "said", 1), "peak", "is within it"),
    ],
)
def test_a_check_refuses_an_observation_that_is_wrong(lab, observed, check, answers, path, value, words):
    changed = copy.deepcopy(observed[answers])
    *parents, last = path
    inner = changed
    for key in parents:
        inner = inner[key]
    inner[last] = value
    with pytest.raises(AssertionError, match=words):
        exec(source(lab, check), observed | {answers: changed})
