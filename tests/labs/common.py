"""Questions that the tests of several labs ask."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from nbformat import NotebookNode

from helpers.course import lab_cells
from helpers.course import notebook as nb
from helpers.course.forked_cells import Trial, run_in_forks
from helpers.course.mutants import find_mutants, load_mutants

ROOT = Path(__file__).resolve().parents[2]


def lab_path(number: str) -> Path:
    """solutions/NN_name.ipynb of the lab with that number."""
    return nb.find(number, ROOT, ["solutions"])[0]


def printed(lab: NotebookNode, cell_id: str) -> str:
    """What the cell's stored output says."""
    return "".join(output.text for cell in lab.cells if cell.id == cell_id for output in cell.outputs)


def source(lab: NotebookNode, cell_id: str) -> str:
    return next(cell.source for cell in lab.cells if cell.id == cell_id)


def checks_passed(path: Path, wrong: Iterable[str]) -> dict[str, set[str]]:
    """Which checks each wrong answer of a lab passes; it is named by words of its docstring. No check counts if an
    ask fails."""
    lab, mutants = nb.read(path), load_mutants(find_mutants(path))
    cells = [cell.source for _, cell in nb.code_cells(lab)]
    exercises = {lab_cells.grade_id(cell): one for one in lab_cells.exercises(lab) for cell in one.answers}
    chosen = {words: next(one for one in mutants if words in one.source) for words in wrong}
    asked = {words: exercises[one.grade_id] for words, one in chosen.items()}
    trials = [
        Trial((chosen[words].source, *(cell.source for cell in (*one.asks, *one.checks))))
        for words, one in asked.items()
    ]
    ran, passed = run_in_forks(path.parent, cells, trials, seed="3", limit_s=200), {}
    for (words, one), (_, *runs) in zip(asked.items(), ran.trials, strict=True):
        failed = any(run.error for run in runs[: len(one.asks)])
        checks = () if failed else zip(one.checks, runs[len(one.asks) :], strict=True)
        passed[words] = {lab_cells.grade_id(cell) for cell, run in checks if not run.error}
    return passed
