"""One submission through nbval until every question had its chance, then its judged answers weighed.

A cell that hangs, floods or ends the kernel takes everything after it along. So it is taken out, and the rest is run
again: the other questions keep their points. But it may only have been near when another one's threads ended the
kernel, or have failed for want of memory, threads or files that another one took: before that counts against it, it is
run again alone.

A check that asks through `judged(...)` prints each answer as a line of JSON. Those lines are all that is taken from the
learner's kernel; the reference notebook then runs the same check on them, in a kernel that never saw the learner's
code (see helpers/lesson/judged.py).
"""

from __future__ import annotations

import copy
import json
import re
import time
from collections.abc import Callable
from dataclasses import replace

from nbformat import NotebookNode, v4

from ...course import lab_cells
from ...course import notebook as nb
from ...course.release import stub
from ...lesson.judged import MARK, REPLAY
from ..sandbox.nbval_run import UNFINISHED, CellResult, CellResults

Run = Callable[..., CellResults]  # run(notebook, seed=..., wall_s=...)
STARVED = re.compile(
    "MemoryError|allocate memory|can't start new thread|Too many open files|No space left on device"
    "|Resource temporarily unavailable|Unexpected exception formatting exception"
)
TOGETHER = 3  # runs of everything; whoever still dies then does it at a distance (a timer, a thread)
MOST_ANSWERS, MOST_CHARS = 1000, 500_000


def trial(run: Run, notebook: NotebookNode, *, seed: str, wall_s: float) -> CellResults:
    """How each cell of `notebook` went, by id; those that are not in it were not reached in `wall_s` seconds.

    An exercise in which the kernel ended, or that was never reached because others ended it, or that failed because the
    kernel had run out of something, is run alone, without the others' answers.
    """
    end = time.monotonic() + wall_s
    found = together(run, notebook, seed=seed, wall_s=wall_s)
    for exercise in lab_cells.exercises(notebook):
        if (_starved(exercise, found) or _unsettled(exercise, found)) and time.monotonic() < end:
            found.update(run(_alone(notebook, exercise), seed=seed, wall_s=max(1.0, end - time.monotonic())))
    return found


def together(run: Run, notebook: NotebookNode, *, seed: str, wall_s: float, runs: int = TOGETHER) -> CellResults:
    """Everything in one kernel, again without what ended it, `runs` times at most."""
    end = time.monotonic() + wall_s
    found: CellResults = {}
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


def _unsettled(exercise: lab_cells.Exercise, found: CellResults) -> bool:
    """True where the exercise has neither passed nor failed by itself: perhaps another one is to blame."""
    results = [found.get(cell.id) for cell in (*exercise.answers, *exercise.checks)]
    return any(result is None or result.fatal or result.outcome == "not reached" for result in results)


def _starved(exercise: lab_cells.Exercise, found: CellResults) -> bool:
    """True where the exercise failed, in a kernel that lived, for want of memory, threads or files."""
    results = {cell.id: found[cell.id] for cell in (*exercise.answers, *exercise.checks) if cell.id in found}
    if any(result.fatal for result in results.values()):
        return False
    # What a judged check shows is compared with nothing, so it may have passed with an error on its lips.
    doubtful = {cell.id for cell in exercise.checks if lab_cells.is_judged(cell)}
    return any(STARVED.search(one.words) for key, one in results.items() if not one.passed or key in doubtful)


def _alone(notebook: NotebookNode, exercise: lab_cells.Exercise) -> NotebookNode:
    """The given cells and this exercise: no other answer, no other check, no cell of the learner's own."""
    own = {cell.id for cell in (*exercise.answers, *exercise.checks)}
    changed = copy.deepcopy(notebook)
    changed.cells = [cell for cell in changed.cells if cell.id in own or _given(cell)]
    return changed


def _given(cell: NotebookNode) -> bool:
    return not (lab_cells.is_answer(cell) or lab_cells.is_check(cell) or cell.id.startswith("learner-"))


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


