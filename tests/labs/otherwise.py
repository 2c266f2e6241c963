"""Right answers, written otherwise: other_answers_NN.py has them, named as the answer and then how it is written."""

from __future__ import annotations

import ast
import contextlib
import io
import os
from pathlib import Path
from unittest import mock

from nbformat import NotebookNode

from helpers.course import lab_cells
from tests.labs.common import answers, weighed, without_answers


def others(number: str) -> list[str]:
    """The names in other_answers_NN.py."""
    return [node.name for node in _tree(number).body if isinstance(node, ast.FunctionDef | ast.ClassDef)]


def answer_name(lab: NotebookNode, other: str) -> str:
    """The answer that `other` is: the longest that it begins with."""
    return max((name for name in _answers(lab) if other.startswith(name)), key=len)


def answered_otherwise(lab: NotebookNode, number: str) -> set[str]:
    """The answers of the lab that other_answers_NN.py has."""
    return {answer_name(lab, other) for other in others(number)}


def with_others(names: dict, number: str) -> dict:
    """What the lab's cells define, and the other answers."""
    defined = dict(names)
    exec(compile(_tree(number), str(_file(number)), "exec"), defined)
    return defined


def differences(lab: NotebookNode, names: dict, number: str, other: str, seed: str) -> list[str]:
    """The checks that print something else for `other` than for the worked answer, or for a judge of what it did."""
    name, tried, different = answer_name(lab, other), with_others(names, number), []
    tried[name] = tried[other]
    with mock.patch.dict(os.environ, WORKBOOK_SEED=seed):
        for check in _answers(lab)[name].checks:
            right, found = _ran(check.source, dict(names)), _ran(check.source, dict(tried))
            judged = weighed(lab, names, check.id, answers(found)) if lab_cells.is_judged(check) else found
            if not without_answers(right) == without_answers(found) == without_answers(judged):
                different.append(check.id)
    return different


def _ran(source: str, defined: dict) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(source, defined)
    return out.getvalue()


def _answers(lab: NotebookNode) -> dict[str, lab_cells.Exercise]:
    """The exercises by the names that their answers define."""
    found = {}
    for exercise in lab_cells.exercises(lab):
        for cell in exercise.answers:
            found |= {node.name: exercise for node in ast.parse(cell.source).body}
    return found


def _file(number: str) -> Path:
    return Path(__file__).with_name(f"other_answers_{number}.py")


def _tree(number: str) -> ast.Module:
    return ast.parse(_file(number).read_text("utf-8"))
