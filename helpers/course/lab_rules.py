"""Rules of a lab's checks: a question is asked in the learner's kernel, and weighed where nothing of the learner's is.

An asking cell draws and calls, and knows no answer; a check weighs what came back, and calls nothing of the learner's.
So nothing that an answer can reach computes it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from nbformat import NotebookNode

from . import lab_cells

_INSIDE = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda


def broken(lab: NotebookNode) -> Iterator[tuple[str, str, str]]:
    """(cell, rule, message) for each rule that a lab's questions break."""
    exercises = lab_cells.exercises(lab)
    theirs = {name for exercise in exercises for name in lab_cells.names_of(exercise.answers)}
    for cell in lab.cells:
        yield from _of_a_role(cell, lab_cells.role(cell))
    for exercise in exercises:
        if not any("draw(" in ask.source for ask in exercise.asks):
            yield exercise.answers[0].id, "asks", "no cell after the answer draws inputs and asks it: role 'ask'"
        for ask in exercise.asks:
            yield from _of_an_ask(ask, theirs)
        for check in exercise.checks:
            yield from _of_a_check(check, theirs)


def _of_a_role(cell: NotebookNode, role: str) -> Iterator[tuple[str, str, str]]:
    if role and role not in lab_cells.ROLES:
        yield cell.id, "role", f"metadata.workbook.role is one of {', '.join(lab_cells.ROLES)}"
    elif role not in ("", lab_cells.ASK) and not cell.source.startswith(f"# {role}: "):
        yield cell.id, "role-said", f"begins with '# {role}: ' and what it is for: learners see no metadata"


def _of_an_ask(ask: NotebookNode, theirs: set[str]) -> Iterator[tuple[str, str, str]]:
    tree = lab_cells.parse(ask.source)
    if any(isinstance(node, ast.Assert) for node in ast.walk(tree)):
        yield ask.id, "ask-asserts", "an asking cell asserts nothing: what is right stands in the checks"
    if "reference" in _names(ast.walk(tree)):
        yield ask.id, "ask-refers", "an asking cell measures no reference: it would be there for answers"
    loose = _names(_called(tree)) & theirs
    if loose:
        yield ask.id, "ask-through", f"{min(loose)} is called through `asked` only, or by a function that is asked"


def _of_a_check(check: NotebookNode, theirs: set[str]) -> Iterator[tuple[str, str, str]]:
    called = _names(ast.walk(lab_cells.parse(check.source))) & (theirs | {"asked"})
    if called:
        yield check.id, "check-apart", f"names {min(called)}: a check weighs what the asking cell brought"
    if len(lab_cells.rubric(check)) != 1:
        yield check.id, "check-part", "a check is for one part of the question: one text in its rubric"


def _called(node: ast.AST) -> Iterator[ast.AST]:
    """What is called or looked into below, but for the bodies of the cell's own functions."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, _INSIDE):
            if isinstance(child, ast.Call):
                yield child.func
            elif isinstance(child, ast.Attribute | ast.Subscript):
                yield child.value
            yield from _called(child)


def _names(nodes: Iterable[ast.AST]) -> set[str]:
    return {node.id for node in nodes if isinstance(node, ast.Name)}
