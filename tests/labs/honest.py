"""Honest answers: honest_NN.py has them, each named as the answer and then how it is written."""

from __future__ import annotations

import ast
from pathlib import Path

from nbformat import NotebookNode

from helpers.course import lab_cells
from helpers.course import notebook as nb
from helpers.course.forked_cells import Trial, run_in_forks
from tests.labs.common import lab_path


def honest(number: str) -> list[str]:
    """The names in honest_NN.py."""
    return [node.name for node in ast.parse(table(number)).body if isinstance(node, ast.FunctionDef | ast.ClassDef)]


def table(number: str) -> str:
    """honest_NN.py as a cell."""
    source = Path(__file__).with_name(f"honest_{number}.py").read_text("utf-8")
    return source.replace("from __future__ import annotations\n", "")


def answer_of(lab: NotebookNode, name: str) -> str:
    """The answer that `name` is: the longest that it begins with."""
    return max((answer for answer in _exercises(lab) if name.startswith(answer)), key=len)


def faults(number: str, seed: str, names: list[str] | None = None) -> dict[str, list[str]]:
    """What is refused, by honest answer: the checks that fail, or that print something else than for the worked one."""
    path, names = lab_path(number), names or honest(number)
    lab = nb.read(path)
    cells = [cell for _, cell in nb.code_cells(lab)]
    trials = [_trial(lab, number, name) for name in names]
    ran = run_in_forks(path.parent, [cell.source for cell in cells], trials, seed=seed, limit_s=200)
    assert [run.error for run in ran.before if run.error] == []
    printed = {cell.id: run.printed for cell, run in zip(cells, ran.before, strict=True)}
    found = {}
    for name, runs in zip(names, ran.trials, strict=True):
        one = _exercises(lab)[answer_of(lab, name)]
        checks = zip(one.checks, runs[1 + len(one.asks) :], strict=True)
        errors = [run.error for run in runs if run.error]
        found[name] = errors + [check.id for check, run in checks if run.printed != printed[check.id]]
    return {name: wrong for name, wrong in found.items() if wrong}


def _trial(lab: NotebookNode, number: str, name: str) -> Trial:
    answer = answer_of(lab, name)
    one = _exercises(lab)[answer]
    return Trial((f"{table(number)}\n{answer} = {name}", *(cell.source for cell in (*one.asks, *one.checks))))


def _exercises(lab: NotebookNode) -> dict[str, lab_cells.Exercise]:
    """The exercises by the names that their answers define."""
    return {name: one for one in lab_cells.exercises(lab) for name in lab_cells.names_of(one.answers)}
