"""The lint's two rules about guesses: each stands alone in its cell, and each meets its answer in a later one."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

ASKED = ("predict", "choose", "claims.read")  # a number, one of a few, a verdict on a claim
MET = ("compare", "settle", "claims.trial")


def broken(cells: Iterable[tuple[str, list[ast.stmt]]]) -> Iterator[tuple[str, str]]:
    """Each broken rule of a chapter, as (rule, message). `cells` are its code cells, as (id, statements).

    A guess is asked for by `g = predict(...)`, `g = choose(...)` or `v = claims.read(...)`, alone, or its answer is on
    the screen before the reader has thought. It is met where a later cell hands it to `compare(..., you=g)`, to
    `settle(..., you=g)` or to `claims.trial(..., you=v)`, before its name is taken again.
    """
    waiting: dict[str, str] = {}
    for cell, body in cells:
        for met in names_met(body):
            waiting.pop(met, None)
        asking = [statement for statement in body if called(statement) & {*ASKED}]
        if beside := [ast.unparse(one) for one in body if asking and not (called(one) and called(one) <= {*ASKED})]:
            yield "predict-alone", f"cell {cell}: a prediction stands alone in its cell, here with {beside[0]!r}"
        for name in map(kept_as, asking):
            if name in waiting or not name:
                yield _unmet(waiting.get(name, cell), name)
            if name:
                waiting[name] = cell
    yield from (_unmet(cell, name) for name, cell in waiting.items())


def _unmet(cell: str, name: str) -> tuple[str, str]:
    name = name or "a guess without a name"
    do = "write compare(..., you=...), settle(..., you=...) or claims.trial(..., you=...) in a later cell"
    return "predict-compared", f"cell {cell}: {name} meets no answer: {do}"


def called(node: ast.AST) -> set[str]:
    """The functions that it calls, as they are written."""
    return {ast.unparse(each.func) for each in ast.walk(node) if isinstance(each, ast.Call)}


def kept_as(statement: ast.stmt) -> str:
    """The one name to which a statement assigns; '' for another statement."""
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    names = [target.id for target in targets if isinstance(target, ast.Name)]
    return names[0] if len(names) == len(targets) == 1 else ""


def names_met(body: list[ast.stmt]) -> set[str]:
    """The names that these statements hand to what answers a guess."""
    calls = [node for statement in body for node in ast.walk(statement) if isinstance(node, ast.Call)]
    nodes = [node for call in calls if ast.unparse(call.func) in MET for node in ast.walk(call)]
    return {node.id for node in nodes if isinstance(node, ast.Name)}
