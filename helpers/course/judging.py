"""Judged checks: answers recorded in the learner's kernel, weighed in one that never saw the learner's code.

A check that asks through `judged(...)` prints each answer as a line of JSON. Those lines are all that is taken from the
learner's kernel; the reference notebook then runs the same check on them (see helpers/lesson/judged.py).
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace

from nbformat import NotebookNode, v4

from helpers.course import grading
from helpers.course import notebook as nb
from helpers.course.run import CellResult, missing
from helpers.course.trial import together
from helpers.lesson.judged import MARK, REPLAY

MOST_ANSWERS, MOST_CHARS = 1000, 500_000


def unmarked(notebook: NotebookNode) -> NotebookNode:
    """`notebook` with the outputs of judged checks not compared: there many answers are right."""
    changed = copy.deepcopy(notebook)
    for cell in changed.cells:
        if grading.is_check(cell) and grading.is_judged(cell):
            cell.metadata["tags"] = sorted(nb.tags(cell) | {nb.IGNORE_TAG})
    return changed


def judge(
    run: Callable[..., dict[str, CellResult]],
    reference: NotebookNode,
    cells: dict[str, CellResult],
    *,
    seed: str,
    wall_s: float,
) -> dict[str, CellResult]:
    """`cells` with a judge's word for each judged check that passed in the learner's kernel.

    The judge's check must pass on the recorded answers, use all of them, and print what the reference prints.
    """
    judged = [cell for cell in reference.cells if grading.is_check(cell) and grading.is_judged(cell)]
    lines = {cell.id: _lines(cells[cell.id]) for cell in judged if cell.id in cells and cells[cell.id].passed}
    if not lines:
        return cells
    # A plan may be more than a judge bears: then the others are weighed without it.
    weighed = together(run, _court(reference, lines), seed=seed, wall_s=wall_s, runs=len(lines) + 1)
    stored = {cell.id: "".join(output.get("text", "") for output in cell.outputs) for cell in judged}
    return cells | {key: _word(key, weighed, stored[key], cells[key]) for key in lines}


def _lines(result: CellResult) -> list[str]:
    """The recorded answers: what follows the mark, line by line."""
    parts = [line.partition(MARK) for line in result.stdout.splitlines() if MARK in line]
    found = [answer for before, _, answer in parts if not before or _is_json(answer)]
    return found[:MOST_ANSWERS] if len(result.stdout) < MOST_CHARS else []


def _is_json(text: str) -> bool:
    """Whether a line that does not begin with the mark holds an answer: the learner printed with end="" before it."""
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
        if cell.cell_type != "code" or (grading.is_check(cell) and cell.id not in lines):
            continue
        cell.outputs, cell.execution_count = [], None
        if cell.id in lines:
            recorded = json.dumps(json.dumps(lines[cell.id]))
            before = v4.new_code_cell(f"import os\nos.environ[{REPLAY!r}] = {recorded}", id=f"before-{cell.id}")
            after = v4.new_code_cell(
                f"import json, os\nprint(len(json.loads(os.environ.pop({REPLAY!r}))))", id=f"after-{cell.id}"
            )
            court.cells += [before, cell, after]
        else:
            court.cells.append(cell)
    return court


def _word(key: str, weighed: dict[str, CellResult], stored: str, found: CellResult) -> CellResult:
    verdict, left = weighed.get(key, missing()), weighed.get(f"after-{key}", missing())
    if not verdict.passed:
        return replace(found, outcome=verdict.outcome, message=verdict.message)
    if MARK not in verdict.stdout:  # a function of the lab's own that is called `judged`, say
        return replace(found, outcome="failed", message="the check printed no answer to be weighed")
    if left.stdout.strip() != "0":
        return replace(found, outcome="failed", message="more answers were printed than the check asked for")
    if _rest(verdict.stdout) != _rest(stored):
        difference = "the judge found other values than the worked answer has"
        return replace(found, outcome="failed", message=f"{difference}\n{_first(verdict.stdout, stored)}")
    return found


def _rest(printed: str) -> list[str]:
    return [line for line in printed.splitlines() if not line.startswith(MARK)]


def _first(fresh: str, stored: str) -> str:
    for mine, right in zip(_rest(fresh), _rest(stored), strict=False):
        if mine != right:
            return f"  expected: {right}\n  yours:    {mine}"
    return ""
