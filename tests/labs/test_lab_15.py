"""What lab 15 says in words is what its code does; which parts of a question a half-right answer is paid for."""

from __future__ import annotations

import re

import pytest

from helpers.course import lab_cells
from helpers.course.mutants import find_mutants, load_mutants
from tests.labs.common import checks_passed, lab_path, printed

LAB = lab_path("15")
MUTANTS = load_mutants(find_mutants(LAB))


@pytest.mark.parametrize(
    ("check", "figures"),
    [
        ("fine-tune-cheapest", ["$8.90", "$15.88"]),
        ("service-cheapest", ["$13.58", "$27.16"]),
        ("files-batch", ["64 = 2 × 16 × 2"]),
        ("files-sizes", ["2 cards, 8,192 tokens, 200 sequences"]),
        ("budget-peak", ["22,016", "27,136"]),
        ("budget-leak", ["341", "98,816"]),
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
    "Recomputing costs nothing": {"fine-tune-bytes", "fine-tune-fits"},
    "The first plan that keeps the limits": {
        "fine-tune-bytes",
        "fine-tune-hours",
        "fine-tune-fits",
        "fine-tune-limits",
    },
    "An interval that is none": {"watch-plain", "watch-escapes", "watch-steady", "watch-expected"},
    "ZeRO-3 for every method": {"files-batch", "files-sizes", "files-formats"},
    "Leaves the weights' format": {"files-batch", "files-stage", "files-sizes"},
    "Less than a KiB a step": {"budget-clean", "budget-peak"},
    "The peak itself, and not": {"budget-clean", "budget-leak"},
    "Knows the word alone": {"budget-clean"},
    "Reads what a program leaks": {"budget-peak"},
}


@pytest.mark.slow
def test_a_half_right_answer_is_paid_for_its_half():
    assert checks_passed(LAB, HALF_RIGHT) == HALF_RIGHT
