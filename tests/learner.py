"""A pytest plugin for nbval: every chapter as learners leave it, in the kernel that runs it anyway.

    python -m pytest --nbval --nbval-current-env -p tests.learner notebooks

A chapter is stored with no guess and with every gap filled. After each cell that holds something of the learner's, a
guess, a verdict, a gap, or what is made of one, this plugin adds an item that runs those statements again as each of
LEFT would leave them. All other statements are the same in a learner's run, and have run already: so one run of a
chapter is several learners', at the price of one. No statement may raise, whatever the learner wrote.
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
from helpers.course.guesses import ASKED
from helpers.course.stubs import SOLUTION, stub

RAISE = re.compile(r'raise NotImplementedError\("write [\w.]+ here"\)')
REPLAY = """
import linecache
from copy import copy

from IPython import get_ipython
from IPython.utils.capture import capture_output

kept = vars(get_ipython()).setdefault("as_left", {})
for name, source in runs.items():
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
    "not a number": Left("float('nan')", "None", "raise SystemExit"),
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


def touched(cells: Iterable[NotebookNode]) -> Iterator[tuple[NotebookNode, list[int], set[str]]]:
    """Each cell that holds something of the learner's: it, the indexes of those statements, and the names so far.

    A statement is the learner's if it asks for a guess, has a gap, or reads a name that such a statement gave. A name
    that another statement gives is not theirs any more.
    """
    theirs: set[str] = set()
    for cell in cells:
        found = []
        for index, statement in enumerate(ast.parse(cell.source).body):
            if _asks(statement) or _has_gap(statement, cell.source) or _reads(statement) & theirs:
                found.append(index)
                theirs |= _gives(statement)
            else:
                theirs -= _gives(statement)
        if found:
            yield cell, found, set(theirs)


def replayed(cell: NotebookNode, indexes: list[int], theirs: set[str]) -> str:
    """The source that runs these statements of a cell as each of LEFT leaves them, silently, among names of their own.

    Names that are `theirs` are kept on the shell from cell to cell; all others are those of the notebook.
    """
    runs = {}
    for name, left in LEFT.items():
        body = ast.parse(as_left(cell.source, left)).body
        runs[f"cell {cell.id}, a learner who is {name}"] = "\n".join(ast.unparse(body[index]) for index in indexes)
    return f"exec({REPLAY!r}, dict(runs={runs!r}, theirs={sorted(theirs)!r}, real=globals()))"


def _asks(statement: ast.stmt) -> bool:
    return any(isinstance(node, ast.Call) and ast.unparse(node.func) in ASKED for node in ast.walk(statement))


def _has_gap(statement: ast.stmt, source: str) -> bool:
    lines = source.splitlines()[statement.lineno - 1 : statement.end_lineno]
    return any(line.strip() in SOLUTION for line in lines)


def _gives(statement: ast.stmt) -> set[str]:
    """The names that it binds for later statements, or changes an item of; a comprehension binds none."""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return {statement.name}
    parts = (
        node for node in ast.walk(statement) if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store)
    )
    return (_names(statement, ast.Store) - _own(statement)).union(*(_names(part.value, ast.Load) for part in parts))


def _reads(statement: ast.stmt) -> set[str]:
    """The names that it takes from earlier statements, not those of its own: of a loop, a comprehension, a function."""
    bound = set() if isinstance(statement, ast.Assign | ast.Expr | ast.Assert) else _names(statement, ast.Store)
    return _names(statement, ast.Load) - bound - _own(statement)


def _own(statement: ast.stmt) -> set[str]:
    nodes = list(ast.walk(statement))
    targets = [node.target for node in nodes if isinstance(node, ast.comprehension)]
    return {node.arg for node in nodes if isinstance(node, ast.arg)}.union(*(_names(one, ast.Store) for one in targets))


def _names(node: ast.AST, context: type[ast.expr_context]) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, context)}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """After each cell of a chapter that nbval runs, the learners' run of it."""
    for path in dict.fromkeys(item.path for item in items if type(item).__name__ == "IPyNbCell"):
        if path.parent.name == nb.CHAPTERS:
            mine = [item for item in items if item.path == path]
            code = [cell for _, cell in nb.code_cells(mine[0].parent.nb)]
            replays = {cell.id: replayed(cell, *rest) for cell, *rest in touched(code)}
            for item in mine:
                if item.cell.id in replays:
                    items.insert(items.index(item) + 1, _after(item, replays[item.cell.id]))


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
