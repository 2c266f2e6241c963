"""An instructor's own checks: a notebook outside the repository, run in a kernel of its own, whose output nobody sees.

`--checks DIR` holds a notebook per lab, named after it (02_anything.ipynb). Its check cells carry nbgrader metadata as
the labs' do (grade, points, a grade_id); its other code cells prepare them. They run after the given cells and the
learner's answers. `metadata.workbook.feedback` of a check is the one sentence that its learner may read.
"""

from __future__ import annotations

import copy
from pathlib import Path

from nbformat import NotebookNode

from helpers.catalog.errors import WorkbookError
from helpers.course import grading
from helpers.course import notebook as nb
from helpers.course.grade.model import Question
from helpers.course.run import CellResult, missing

OWN = "private-"  # begins the ids of these cells, so that none meets a lab's


def find(folder: Path, lab: str) -> Path:
    """The notebook with the private checks of `lab` in `folder`. WorkbookError for none, and for several."""
    number = lab.partition("_")[0]
    found = sorted(path for path in folder.glob("*.ipynb") if path.stem.partition("_")[0] == number)
    if len(found) != 1:
        raise WorkbookError(
            f"{folder} holds {len(found)} notebooks for lab {number}",
            f"one, {number}_anything.ipynb, whose check cells have points",
            "see the instructor's guide, or leave --checks out",
        )
    return found[0]


def load(path: Path, worked: NotebookNode) -> NotebookNode:
    """The private checks at `path`. WorkbookError when there is none, or a grade_id is the lab's or repeated."""
    own = nb.read(path)
    grading.require_ids(own, path.name)
    checks = [cell for cell in own.cells if grading.is_check(cell)]
    taken = {grading.grade_id(cell) for cell in worked.cells} & {grading.grade_id(cell) for cell in checks}
    if not checks or taken or any(grading.is_answer(cell) for cell in own.cells):
        raise WorkbookError(
            f"{path.name} holds {len(checks)} check cells" + (f", {min(taken)!r} is the lab's own" if taken else ""),
            "code cells with metadata.nbgrader: grade true, solution false, points, a grade_id of their own",
            "copy a check cell of the lab and change its grade_id and its source",
        )
    own.cells = [cell for cell in own.cells if cell.cell_type == "code"]
    for number, cell in enumerate(own.cells):
        cell.id = f"{OWN}{number}"
    return own


def assembled(answers: NotebookNode, own: NotebookNode) -> NotebookNode:
    """`answers` (a reference or a learner's assembly) without the public checks, then the private cells."""
    notebook = copy.deepcopy(answers)
    notebook.cells = [cell for cell in notebook.cells if not grading.is_check(cell)] + copy.deepcopy(own.cells)
    return notebook


def only(notebook: NotebookNode) -> NotebookNode:
    """The private cells alone, as `assembled` put them there, with what a run gave them."""
    own = copy.deepcopy(notebook)
    own.cells = [cell for cell in own.cells if cell.id.startswith(OWN)]
    return own


def questions(own: NotebookNode, cells: dict[str, CellResult]) -> tuple[Question, ...]:
    """A Question per private check. Its message is the instructor's sentence, or that it failed; never an output."""
    checks = [cell for cell in own.cells if grading.is_check(cell)]
    return tuple(_question(number, check, cells) for number, check in enumerate(checks, start=1))


def _question(number: int, check: NotebookNode, cells: dict[str, CellResult]) -> Question:
    passed = cells.get(check.id, missing()).passed
    sentence = str(check.metadata.get("workbook", {}).get("feedback", "")) or "a check of your instructor's failed"
    return Question(
        key=grading.grade_id(check),
        title=f"Private check {number}",
        earned=grading.points(check) if passed else 0,
        points=grading.points(check),
        outcome="passed" if passed else "wrong",
        message="" if passed else sentence,
        check_ids=(check.id,),
    )
