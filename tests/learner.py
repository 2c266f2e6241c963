"""A pytest plugin for nbval: every chapter as learners leave it, in the kernel that runs it anyway.

    python -m pytest --nbval --nbval-current-env -p tests.learner notebooks

A chapter, and so a companion and the appendix, is stored with no guess and with every gap filled. After each cell that
holds something of the learner's, a guess, a verdict, a gap, or what is made of one, this plugin adds an item that runs
those statements again as each of LEFT would leave them. All other statements are the same in a learner's run, and have
run already: so one run of a chapter is several learners', at the price of one. No statement may raise, whatever the
learner wrote.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import pytest
from nbformat import NotebookNode, v4

from helpers.course import notebook as nb
from helpers.course.stubs import SOLUTION, stub

RAISE = re.compile(r'raise NotImplementedError\("write [\w.]+ here"\)')
SIMPLE = ast.Assign | ast.Expr | ast.Assert
REPLAY = """
import linecache
from copy import copy

from IPython import get_ipython
from IPython.utils.capture import capture_output

kept = vars(get_ipython()).setdefault("as_left", {})
for name, (source, theirs) in runs.items():
    learner = name.partition(", ")[2]
    own = {key: copy(value) if isinstance(value, dict | list) else value for key, value in real.items()}
    own |= {key: value for key, value in kept.get(learner, {}).items() if key in theirs}
    linecache.cache[name] = len(source), None, source.splitlines(keepends=True), name  # for the traceback
    with capture_output():
        exec(compile(source, name, "exec"), own)
    kept[learner] = {key: own[key] for key in theirs if key in own}
"""


class Left(NamedTuple):
    """What a learner writes: in place of a guess's None, of a verdict's, and of a gap's `raise` line ('' leaves it)."""

    guess: str
    verdict: str
    gap: str


LEFT = {
    "plausible": Left("7", "'holds'", ""),
    "nothing": Left("0", "'holds with conditions'", "return 0"),
    "a hundred times too much": Left("700.0", "'wrong'", "return -1.5"),
    "absurd": Left("10**400", "'Holds '", "return 10**400"),
    "refused": Left("'seven'", "'perhaps'", "return 'seven'"),
    "not a number": Left("float('nan')", "''", "raise SystemExit"),
}


def as_left(source: str, left: Left) -> str:
    """A chapter's cell as a learner leaves it.

    >>> as_left("guess = predict('the peak', guess=None)", LEFT["nothing"])
    "guess = predict('the peak', guess=0)"
    """
    if any(mark in source for mark in SOLUTION):
        source = stub(source)
    if left.gap:
        source = RAISE.sub(lambda _: left.gap, source)
    return source.replace("guess=None", f"guess={left.verdict if 'claims.read(' in source else left.guess}")


def run_again(cells: Iterable[NotebookNode], left: Left) -> Iterator[tuple[str, str, list[str]]]:
    """Of each cell that holds something of this learner's: its id, the source of those statements, and their names.

    A statement is the learner's if they left it otherwise, or if it reads a name that such a statement gave. A name
    that another statement gives is not theirs any more.
    """
    theirs: set[str] = set()
    for cell in cells:
        found = _theirs(ast.parse(cell.source).body, ast.parse(as_left(cell.source, left)).body, theirs)
        if found:
            yield cell.id, "\n".join(map(ast.unparse, found)), sorted(theirs)


def _theirs(stored: list[ast.stmt], left: list[ast.stmt], theirs: set[str]) -> list[ast.stmt]:
    """The learner's among these statements, of an `if` those inside; `theirs` is brought up to date."""
    found: list[ast.stmt] = []
    for before, after in zip(stored, left, strict=True):
        if isinstance(before, ast.If) and isinstance(after, ast.If) and not _reads(after.test) & theirs:
            body, other = _theirs(before.body, after.body, theirs), _theirs(before.orelse, after.orelse, theirs)
            found += [ast.If(after.test, body or [ast.Pass()], other)] if body or other else []
        elif ast.dump(before) != ast.dump(after) or _reads(after) & theirs:
            found.append(after)
            theirs |= _gives(after)
        else:
            theirs -= _gives(after)
    return found


def replay(runs: dict[str, tuple[str, list[str]]]) -> str:
    """What runs each of these sources, silently and among the notebook's names, as a cell.

    The learner's own names are kept on the shell from cell to cell, apart for each source's name after the comma.
    """
    return f"exec({REPLAY!r}, dict(runs={runs!r}, real=globals()))"


def _gives(statement: ast.stmt) -> set[str]:
    """The names that it binds for later statements, or changes an item of; a comprehension binds none."""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return {statement.name}
    parts = (
        node for node in ast.walk(statement) if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store)
    )
    return (_names(statement, ast.Store) - _own(statement)).union(*(_names(part.value, ast.Load) for part in parts))


def _reads(statement: ast.AST) -> set[str]:
    """The names that it takes from earlier statements, not those of its own: of a loop, a comprehension, a function."""
    bound = (
        set() if not isinstance(statement, ast.stmt) or isinstance(statement, SIMPLE) else _names(statement, ast.Store)
    )
    return _names(statement, ast.Load) - bound - _own(statement)


def _own(statement: ast.AST) -> set[str]:
    nodes = list(ast.walk(statement))
    targets = [node.target for node in nodes if isinstance(node, ast.comprehension)]
    return {node.arg for node in nodes if isinstance(node, ast.arg)}.union(*(_names(one, ast.Store) for one in targets))


def _names(node: ast.AST, context: type[ast.expr_context]) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, context)}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """After each cell of a chapter that nbval runs, the learners' run of it."""
    chapters = [item for item in items if type(item).__name__ == "IPyNbCell" and nb.in_book(item.path)]
    replays = {path: _replays(notebook) for path, notebook in {item.path: item.parent.nb for item in chapters}.items()}
    for item in chapters:
        if runs := replays[item.path].get(item.cell.id):
            items.insert(items.index(item) + 1, _after(item, replay(runs)))


def _replays(chapter: NotebookNode) -> dict[str, dict[str, tuple[str, list[str]]]]:
    """By cell, what `replay` takes."""
    code, runs = [cell for _, cell in nb.code_cells(chapter)], defaultdict(dict)
    for name, left in LEFT.items():
        for cell, source, theirs in run_again(code, left):
            runs[cell][f"cell {cell}, a learner who is {name}"] = source, theirs
    return runs


def _after(item: pytest.Item, source: str) -> pytest.Item:
    """nbval's item for one more cell, whose output is not compared."""
    cell, options = v4.new_code_cell(source), defaultdict(bool)
    name = f"{item.name}, as learners leave it"
    after = type(item).from_parent(item.parent, name=name, cell_num=item.cell_num, cell=cell, options=options)
    vars(after)["repr_failure"] = _without_replay
    return after


def _without_replay(failure: pytest.ExceptionInfo) -> str:
    """The learner's frames alone: those of what runs them say nothing."""
    lines = (getattr(failure.value, "inner_traceback", None) or str(failure.value)).splitlines()
    return "\n".join(line for line in lines if "exec(" not in line)
