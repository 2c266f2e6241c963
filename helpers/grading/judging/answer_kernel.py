"""One submission through nbval, in the learner's kernel, until every question had its chance.

What is given runs first, before anything of the learner's. Then come the answers, the learner's own cells, and after
the answers of an exercise the cells that ask them: see `sandbox.asking_kernel`. No check is in that kernel, and nothing
that the checks compare with: those weigh what was answered, in `check_kernel`.

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

from nbformat import NotebookNode, v4

from ...course import lab_cells
from ...course import notebook as nb
from ...course.stubs import stub
from ...lesson.drawn_inputs import secret_of
from ..sandbox.asking_kernel import APPARATUS, BEGIN, PUT_BACK, ask_line
from ..sandbox.nbval_run import CellResult, CellResults

Run = Callable[..., CellResults]  # run(notebook, wall_s=...)
STARVED = re.compile(
    "MemoryError|allocate memory|can't start new thread|Too many open files|No space left on device"
    "|Resource temporarily unavailable|Unexpected exception formatting exception"
)
BACK = "back-"  # begins the id of the cell before an asking one, that puts back what was replaced
TOGETHER = 3  # runs of everything; whoever still dies then does it at a distance (a timer, a thread)


def run_answers(run: Run, lab: NotebookNode, assembled: NotebookNode, *, seed: str, wall_s: float) -> CellResults:
    """How each cell of a learner's assembled `lab` went, checks left out, by id.

    Those that are not in it were not reached in `wall_s` seconds.

    An exercise in which the kernel ended, or that was never reached because others ended it, or that failed because the
    kernel had run out of something, is run alone, without the others' answers.
    """
    end, notebook = time.monotonic() + wall_s, answering(lab, assembled, seed)
    found = together(run, notebook, wall_s=wall_s)
    for exercise in lab_cells.exercises(assembled):
        if (_starved(exercise, found) or _unsettled(exercise, found)) and time.monotonic() < end:
            found.update(run(_alone(notebook, exercise), wall_s=max(1.0, end - time.monotonic())))
    return found


def answering(lab: NotebookNode, assembled: NotebookNode, seed: str) -> NotebookNode:
    """What runs in a learner's kernel: all that is given, then the answers, each followed by what asks it.

    An asking cell gets the names that the worked answers of its exercise define, in `lab`, and what it draws with.
    """
    asks = {ask.id: lab_cells.names_of(one.answers) for one in lab_cells.exercises(lab) for ask in one.asks}
    cells = [cell for cell in copy.deepcopy(assembled).cells if cell.cell_type == "code"]
    for cell in cells:
        cell.outputs, cell.execution_count = [], None  # nothing is compared here
        if cell.id in asks:
            cell.source = f"{ask_line(asks[cell.id], secrets_of(cell, seed))}\n{cell.source}"
        elif lab_cells.role(cell) == lab_cells.APPARATUS:
            cell.source = f"{APPARATUS}\n{cell.source}"
    apparatus = [cell for cell in cells if lab_cells.role(cell) == lab_cells.APPARATUS]
    given = [cell for cell in cells if _given(cell) and not lab_cells.role(cell)]
    answered = [cell for cell in cells if not _given(cell) and not lab_cells.is_check(cell)]
    notebook = copy.deepcopy(assembled)
    notebook.cells = [*given, *apparatus, v4.new_code_cell(BEGIN, id="answers-begin")]
    for cell in answered:
        notebook.cells += [v4.new_code_cell(PUT_BACK, id=f"{BACK}{cell.id}")] * (cell.id in asks) + [cell]
    return notebook


def secrets_of(ask: NotebookNode, seed: str) -> dict[str, str]:
    """What an asking cell draws with, by the names in it."""
    return {name: secret_of(name, seed) for name in lab_cells.draws_of(ask)}


def together(run: Run, notebook: NotebookNode, *, wall_s: float, runs: int = TOGETHER) -> CellResults:
    """Everything in one kernel, again without what ended it, `runs` times at most.

    A cell of the learner's own that took too long, or printed too much, counts for none: it has done it itself.
    """
    end = time.monotonic() + wall_s
    found: CellResults = {}
    while runs > 0:
        one = run(notebook, wall_s=max(1.0, end - time.monotonic()))
        found.update(one)
        culprit = next((key for key, result in one.items() if result.fatal), None)
        if culprit is None or time.monotonic() >= end:
            break
        notebook = _without(notebook, culprit)
        runs -= not (culprit.startswith("learner-") and one[culprit].fatal in ("hung", "flooded"))
    return found


def _without(notebook: NotebookNode, key: str) -> NotebookNode:
    """`notebook` with the cell `key` made harmless; its result stays, so what runs in its place has another id."""
    changed = copy.deepcopy(notebook)
    cell = next(cell for cell in changed.cells if cell.id == key)
    cell.id, cell.source, cell.outputs, cell.execution_count = f"{key}-taken-out", "pass", [], None
    return changed


def _unsettled(exercise: lab_cells.Exercise, found: CellResults) -> bool:
    """True where the exercise has neither passed nor failed by itself: perhaps another one is to blame."""
    results = [found.get(cell.id) for cell in (*exercise.answers, *exercise.asks)]
    return any(result is None or result.fatal or result.outcome == "not reached" for result in results)


def _starved(exercise: lab_cells.Exercise, found: CellResults) -> bool:
    """True where the exercise failed, in a kernel that lived, for want of memory, threads or files."""
    results = [found[cell.id] for cell in (*exercise.answers, *exercise.asks) if cell.id in found]
    if any(result.fatal for result in results):
        return False
    return any(STARVED.search(one.errors) for one in results if not _answered(one))


def _answered(result: CellResult) -> bool:
    """True where an asking cell brought answers and no error: an answer may well print one that it has dealt with."""
    return result.passed and bool(result.told) and not result.raised


def _alone(notebook: NotebookNode, exercise: lab_cells.Exercise) -> NotebookNode:
    """The given cells and this exercise: no other answer, and no cell of the learner's own."""
    own = {cell.id for cell in (*exercise.answers, *exercise.asks)} | {f"{BACK}{ask.id}" for ask in exercise.asks}
    changed = copy.deepcopy(notebook)
    changed.cells = [cell for cell in changed.cells if cell.id in own or _given(cell)]
    return changed


def _given(cell: NotebookNode) -> bool:
    return lab_cells.is_given(cell) and not cell.id.startswith(("learner-", BACK))


def untouched(reference: NotebookNode) -> NotebookNode:
    """The lab as a learner first sees it, with the reference's checks: it must earn nothing."""
    lab = copy.deepcopy(reference)
    for cell in lab.cells:
        if lab_cells.is_answer(cell):
            cell.source, cell.outputs, cell.execution_count = stub(cell.source), [], None
    return lab


def set_limits(notebook: NotebookNode, seconds: dict[str, float], spare_s: float) -> None:
    """In place: each cell may take ten times what the reference's took, and `spare_s` more."""
    for _, cell in nb.code_cells(notebook):
        limit_s = spare_s + 10 * seconds.get(cell.id, 0)
        cell.metadata["workbook"] = cell.metadata.get("workbook", {}) | {"limit_s": round(limit_s, 1)}
