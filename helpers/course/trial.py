"""One submission through nbval until every question had its chance.

A cell that hangs, floods or ends the kernel takes everything after it along. So it is taken out, and the rest is run
again: the other questions keep their points. But it may only have been near when another one's threads ended the
kernel, or have failed for want of memory, threads or files that another one took: before that counts against it, it is
run again alone.
"""

from __future__ import annotations

import copy
import re
import time
from collections.abc import Callable

from nbformat import NotebookNode

from helpers.course import grading
from helpers.course import notebook as nb
from helpers.course.release import stub
from helpers.course.run import CellResult

Run = Callable[..., dict[str, CellResult]]  # run(notebook, seed=..., wall_s=...)
STARVED = re.compile(
    "MemoryError|allocate memory|can't start new thread|Too many open files|No space left on device"
    "|Resource temporarily unavailable|Unexpected exception formatting exception"
)
TOGETHER = 3  # runs of everything; whoever still dies then does it at a distance (a timer, a thread)


def trial(run: Run, notebook: NotebookNode, *, seed: str, wall_s: float) -> dict[str, CellResult]:
    """How each cell of `notebook` went, by id; those that are not in it were not reached in `wall_s` seconds.

    An exercise in which the kernel ended, or that was never reached because others ended it, or that failed because the
    kernel had run out of something, is run alone, without the others' answers.
    """
    end = time.monotonic() + wall_s
    found = together(run, notebook, seed=seed, wall_s=wall_s)
    for exercise in grading.exercises(notebook):
        if (_starved(exercise, found) or _unsettled(exercise, found)) and time.monotonic() < end:
            found.update(run(_alone(notebook, exercise), seed=seed, wall_s=max(1.0, end - time.monotonic())))
    return found


def together(
    run: Run, notebook: NotebookNode, *, seed: str, wall_s: float, runs: int = TOGETHER
) -> dict[str, CellResult]:
    """Everything in one kernel, again without what ended it, `runs` times at most."""
    end = time.monotonic() + wall_s
    found: dict[str, CellResult] = {}
    for _ in range(runs):
        one = run(notebook, seed=seed, wall_s=max(1.0, end - time.monotonic()))
        found.update(one)
        culprit = next((key for key, result in one.items() if result.fatal), None)
        if culprit is None or time.monotonic() >= end:
            break
        notebook = _without(notebook, culprit)
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


def _starved(exercise: grading.Exercise, found: dict[str, CellResult]) -> bool:
    """True where the exercise failed, in a kernel that lived, for want of memory, threads or files."""
    results = {cell.id: found[cell.id] for cell in (*exercise.answers, *exercise.checks) if cell.id in found}
    if any(result.fatal for result in results.values()):
        return False
    # What a judged check shows is compared with nothing, so it may have passed with an error on its lips.
    doubtful = {cell.id for cell in exercise.checks if grading.is_judged(cell)}
    return any(STARVED.search(one.words) for key, one in results.items() if not one.passed or key in doubtful)


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
