"""From cells' results to a question: what a learner reads where a name is not there."""

from __future__ import annotations

import pytest

from helpers.course import lab_cells
from helpers.grading.intake.assemble import Assembly
from helpers.grading.judging.results import TWICE, questions_of
from helpers.grading.sandbox.nbval_run import CellResult
from tests.course.example_lab import code, example_lab


def message(name: str, *, role: str = "apparatus", in_answer: bool = False) -> str:
    """What the first question says to a learner whose code uses `name`, which is not there."""
    lab = example_lab()
    given = code("from math import prod as product\n\n\ndef driven():\n    return 0\n\n\nruns = 3", "driven")
    given.metadata["workbook"] = {"role": role}
    lab.cells.insert(0, given)
    first = lab_cells.exercises(lab)[0]
    failed = CellResult("failed", f"twice raised NameError: name '{name}' is not defined\n  at line 2: {name}", 0.0)
    cells = {check.id: failed for check in first.checks} | ({first.answers[0].id: failed} if in_answer else {})
    keys = [lab_cells.grade_id(cell) for cell in lab.cells if lab_cells.is_answer(cell)]
    return questions_of(lab, Assembly(lab, dict.fromkeys(keys, "written"), ()), cells)[0].message


@pytest.mark.parametrize("in_answer", [False, True])
@pytest.mark.parametrize("name", ["driven", "runs", "product", "doubled"])
def test_a_name_that_the_checks_alone_have_is_said_to_be_theirs(name, in_answer):
    assert f"The lab has {name} for its own checks" in message(name, in_answer=in_answer)
    assert TWICE not in message(name, in_answer=in_answer)


@pytest.mark.parametrize("name", ["helper_of_mine", "math"])
def test_any_other_name_may_come_of_cells_run_out_of_order(name):
    assert message(name).endswith(TWICE)


def test_a_given_cell_is_for_answers_too():
    assert message("driven", role="").endswith(TWICE)
