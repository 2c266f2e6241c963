"""An instructor's own checks: found, refused, put after the answers, and reported without what they printed."""

from __future__ import annotations

import copy

import pytest

from helpers.catalog.errors import WorkbookError
from helpers.course import lab_cells
from helpers.course import notebook as nb
from helpers.grading.judging import reference
from helpers.grading.sandbox.nbval_run import CellResult
from tests.course.example_lab import RIGHT, answer, ask, cell_of, check, code, example_lab, markdown, save, with_sources

LAB = "05_numbers"
FEEDBACK = "think of zero"


def checks(*extra):
    """A preparation, a cell that asks, two checks with points, and what else is given."""
    first, second = check("my-twice", "print('HIDDEN', found[0])", 2), check("my-half", "print('HIDDEN')", 1)
    first.metadata["workbook"] = {"feedback": FEEDBACK}
    asks = ask("my-ask", "found = asked(twice, n), asked(half, n)")
    cells = [markdown("# Not for learners", "text"), code("n = 3", "prepare"), asks, first, second, *extra]
    return only(*cells)


def only(*cells):
    """A notebook of these."""
    return nb.nbformat.v4.new_notebook(cells=list(cells))


def repeated():
    """A second check with the grade_id of another."""
    cell = check("my-half", "print(1)")
    cell.id = "second"
    return cell


@pytest.fixture
def loaded(tmp_path):
    return reference.load_checks(save(checks(), tmp_path / f"{LAB}.ipynb"), example_lab())


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["05_numbers.ipynb"], "05_numbers.ipynb"),
        (["05_mine.ipynb", "06_numbers.ipynb", "050_x.ipynb", "05_numbers.txt", "numbers.ipynb"], "05_mine.ipynb"),
        (["05.ipynb"], "05.ipynb"),
    ],
    ids=str,
)
def test_the_checks_of_a_lab_are_found_by_its_number(tmp_path, names, found):
    for name in names:
        (tmp_path / name).touch()
    (tmp_path / ".ipynb_checkpoints").mkdir()
    (tmp_path / ".ipynb_checkpoints/05_numbers.ipynb").touch()
    assert reference.find_checks(tmp_path, LAB) == tmp_path / found


@pytest.mark.parametrize(("names", "count"), [([], 0), (["06_x.ipynb"], 0), (["05_a.ipynb", "05_b.ipynb"], 2)], ids=str)
def test_none_and_several_are_refused(tmp_path, names, count):
    for name in names:
        (tmp_path / name).touch()
    with pytest.raises(WorkbookError, match=f"holds {count} notebooks for lab 05"):
        reference.find_checks(tmp_path, LAB)


def test_a_folder_that_is_not_there_holds_none(tmp_path):
    with pytest.raises(WorkbookError, match="holds 0 notebooks"):
        reference.find_checks(tmp_path / "no", LAB)


def test_what_is_loaded_is_code_with_ids_that_no_lab_has(loaded):
    assert [(cell.id, cell.cell_type) for cell in loaded.cells] == [(f"private-{n}", "code") for n in range(4)]
    assert [lab_cells.grade_id(cell) for cell in loaded.cells] == ["", "my-ask", "my-twice", "my-half"]


def test_what_prepares_them_no_answer_sees(loaded):
    """It runs in the learner's kernel, where what is plainly given is there for answers."""
    assert [lab_cells.role(cell) for cell in loaded.cells] == ["apparatus", "ask", "", ""]


@pytest.mark.parametrize("role", ["reference", "demonstration"])
def test_a_cell_that_says_what_it_is_for_keeps_it(tmp_path, role):
    cell = code("right = 6", "right")
    cell.metadata["workbook"] = {"role": role}
    found = reference.load_checks(save(checks(cell), tmp_path / f"{LAB}.ipynb"), example_lab())
    assert lab_cells.role(found.cells[-1]) == role


