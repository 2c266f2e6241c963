"""`workbook check 05 --show QUESTION`: the worked answer after an honest try, and not before."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.course import lab_cells
from helpers.course import notebook as nb
from helpers.course.workspace import workspace
from helpers.grading.check import check
from helpers.grading.judging.results import GradedQuestion
from helpers.lesson import notes
from tests.course.example_lab import RIGHT, save, with_sources

NAME = "05_numbers.ipynb"
WRONG = "def twice(x):\n    return x + 2"
WORKED = "1 Twice: one way to write it\n\ndef twice(x):\n    return 2 * x\n"


@pytest.fixture
def clone(course: Path) -> Path:
    """A clone with a workspace, in which nothing is written yet."""
    assert workspace(course) == 0
    return course


def write(clone: Path, **sources: str) -> None:
    path = clone / "workspace/labs" / NAME
    save(with_sources(nb.read(path), sources), path)


def checked(clone: Path, monkeypatch: pytest.MonkeyPatch, **outcomes: str) -> None:
    """Run the check, with these outcomes in the place of kernels."""
    titles = {"twice": "1 Twice", "pages": "2 Pages", "half": "3 Half"}
    questions = tuple(
        GradedQuestion(key, title, 0, 2, outcomes.get(key, "not started"), "no") for key, title in titles.items()
    )
    with monkeypatch.context() as patched:
        patched.setattr("helpers.grading.check.results_of", lambda *_, **__: (questions, ()))
        assert check("05", clone) == 1


def test_before_anything_is_written_nothing_is_shown(clone, capsys):
    assert check("05", clone) == 1
    assert check("05", clone, show="1") == 2
    told = capsys.readouterr()
    assert "1 Twice: nothing is written yet in 05_numbers.ipynb" in told.err
    assert "return 2 * x" not in told.out


def test_a_try_that_was_not_checked_is_asked_to_be(clone, capsys, monkeypatch):
    write(clone, twice=WRONG)
    assert check("05", clone, show="1") == 2
    assert "your answer was not checked yet" in capsys.readouterr().err
    checked(clone, monkeypatch, half="wrong")
    assert check("05", clone, show="1") == 2, "another question was tried"
    checked(clone, monkeypatch, twice="wrong")
    capsys.readouterr()
    for name in ("1", "q1", "twice", "1 Twice"):
        assert check("05", clone, show=name) == 0
        assert capsys.readouterr().out == WORKED
    assert check("05", clone, show="2") == 2, "each question for itself"


def test_an_answer_that_was_taken_back_is_none(clone, capsys, monkeypatch):
    stub = nb.read(clone / "workspace/labs" / NAME).cells[3].source
    write(clone, twice=WRONG)
    checked(clone, monkeypatch, twice="wrong")
    write(clone, twice=stub)
    assert check("05", clone, show="1") == 2
    assert "nothing is written yet" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["4", "0", "", "Twice"])
def test_an_unknown_question_is_told_with_those_there_are(clone, name, capsys):
    assert check("05", clone, show=name) == 2
    assert "1 (1 Twice), 2 (2 Pages), 3 (3 Half)" in capsys.readouterr().err


def test_an_instructor_can_switch_it_off(clone, capsys, monkeypatch):
    write(clone, twice=WRONG)
    checked(clone, monkeypatch, twice="wrong")
    (clone / "pyproject.toml").write_text("[tool.workbook]\nshow_answers = false\n")
    capsys.readouterr()
    assert check("05", clone, show="1") == 2
    told = capsys.readouterr()
    assert "worked answers are not shown in this course" in told.err
    assert not told.out


@pytest.mark.parametrize(("outcome", "code"), [("wrong", 0), ("not reached", 2)])
def test_a_notebook_elsewhere_of_which_nothing_is_noted_is_checked_first(
    course, tmp_path, capsys, monkeypatch, outcome, code
):
    path = save(with_sources(nb.read(course / "labs" / NAME), {"twice": WRONG}), tmp_path / "mine" / NAME)
    asked = []

    def results(*_, only):
        asked.append(only)
        return (GradedQuestion("twice", "1 Twice", 0, 2, outcome, "no"),), ()

    monkeypatch.setattr("helpers.grading.check.results_of", results)
    assert check(str(path), course, show="1") == code
    assert asked == ["twice"]
    assert (WORKED in capsys.readouterr().out) == (code == 0)


def test_with_nothing_answered_no_kernel_is_started(clone, capsys, monkeypatch):
    monkeypatch.setattr("helpers.grading.check.run_answers", lambda *_, **__: pytest.fail("a kernel was started"))
    assert check("05", clone) == 1
    assert capsys.readouterr().out.endswith("0 of 5 points\n")
    write(clone, twice=WRONG)
    with pytest.raises(pytest.fail.Exception):
        check("05", clone)


def test_one_question_alone_is_asked_and_reported(clone, capsys, monkeypatch):
    write(clone, twice=WRONG, half=RIGHT["half"])
    asked = []

    def run_answers(_, lab, assembled, **__):
        asked.extend(cell.id for cell in assembled.cells if lab_cells.is_ask(cell))
        return {}

    monkeypatch.setattr("helpers.grading.check.run_answers", run_answers)
    monkeypatch.setattr("helpers.grading.check.weigh", lambda _, lab, cells, **__: cells)
    every = [ask.id for one in lab_cells.exercises(nb.read(clone / "solutions" / NAME)) for ask in one.asks]
    assert check("05", clone, only="3") == 1
    assert len(asked) < len(every)
    assert set(asked) < set(every)
    assert "Twice" not in (told := capsys.readouterr().out)
    assert told.endswith("0 of 1 points\n")
    assert check("05", clone, only="4") == 2


def test_points_are_noted_of_the_learners_own_lab_alone(clone, tmp_path):
    elsewhere = save(nb.read(clone / "labs" / NAME), tmp_path / "mine" / NAME)
    assert check(str(elsewhere), clone) == 1
    assert notes.read(clone / "workspace")["labs"] == {}
    assert check("05", clone) == 1
    kept = notes.read(clone / "workspace")["labs"]["05"]["questions"]
    assert {key: row["points"] for key, row in kept.items()} == {"twice": 2, "pages": 2, "half": 1}


@pytest.mark.slow
def test_from_a_wrong_answer_to_the_worked_one(clone, capsys):
    write(clone, twice=WRONG, half=RIGHT["half"])
    assert check("05", clone, only="3") == 0
    assert "1 of 1 points" in capsys.readouterr().out
    assert check("05", clone) == 1
    assert "1 of 5 points" in capsys.readouterr().out
    assert check("05", clone, show="1") == 0
    assert capsys.readouterr().out == WORKED
    page = (clone / "workspace/START.md").read_text("utf-8")
    assert "Begin with chapter 00" in page
