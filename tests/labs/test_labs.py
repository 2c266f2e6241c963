"""The contract of every lab: it keeps the rules, is released as it is, and its checks know right from wrong."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from helpers.course import lab_cells
from helpers.course import notebook as nb
from helpers.course.kernel import error_in, kernel
from helpers.course.lint import lint
from helpers.course.mutants import find_mutants, lacking, load_mutants, problems
from helpers.course.release import has_answers, release, released
from helpers.grading.check import results_of
from helpers.grading.judging.reading import globals_read
from helpers.lesson.tracebacks import is_hidden
from tests.labs.attacker import attacks, drawn, fooled, meddling, paid, parked
from tests.labs.honest import answer_of, faults, honest

ROOT = Path(__file__).resolve().parents[2]
LABS = nb.find_all(ROOT, ["solutions"])
GRADED = next(path for path in LABS if path.stem.startswith("13"))  # the one that needs least
SHOWN = ("02", "09", "12")  # a formula, ranks in processes, a check that worked the answer out in its own lines
# Exercises of which nothing that helpers has is an answer, so that no mutant can call it.
FOOLED = ("06", "11")  # whose checks have limits of bytes: the day's, the night has all
PARKED = ("04", "14")  # whose objects go on in another process
MEDDLED = "11"  # whose meters stand where an answer's call is
NOTHING_TO_CALL = {"02": {"2", "3"}}


def test_there_are_labs():
    assert LABS


def test_labs_are_what_release_makes_of_solutions(capsys):
    solved = [path.name for path in nb.find_all(ROOT, ["labs"]) if has_answers(nb.read(path))]
    if solved and "CI" not in os.environ:
        pytest.skip(f"{', '.join(solved)} holds your answers; `workbook check` grades them")
    assert release(ROOT, check=True) == 0, capsys.readouterr().err


@pytest.mark.parametrize(
    "path", nb.find_all(ROOT, [*nb.BOOK, "solutions"]), ids=lambda path: f"{path.parent.name}-{path.stem}"
)
def test_the_notebook_keeps_every_rule(path):
    assert "\n".join(map(str, lint([path]))) == ""


def test_every_lab_says_the_same_of_its_checks():
    titles = {path.stem[:2]: nb.read(path).cells[0].source for path in LABS}
    begin = "1. Write your answers where"
    told = {
        line.replace(f"check {number}`", "check NN`")
        for number, title in titles.items()
        for line in title.splitlines()
        if line.startswith(begin)
    }
    assert len(told) == 1
    assert all(begin in title for title in titles.values())


@pytest.mark.parametrize("path", LABS, ids=lambda path: path.stem)
def test_each_exercise_has_wrong_answers(path):
    assert lacking(path) == []


@pytest.mark.parametrize("path", LABS, ids=lambda path: path.stem)
def test_one_wrong_answer_to_each_exercise_calls_what_helpers_have(path):
    calling = {mutant.grade_id for mutant in load_mutants(find_mutants(path)) if '"""Calls ' in mutant.source}
    exercises = lab_cells.exercises(nb.read(path))
    without = {one.title[0] for one in exercises if not calling & {lab_cells.grade_id(cell) for cell in one.answers}}
    assert without <= NOTHING_TO_CALL.get(path.stem[:2], set())


@pytest.mark.parametrize("path", LABS, ids=lambda path: path.stem[:2])
def test_a_wrong_answer_leans_on_no_answer_that_the_worked_one_does_not(path):
    """In one submission the answer of another question may be wrong too; its own sentence is what it is read by."""
    solved = {name: one for one in lab_cells.exercises(nb.read(path)) for name in lab_cells.names_of(one.answers)}
    keys = {lab_cells.grade_id(cell): one for one in solved.values() for cell in one.answers}
    for mutant in load_mutants(find_mutants(path)):
        one = keys[mutant.grade_id]
        if '"""Calls ' in mutant.source:  # as it says
            continue
        worked = {name for cell in one.answers for name in globals_read(cell.source)}
        assert [name for name in globals_read(mutant.source) & solved.keys() - worked if solved[name] != one] == []


@pytest.mark.parametrize("path", LABS, ids=lambda path: path.stem)
def test_a_traceback_shows_no_cell_that_asks_or_checks_and_any_other(path):
    """Both as it is here and as learners have it, without hidden tests."""
    ours = (lab_cells.ASK, lab_cells.APPARATUS, lab_cells.REFERENCE)
    for lab in (nb.read(path), released(nb.read(path), f"solutions/{path.name}")):
        for _, cell in nb.code_cells(lab):
            told = is_hidden(cell.source)
            assert told == (lab_cells.is_check(cell) or lab_cells.role(cell) in ours), cell.id