@pytest.mark.parametrize(
    ("notebook", "words"),
    [
        (only(code("n = 3", "prepare"), ask("my-ask", "found = 1")), "holds 1 asking and 0 check cells"),
        (only(check("my-half", "print(half(3))")), "holds 0 asking and 1 check cells"),
        (checks(check("check-twice", "print(1)")), "'check-twice' is the lab's own"),
        (checks(check("half", "print(1)")), "'half' is the lab's own"),
        (checks(answer("mine", "def mine(): ...")), "holds 1 asking and 2 check cells"),
        (checks(repeated()), "grade_id 'my-half' is used 2 times"),
        (checks(check("", "print(1)")), "has no grade_id"),
    ],
    ids=["no check", "nothing is asked", "the lab's check", "the lab's answer", "an answer", "repeated", "nameless"],
)
def test_what_is_no_set_of_checks_is_refused(tmp_path, notebook, words):
    with pytest.raises(WorkbookError, match=words):
        reference.load_checks(save(notebook, tmp_path / f"{LAB}.ipynb"), example_lab())


def test_a_file_that_is_no_notebook_is_refused(tmp_path):
    (tmp_path / "05_x.ipynb").write_text("{")
    with pytest.raises(WorkbookError, match="cannot read"):
        reference.load_checks(tmp_path / "05_x.ipynb", example_lab())


def test_private_checks_run_after_the_answers_and_without_the_public_questions(loaded):
    learner = with_sources(example_lab(), RIGHT)
    learner.cells.insert(3, code("mine = 1", "learner-0"))
    before = copy.deepcopy(learner)
    found = reference.with_private_checks(learner, loaded)
    ids = [cell.id for cell in found.cells if cell.cell_type == "code"]
    assert ids == ["setup", "learner-0", *RIGHT, "private-0", "private-1", "private-2", "private-3"]
    assert cell_of(found, "twice").source == RIGHT["twice"]
    found.cells[-1].source = "changed"
    assert learner == before
    assert loaded.cells[-1].source == "print('HIDDEN')"


def test_only_takes_the_private_cells_back(loaded):
    found = reference.with_private_checks(example_lab(), loaded)
    cell_of(found, "private-2").execution_count = 9
    assert [(cell.id, cell.execution_count) for cell in reference.only_private(found).cells] == [
        ("private-0", None),
        ("private-1", None),
        ("private-2", 9),
        ("private-3", None),
    ]


@pytest.mark.parametrize(
    ("outcomes", "earned", "messages"),
    [
        (("passed", "passed"), [2, 1], ["", ""]),
        (("failed", "passed"), [0, 1], [FEEDBACK, ""]),
        (("passed", "failed"), [2, 0], ["", "a check of your instructor's failed"]),
        (("not reached", "no kernel"), [0, 0], [FEEDBACK, "a check of your instructor's failed"]),
        ((None, None), [0, 0], [FEEDBACK, "a check of your instructor's failed"]),
    ],
    ids=str,
)
def test_a_learner_reads_the_instructors_sentence_and_no_output(loaded, outcomes, earned, messages):
    shown = ({"output_type": "stream", "name": "stdout", "text": "HIDDEN 0"},)
    cells = {
        f"private-{number}": CellResult(outcome, "HIDDEN 0", 1.0, shown, "died" if outcome == "not reached" else "")
        for number, outcome in enumerate(outcomes, start=2)
        if outcome
    }
    found = reference.private_questions(loaded, cells)
    assert [one.key for one in found] == ["my-twice", "my-half"]
    assert [one.title for one in found] == ["Private check 1", "Private check 2"]
    assert [one.earned for one in found] == earned
    assert [one.points for one in found] == [2, 1]
    assert [one.message for one in found] == messages
    assert [one.outcome for one in found] == ["passed" if points else "wrong" for points in earned]
    assert [one.check_ids for one in found] == [("private-2",), ("private-3",)]
    assert "HIDDEN" not in repr(found)
