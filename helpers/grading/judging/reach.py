"""What answers come back to: of the cells of a learner's own, the statements that an answer's names lead to.

Whatever else such a cell does is over when it has run: a look at one's memory, notes in a file, a plot.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Set

from ...course import lab_cells
from .reading import at_import_of, globals_read, names_outside, python, tree

# By these a name is bound that no text names: then it may be anything's.
_BINDERS = {"exec", "eval", "compile", "globals", "locals", "vars", "setattr", "get_ipython", "_shell", "run_cell"}
_BINDERS |= {"push", "user_ns", "__dict__", "__globals__", "f_locals", "f_globals", "f_back", "*"}


def part_with(source: str, names: Set[str]) -> str:
    """The statements of a cell in which one of these names is bound, changed or read."""
    lines = python(source).split("\n")
    kept = [one for one in tree(source).body if names & (names_outside(one) | _binds(one).keys())]
    return "\n".join(line for one in kept for line in lines[one.lineno - 1 : one.end_lineno])


def leading_to(own: Iterable[str], answers: Iterable[str], known: Set[str]) -> set[str] | None:
    """The names by which answers come back to what cells of one's own do. A module's is none: its content is its own.

    None where they read one that nobody binds, nor is in `known`, and some cell may bind names by text.
    """
    bound: dict[str, set[str]] = {}
    by_text, free = False, set[str]()
    for source in own:
        free |= globals_read(source)
        words = {getattr(node, "attr", getattr(node, "id", "")) for node in ast.walk(tree(source))}
        for statement in tree(source).body:
            for name, module in _binds(statement).items():
                bound.setdefault(name, set()).update(() if module else {name, *names_outside(statement)})
                words.add(name)
        by_text = by_text or not words.isdisjoint(_BINDERS)
    waiting = {name for source in answers for name in globals_read(source)}
    free |= waiting
    found: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in bound and name not in found:
            found.add(name)
            waiting |= bound[name]
        elif name in free and name not in bound and name not in known and by_text:
            return None
    return {name for name in found if bound[name]}


def _binds(statement: ast.stmt) -> dict[str, bool]:
    """The names that a statement binds outside of functions, and whether each is a module's."""
    found: dict[str, bool] = {}
    for node in at_import_of(statement):
        if isinstance(node, ast.Import):
            found |= {(one.asname or one.name).partition(".")[0]: True for one in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {one.asname or one.name: False for one in node.names}
        elif isinstance(node, lab_cells.DEFINITION):
            found[node.name] = False
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found[node.id] = False
    return found