@pytest.mark.slow
@pytest.mark.parametrize("path", [path for path in LABS if path.stem[:2] in SHOWN], ids=lambda path: path.stem)
def test_a_wrong_answer_shows_its_sentence_and_nothing_else(path):
    lab, mutant = nb.read(path), load_mutants(find_mutants(path))[0]
    first = lab_cells.exercises(lab)[0]
    cells = [cell for _, cell in nb.code_cells(lab) if lab_cells.role(cell) != lab_cells.DEMONSTRATION]
    first.answers[0].source = mutant.source
    with kernel(path.parent) as run:
        told = [error_in(run(cell.source)) for cell in cells[: cells.index(first.checks[-1]) + 1]]
    errors = [error for error in told if error]
    assert any(mutant.feedback in error.evalue for error in errors)
    assert [error.traceback for error in errors] == [[error.evalue] for error in errors]


@pytest.mark.slow
@pytest.mark.parametrize("path", LABS, ids=lambda path: path.stem)
def test_the_checks_know_right_from_wrong_with_inputs_that_are_not_stored(path):
    assert problems(path, seed="7") == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", ["0", pytest.param("7", marks=pytest.mark.all)])
@pytest.mark.parametrize("path", LABS, ids=lambda path: path.stem)
def test_an_honest_answer_gets_every_point(path, seed):
    assert faults(path.stem[:2], seed) == {}


@pytest.mark.parametrize("path", LABS, ids=lambda path: path.stem)
def test_there_are_eight_honest_answers_and_one_to_each_question(path):
    lab = nb.read(path)
    variants = [answer_of(lab, name) for name in honest(path.stem[:2])]
    asked = {name for exercise in lab_cells.exercises(lab) for name in lab_cells.names_of(exercise.answers)}
    assert len(variants) >= 8
    assert set(variants) == asked


@pytest.mark.slow
@pytest.mark.parametrize("path", LABS, ids=lambda path: path.stem)
def test_no_attack_is_paid(path):
    """A few of some hundred on each question: all of them take an hour."""
    assert paid(path, drawn(attacks(nb.read(path)), "7", of_each=6), seed="7") == []


@pytest.mark.slow
@pytest.mark.parametrize("path", [path for path in LABS if path.stem[:2] in FOOLED], ids=lambda path: path.stem)
def test_no_wrong_answer_is_paid_more_where_what_counts_bytes_is_fooled(path):
    assert paid(path, drawn(fooled(path), "7", of_each=4), seed="7") == []


@pytest.mark.slow
@pytest.mark.parametrize("path", [path for path in LABS if path.stem[:2] in PARKED], ids=lambda path: path.stem)
def test_no_wrong_answer_is_paid_more_where_it_parks_what_it_holds(path):
    assert paid(path, drawn(parked(path), "7", of_each=4), seed="7", guarded=True) == []


@pytest.mark.slow
def test_a_meter_that_nobody_guards_is_told_what_to_say_and_a_guarded_one_is_not():
    path = next(path for path in LABS if path.stem.startswith(MEDDLED))
    found = [one for one in meddling(path) if one.at == 0]
    by_modes = [one for one in found if "what watches operators" in one.words]
    assert paid(path, by_modes, seed="7")
    assert paid(path, [*by_modes, *drawn(found, "7", of_each=8)], seed="7", guarded=True) == []


@pytest.mark.all
@pytest.mark.parametrize("path", LABS, ids=lambda path: path.stem)
def test_no_wrong_answer_at_all_is_paid_more_where_it_meddles_with_what_counts(path):
    assert paid(path, meddling(path), seed="7", guarded=True) == []


@pytest.mark.all
@pytest.mark.parametrize("path", LABS, ids=lambda path: path.stem)
def test_no_wrong_answer_at_all_is_paid_more_where_what_counts_bytes_is_fooled(path):
    assert paid(path, fooled(path), seed="7") == []


@pytest.mark.all
@pytest.mark.parametrize("path", LABS, ids=lambda path: path.stem)
def test_no_attack_at_all_is_paid(path):
    assert paid(path, attacks(nb.read(path)), seed="7") == []


@pytest.mark.slow
def test_grading_gives_an_untouched_lab_nothing(tmp_path):
    lab = tmp_path / GRADED.name
    nb.write(lab, released(nb.read(GRADED), f"solutions/{GRADED.name}"))
    results = results_of(GRADED, lab)[0]
    assert {(result.earned, result.outcome) for result in results} == {(0, "not started")}


@pytest.mark.slow
def test_grading_gives_the_solution_full_marks_but_for_the_one_mutant_in_it(tmp_path):
    mutant = load_mutants(find_mutants(GRADED))[-1]  # the last exercise's, on which no other exercise builds
    learner = nb.read(GRADED)
    for cell in learner.cells:
        if lab_cells.grade_id(cell) == mutant.grade_id:
            cell.source = mutant.source
    nb.write(tmp_path / GRADED.name, learner)
    *others, last = results_of(GRADED, tmp_path / GRADED.name)[0]
    assert [(result.outcome, result.message) for result in others] == [("passed", "")] * len(others)
    assert mutant.feedback in last.message
