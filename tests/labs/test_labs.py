"""Every lab keeps the rules, is released as it is, and its checks know right from untouched from wrong."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from helpers.course import grading
from helpers.course import notebook as nb
from helpers.course.check import results_of
from helpers.course.lint import lint
from helpers.course.mutants import find_mutants, lacking, load_mutants, problems
from helpers.course.release import has_answers, release, released

ROOT = Path(__file__).resolve().parents[2]
LABS = nb.find_all(ROOT, ["solutions"])
# Every lab, untouched, solved and with every wrong answer, is graded in course/grade/test_mutants_graded.py, which is
# slow. These are the two that need least.
GRADED = [path for path in LABS if path.stem[:2] in ("05", "13")]


def test_there_are_labs():
    assert LABS


def test_labs_are_what_release_makes_of_solutions(capsys):
    solved = [path.name for path in nb.find_all(ROOT, ["labs"]) if has_answers(nb.read(path))]
    if solved and "CI" not in os.environ:
        pytest.skip(f"{', '.join(solved)} holds your answers; `workbook check` grades them")
    assert release(ROOT, check=True) == 0, capsys.readouterr().err


@pytest.mark.parametrize(
    "path", nb.find_all(ROOT, ["notebooks", "solutions"]), ids=lambda path: f"{path.parent.name}-{path.stem}"
)
def test_the_notebook_keeps_every_rule(path):
    assert "\n".join(map(str, lint([path]))) == ""


@pytest.mark.parametrize("path", LABS, ids=lambda path: path.stem)
def test_each_exercise_has_wrong_answers(path):
    assert lacking(path) == []


@pytest.mark.parametrize("path", GRADED, ids=lambda path: path.stem)
def test_the_checks_know_right_from_wrong(path):
    assert problems(path) == []


@pytest.mark.parametrize("path", GRADED, ids=lambda path: path.stem)
def test_grading_gives_an_untouched_lab_nothing(path, tmp_path):
    lab = tmp_path / path.name
    nb.write(lab, released(nb.read(path), f"solutions/{path.name}"))
    results = results_of(path, lab)[0]
    assert {(result.earned, result.outcome) for result in results} == {(0, "not started")}


@pytest.mark.parametrize("path", GRADED, ids=lambda path: path.stem)
def test_grading_gives_the_solution_full_marks_but_for_the_one_mutant_in_it(path, tmp_path):
    mutant = load_mutants(find_mutants(path))[-1]  # the last exercise's, on which no other exercise builds
    learner = nb.read(path)
    for cell in learner.cells:
        if grading.grade_id(cell) == mutant.grade_id:
            cell.source = mutant.source
    nb.write(tmp_path / path.name, learner)
    *others, last = results_of(path, tmp_path / path.name)[0]
    assert [(result.outcome, result.message) for result in others] == [("passed", "")] * len(others)
    assert mutant.feedback in last.message