def unmarked(notebook: NotebookNode) -> NotebookNode:
    """`notebook` with the outputs of judged checks not compared: there many answers are right."""
    changed = copy.deepcopy(notebook)
    for cell in changed.cells:
        if lab_cells.is_check(cell) and lab_cells.is_judged(cell):
            cell.metadata["tags"] = sorted(nb.tags(cell) | {nb.IGNORE_TAG})
    return changed


def judge(run: Run, reference: NotebookNode, cells: CellResults, *, seed: str, wall_s: float) -> CellResults:
    """`cells` with a judge's word for each judged check that passed in the learner's kernel.

    The judge's check must pass on the recorded answers, use all of them, and print what the reference prints.
    """
    judged = [cell for cell in reference.cells if lab_cells.is_check(cell) and lab_cells.is_judged(cell)]
    lines = {cell.id: _lines(cells[cell.id]) for cell in judged if cell.id in cells and cells[cell.id].passed}
    if not lines:
        return cells
    # A plan may be more than a judge bears: then the others are weighed without it.
    weighed = together(run, _court(reference, lines), seed=seed, wall_s=wall_s, runs=len(lines) + 1)
    stored = {cell.id: nb.stream(cell.outputs, "stdout") for cell in judged}
    return cells | {key: _word(key, weighed, stored[key], cells[key]) for key in lines}


def _lines(result: CellResult) -> list[str]:
    """The recorded answers: what follows the mark, line by line."""
    parts = [line.partition(MARK) for line in result.stdout.splitlines() if MARK in line]
    # One that does not begin with the mark may hold an answer, too: the learner printed with end="" before it.
    found = [answer for before, _, answer in parts if not before or _is_json(answer)]
    return found[:MOST_ANSWERS] if len(result.stdout) < MOST_CHARS else []


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _court(reference: NotebookNode, lines: dict[str, list[str]]) -> NotebookNode:
    """The reference with these checks alone, each on its recorded answers, and a word afterwards about the rest."""
    court = unmarked(reference)
    court.cells, cells = [], court.cells
    for cell in cells:
        if cell.cell_type != "code" or (lab_cells.is_check(cell) and cell.id not in lines):
            continue
        cell.outputs, cell.execution_count = [], None
        if cell.id in lines:
            recorded = json.dumps(json.dumps(lines[cell.id]))
            before = v4.new_code_cell(f"import os\nos.environ[{REPLAY!r}] = {recorded}", id=f"before-{cell.id}")
            count_left = f"import json, os\nprint(len(json.loads(os.environ.pop({REPLAY!r}))))"
            court.cells += [before, cell, v4.new_code_cell(count_left, id=f"after-{cell.id}")]
        else:
            court.cells.append(cell)
    return court


def _word(key: str, weighed: CellResults, stored: str, found: CellResult) -> CellResult:
    verdict, left = weighed.get(key, UNFINISHED), weighed.get(f"after-{key}", UNFINISHED)
    if not verdict.passed:
        return replace(found, outcome=verdict.outcome, message=verdict.message)
    if MARK not in verdict.stdout:  # a function of the lab's own that is called `judged`, say
        return replace(found, outcome="failed", message="the check printed no answer to be weighed")
    if left.stdout.strip() != "0":
        return replace(found, outcome="failed", message="more answers were printed than the check asked for")
    yours, expected = _rest(verdict.stdout), _rest(stored)
    if yours != expected:
        pairs = zip(yours, expected, strict=False)
        first = next((f"  expected: {right}\n  yours:    {mine}" for mine, right in pairs if mine != right), "")
        difference = f"the judge found other values than the worked answer has\n{first}"
        return replace(found, outcome="failed", message=difference)
    return found


def _rest(printed: str) -> list[str]:
    return [line for line in printed.splitlines() if not line.startswith(MARK)]
