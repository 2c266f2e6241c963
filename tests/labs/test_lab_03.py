"""What lab 03 says in words is what its code does: its programs die as told, and its budgets have room for cures."""

from __future__ import annotations

import re

import pytest
import torch

from helpers.course.release import stub
from helpers.lesson import draw
from helpers.memory.allocator import MIB
from tests.labs.common import (
    checks_that_draw_nothing,
    exercises_without_a_mutant_that_calls_helpers,
    lab_path,
    printed,
    source,
)

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
    for seed in range(20):
        steps = names["draw_steps"](draw(f"test-lab-03/{seed}"), 80)
        assert names["first_fit"](steps) == _page_by_page(steps)


def _page_by_page(steps):
    """The same rules on maps of 4 KiB pages, one byte each: 0 is free."""
    segments, where, record = [], {}, []
    for step in steps:
        if step.action == "alloc":
            pages = -(-step.size_bytes // 4096)
            segment = next((one for one in segments if bytes(pages) in one), None)
            if segment is None:
                segments.append(segment := bytearray(-(-pages // 4096) * 4096))
            start = segment.find(bytes(pages))
            where[step.key] = segment, slice(start, start + pages)
            segment[start : start + pages] = b"x" * pages
        else:
            segment, span = where.pop(step.key)
            segment[span] = bytes(span.stop - span.start)
            segments = [one for one in segments if any(one)]
        used = sum(one.count(b"x") for one in segments)
        record.append((used * 4096, sum(map(len, segments)) * 4096))
    return record


def test_the_loader_dies_of_fragmentation_and_three_cures_fit(names):
    decode_clip, features, loaded = names["decode_clip"], names["features"], names["loaded"]

    def one_block_for_features(clips):
        kept = torch.empty(sum(clip.values for clip in clips) // 2).split([clip.values // 2 for clip in clips])
        return [features(decode_clip(clip), out) for clip, out in zip(clips, kept, strict=True)]

    def largest_first(clips):
        kept = {}
        for clip in sorted(clips, key=lambda clip: -clip.values):
            kept[clip] = features(decode_clip(clip))
        return [kept[clip] for clip in clips]

    clips = names["CLIPS"]
    capacity = names["card_bytes"](clips)
    question = loaded(names["load_and_die"], clips)[1]
    assert (question.peak_reserved_bytes, question.peak_allocated_bytes, capacity) == (108 * MIB, 69 * MIB, 83.5 * MIB)
    assert loaded(names["load_and_die"], clips, capacity)[1].oom.reason == "fragmented"
    for cure in (names["load"], one_block_for_features, largest_first):
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


def test_every_exercise_has_a_mutant_that_calls_what_is_there_already(lab):
    assert exercises_without_a_mutant_that_calls_helpers(lab, LAB) == set()


def test_the_solution_passes_with_other_inputs(lab):
    assert checks_that_draw_nothing(lab, LAB) == []
