"""Questions that the tests of several labs ask."""

from __future__ import annotations

import contextlib
import io
import json
import os
from pathlib import Path
from unittest import mock

from nbformat import NotebookNode

from helpers.course import grading
from helpers.course import notebook as nb
from helpers.course.build import execute
from helpers.course.mutants import find_mutants, load_mutants
from helpers.lesson.judged import MARK, REPLAY

ROOT = Path(__file__).resolve().parents[2]


def lab_path(number: str) -> Path:
    """solutions/NN_name.ipynb of the lab with that number."""
    return nb.find(number, ROOT, ["solutions"])[0]


def printed(lab: NotebookNode, cell_id: str) -> str:
    """What the cell's stored output says."""
    return "".join(output.text for cell in lab.cells if cell.id == cell_id for output in cell.outputs)


def without_answers(output: str) -> list[str]:
    """The lines of a check's output but for those that `judged` recorded: they are equal for every right answer."""
    return [line for line in output.splitlines() if not line.startswith(MARK)]


def answers(output: str) -> list[str]:
    """What `judged` recorded in a check's output, as JSON."""
    return [line.removeprefix(MARK) for line in output.splitlines() if line.startswith(MARK)]


def weighed(lab: NotebookNode, names: dict, check_id: str, recorded: list[str]) -> str:
    """What a check prints about recorded answers, where no answer of the lab is defined: as in the judge's kernel."""
    given = {name: value for name, value in names.items() if name.replace("_", "-") not in _answer_ids(lab)}
    asked = {key.replace("-", "_"): None for key in _answer_ids(lab)}  # a check that calls one fails
    environment = mock.patch.dict(os.environ, {REPLAY: json.dumps(recorded)})
    with environment, contextlib.redirect_stdout(io.StringIO()) as out:
        exec(source(lab, check_id), given | asked)
        assert json.loads(os.environ[REPLAY]) == [], "answers are left over"
    return out.getvalue()


def source(lab: NotebookNode, cell_id: str) -> str:
    return next(cell.source for cell in lab.cells if cell.id == cell_id)


def exercises_without_a_mutant_that_calls_helpers(lab: NotebookNode, path: Path) -> set[str]:
    """Titles of exercises, none of whose answers has a mutant that says of itself that it calls what is there."""
    calling = {mutant.grade_id for mutant in load_mutants(find_mutants(path)) if '"""Calls ' in mutant.source}
    exercises = grading.exercises(lab)
    return {one.title for one in exercises if not calling & {grading.grade_id(cell) for cell in one.answers}}


def checks_that_draw_nothing(lab: NotebookNode, path: Path) -> list[str]:
    """Checks that print the same with another seed. Their asserts see the other inputs too, and raise here."""
    fresh = execute(lab, path.parent, seed="2").notebook
    pairs = zip(lab.cells, fresh.cells, strict=True)
    return [old.id for old, new in pairs if grading.is_check(old) and new.outputs[0].text == old.outputs[0].text]


def _answer_ids(lab: NotebookNode) -> set[str | None]:
    return {grading.grade_id(cell) for cell in lab.cells if grading.is_answer(cell)}
