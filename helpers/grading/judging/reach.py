"""What answers come back to: of a learner's cells, the statements that the names asked for lead to.

Whatever else such a cell does is over when it has run: a look at one's memory, notes in a file, a plot.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator, Set
from typing import NamedTuple

from ...course import lab_cells
from .reading import at_import_of, globals_read, names_outside, python, tree
from .steady import steady, used_but_as_told

# By these a name is bound that no text names: then it may be anything's.
_BINDERS = {"exec", "eval", "compile", "globals", "locals", "vars", "setattr", "get_ipython", "run_cell"}
_BINDERS |= {"push", "user_ns", "__dict__", "__globals__", "f_locals", "f_globals", "f_back", "*"}
_BINDERS |= {"builtins", "__builtins__", "run_line_magic", "run_cell_magic"}
_OF_OBJECTS = {"exec", "eval", "compile"}  # as a method they bind nothing: model.eval(), re.compile()


class Reach(NamedTuple):
    """The names by which answers come back to what a learner's cells do, None for any; the steady ones."""

    names: set[str] | None
    steady: set[str]


def part_with(source: str, names: Set[str], steady: Set[str]) -> str:
    """The statements of a cell in which one of these names is bound, changed or read.

    Of those that are `steady` a call is neither: what it is given is gone when it returns.
    """
    lines = python(source).split("\n")
    kept = [one for one in tree(source).body if names & (_mentioned(one, names & steady) | _binds(one).keys())]
    return "\n".join(line for one in kept for line in lines[_first(one) - 1 : one.end_lineno])


def leading_to(own: Iterable[str], answers: Iterable[str], known: Set[str], asked: Set[str]) -> Reach:
    """What the names `asked` come back to in a learner's cells.

    A module's name is none: its content is its own. None where they read a name that nobody binds, nor is in `known`,
    and some cell may bind names by text. Of `answers` that bind nothing that is asked for, all counts.
    """
    bound: dict[str, set[str]] = {}
    said: dict[str, list[ast.stmt]] = {}  # by name: what binds it
    by_text, free, waiting = False, set[str](), {*asked}
    for source in [*own, *answers]:
        free |= globals_read(source)
        words = {node.id for node in ast.walk(tree(source)) if isinstance(node, ast.Name)}
        words |= {node.attr for node in ast.walk(tree(source)) if isinstance(node, ast.Attribute)} - _OF_OBJECTS
        for statement in tree(source).body:
            for name, module in _binds(statement).items():
                bound.setdefault(name, set()).update(() if module else {name, *names_outside(statement)})
                said.setdefault(name, []).append(statement)
                words.add(name)
        by_text = by_text or not words.isdisjoint(_BINDERS)
    waiting |= {name for source in answers for name in _named_again(source)}
    waiting |= {name for source in answers if not binds_any(source, asked) for name in globals_read(source)}
    found: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in bound and name not in found:
            found.add(name)
            waiting |= bound[name]
        elif name in free and name not in bound and name not in known and by_text:
            return Reach(None, set())
    return Reach({name for name in found if bound[name]}, steady(said, known - said.keys()))


def binds_any(source: str, names: Set[str]) -> bool:
    """Whether a cell binds one of these names at its top level."""
    return any(not names.isdisjoint(_binds(statement)) for statement in tree(source).body)


def _named_again(source: str) -> Iterator[str]:
    """The names that an answer's cell gives other names, or to what is in them: `last = KEPT[0]`."""
    for statement in tree(source).body:
        value = statement.value if isinstance(statement, ast.Assign) else None
        while isinstance(value, ast.Attribute | ast.Subscript):
            value = value.value
        if isinstance(value, ast.Name):
            yield value.id


def _mentioned(statement: ast.stmt, steady: Set[str]) -> set[str]:
    """The names that a statement reads or binds; of steady ones those that it uses otherwise than by a call."""
    names = names_outside(statement)
    return names - (steady - used_but_as_told(statement)) if names & steady else names


def _first(statement: ast.stmt) -> int:
    """Its first line, decorators included."""
    return min([statement.lineno, *(one.lineno for one in getattr(statement, "decorator_list", ()))])


def _binds(statement: ast.stmt) -> dict[str, bool]:
    """The names that a statement binds outside of functions, or in one as global, and whether each is a module's."""
    found: dict[str, bool] = {}
    for node in at_import_of(statement):
        if isinstance(node, ast.Import):
            found |= {(one.asname or one.name).partition(".")[0]: True for one in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {name: False for one in node.names for name in _imported(node.module, one)}
        elif isinstance(node, lab_cells.DEFINITION):
            found[node.name] = False
        else:
            found |= dict.fromkeys(_bound_by(node), False)
    return found | {name: False for node in ast.walk(statement) if isinstance(node, ast.Global) for name in node.names}


def _bound_by(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
        yield node.name
    elif isinstance(node, ast.MatchMapping) and node.rest:
        yield node.rest


def _imported(module: str | None, alias: ast.alias) -> Iterable[str]:
    """The names that an import binds: for `*` those of Python's own module, where it is one that is loaded here."""
    loaded = sys.modules.get(module or "") if alias.name == "*" and module in sys.stdlib_module_names else None
    if loaded is None:
        return [alias.asname or alias.name]
    return getattr(loaded, "__all__", None) or [name for name in vars(loaded) if not name.startswith("_")]
