"""One submission through nbval until every question had its chance.

A cell that hangs, floods or ends the kernel takes everything after it along. So it is taken out, and the rest is run
again: the other questions keep their points.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable

from nbformat import NotebookNode

from helpers.course import grading
from helpers.course import notebook as nb
from helpers.course.release import stub
from helpers.course.run import CellResult

Run = Callable[..., dict[str, CellResult]]  # run(notebook, seed=..., wall_s=...)
TOGETHER = 3  # runs of everything; whoever still dies then does it at a distance (a timer, a thread)


def trial(run: Run, notebook: NotebookNode, *, seed: str, wall_s: float) -> dict[str, CellResult]:
    """How each cell of `notebook` went, by id; those that are not in it were not reached in `wall_s` seconds.

    When something keeps ending the kernel, each exercise is run alone, with the others' answers untouched.
    """
    end = time.monotonic() + wall_s
    found: dict[str, CellResult] = {}
    left = notebook
    for _ in range(TOGETHER):
        one = run(left, seed=seed, wall_s=max(1.0, end - time.monotonic()))
        found.update(one)
        culprit = next((key for key, result in one.items() if result.fatal), None)
        if culprit is None or time.monotonic() >= end:
            return found
        left = _without(left, culprit)
    for exercise in grading.exercises(notebook):
        if _unsettled(exercise, found) and time.monotonic() < end:
            found.update(run(_alone(notebook, exercise), seed=seed, wall_s=max(1.0, end - time.monotonic())))
    return found


def _without(notebook: NotebookNode, key: str) -> NotebookNode:
    """`notebook` with the cell `key` made harmless; its result stays, so what runs in its place has another id."""
    changed = copy.deepcopy(notebook)
    cell = next(cell for cell in changed.cells if cell.id == key)
    cell.id, cell.source, cell.outputs, cell.execution_count = f"{key}-taken-out", "pass", [], None
    return changed


def _unsettled(exercise: grading.Exercise, found: dict[str, CellResult]) -> bool:
    """True where the exercise has neither passed nor failed by itself: perhaps another one is to blame."""
    results = [found.get(cell.id) for cell in (*exercise.answers, *exercise.checks)]
    return any(result is None or result.fatal or result.outcome == "not reached" for result in results)


def _alone(notebook: NotebookNode, exercise: grading.Exercise) -> NotebookNode:
    """The given cells and this exercise: no other answer, no other check, no cell of the learner's own."""
    own = {cell.id for cell in (*exercise.answers, *exercise.checks)}
    changed = copy.deepcopy(notebook)
    changed.cells = [cell for cell in changed.cells if cell.id in own or _given(cell)]
    return changed


def _given(cell: NotebookNode) -> bool:
    return not (grading.is_answer(cell) or grading.is_check(cell) or cell.id.startswith("learner-"))


def untouched(reference: NotebookNode) -> NotebookNode:
    """The lab as a learner first sees it, with the reference's checks: it must earn nothing."""
    lab = copy.deepcopy(reference)
    for cell in lab.cells:
        if grading.is_answer(cell):
            cell.source, cell.outputs, cell.execution_count = stub(cell.source), [], None
    return lab


def set_limits(notebook: NotebookNode, seconds: dict[str, float], spare_s: float) -> None:
    """In place: each cell may take ten times what the reference's took, and `spare_s` more."""
    for _, cell in nb.code_cells(notebook):
        limit_s = spare_s + 10 * seconds.get(cell.id, 0)
        cell.metadata["workbook"] = cell.metadata.get("workbook", {}) | {"limit_s": round(limit_s, 1)}
