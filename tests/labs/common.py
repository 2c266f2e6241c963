"""Questions that the tests of several labs ask."""

from __future__ import annotations

import contextlib
import io
import json
import os
from pathlib import Path
from unittest import mock

from nbformat import NotebookNode

from helpers.course import lab_cells
from helpers.course import notebook as nb
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


def _answer_ids(lab: NotebookNode) -> set[str | None]:
    return {lab_cells.grade_id(cell) for cell in lab.cells if lab_cells.is_answer(cell)}
