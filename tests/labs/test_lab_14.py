"""What lab 14 says in words is what its code does; which parts of a question a half-right answer is paid for."""

from __future__ import annotations

import re

import pytest

from helpers.course import lab_cells
from helpers.course.mutants import find_mutants, load_mutants
from tests.labs.common import checks_passed, lab_path, printed

LAB = lab_path("14")
MUTANTS = load_mutants(find_mutants(LAB))


@pytest.mark.parametrize(
    ("check", "figures"),
    [
        ("packing-rows", ["112,800", "65,536", "61,773"]),
        ("tail-scheduler-first", ["5.51 s", "1.38 s"]),
        ("admission-exact", ["2.5", "3.4", "4.1", "3,773"]),
        ("router-found", ["74.9", "33.7"]),
        ("tables-stages", ["85.1", "14.7"]),
        ("tables-beyond", ["89.9", "88.6"]),
        ("tables-users", ["38 users", "103"]),
    ],
)
def test_the_figures_of_a_target_are_printed_by_its_check(lab, check, figures):
    exercise = next(one for one in lab_cells.exercises(lab) for cell in one.checks if lab_cells.grade_id(cell) == check)
    cell = next(cell for cell in exercise.checks if lab_cells.grade_id(cell) == check)
    at = next(number for number, one in enumerate(lab.cells) if one.id == exercise.answers[0].id)
    text = next(one.source for one in lab.cells[at::-1] if one.source.startswith("## "))
    target = text[re.search(r"\*\*Target", text).start() :]
    assert [figure for figure in figures if figure not in target or figure not in printed(lab, cell.id)] == []


# What a half-right answer is paid for: by a sentence in its docstring, the checks that it passes.
HALF_RIGHT = {
    "First come, first served, in chunks": {"tail-scheduler-limits"},
    "Strict priority: batch gets": {"tail-scheduler-first", "tail-scheduler-batch", "tail-scheduler-limits"},
    "One batch job at a time": {"tail-scheduler-first", "tail-scheduler-rush", "tail-scheduler-limits"},
    "The replica is a hash of the first block": set(),
    "Round robin": set(),
    "Follows prefixes to where a third more": {"router-found", "router-memory"},
    "in the default of an argument": set(),  # which no other process has
    "in attributes of a text of bytes": {"router-found", "router-load"},
    "A window that is larger than most": {"packing-rows", "packing-alone", "packing-neighbours"},
}


@pytest.mark.slow
def test_a_half_right_answer_is_paid_for_its_half():
    assert checks_passed(LAB, HALF_RIGHT) == HALF_RIGHT
