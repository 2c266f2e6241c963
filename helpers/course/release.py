"""`workbook release`: write labs/ from solutions/, answers replaced by stubs, hidden checks removed.

In an answer cell, what stands between `### BEGIN SOLUTION` and `### END SOLUTION` becomes a stub that raises
only when called, so that an untouched lab runs and its checks say what is missing:

    def twice(x):                     def twice(x):
        ### BEGIN SOLUTION                raise NotImplementedError("write twice here")
        return 2 * x             ->
        ### END SOLUTION

At module level each name that the region assigns becomes `name = None  # your answer`.
"""

from __future__ import annotations

import ast
import copy
import hashlib
import itertools
import sys
from pathlib import Path

from nbformat import NotebookNode

from ..catalog.errors import WorkbookError
from . import lab_cells
from . import notebook as nb
from .address import for_lab
from .lab_cells import DEFINITION, parse

GENERATOR = "workbook release"
SOLUTION = ("### BEGIN SOLUTION", "### END SOLUTION")
HIDDEN = ("### BEGIN HIDDEN TESTS", "### END HIDDEN TESTS")


def release(root: Path, check: bool = False) -> int:
    """Write the twin of every solutions/NN_*.ipynb into labs/; 0 when done.

    With `check` nothing is written: 1, and the names, when a twin differs from its source or has none.
    A lab that holds somebody's answers is never overwritten: it is named, and 1 returned. WorkbookError for a
    solution that cannot be released (unbalanced marks, an empty region, missing or repeated grade_id).
    """
    sources = nb.find_all(root, ["solutions"])
    twins = {root / "labs" / path.name: released(nb.read(path), f"solutions/{path.name}") for path in sources}
    if check:
        return _compare(twins, root)
    kept = [path for path in twins if path.exists() and has_answers(nb.read(path))]
    for path in kept:
        name = path.relative_to(root)
        print(f"✗ {name} holds answers and was kept: move it away, then release", file=sys.stderr)
    (root / "labs").mkdir(exist_ok=True)
    for path, twin in twins.items():
        if path not in kept:
            print(f"✓ {path.relative_to(root)}: {'written' if nb.write(path, twin) else 'unchanged'}")
    return 1 if kept else 0


def released(solution: NotebookNode, source: str) -> NotebookNode:
    """The lab of one worked notebook; `source` is its path, for the lab's metadata and for errors."""
    lab_cells.require_ids(solution, source)
    lab_cells.exercises(solution)
    lab = copy.deepcopy(solution)
    own = dict(lab.metadata.get("workbook", {}))
    for cell in lab.cells[:1]:
        cell.source = for_lab(cell.source, Path(source).name)
    for cell in lab.cells:
        where = f"{source}, cell {lab_cells.grade_id(cell) or cell.get('id')!r}"
        if lab_cells.is_answer(cell):
            cell.source = f"{lab_cells.anchor(lab_cells.grade_id(cell))}\n{stub(cell.source, where)}"
            cell.outputs, cell.execution_count = [], None
        elif lab_cells.is_check(cell):
            cell.source = without_hidden(cell.source, where)
        if any(mark in cell.source for mark in SOLUTION + HIDDEN):
            raise _bad_marks(where, "a mark in a cell that may not have it")
    stubs = {lab_cells.grade_id(cell): _digest(cell.source) for cell in lab.cells if lab_cells.is_answer(cell)}
    lab.metadata["workbook"] = own | {"generator": GENERATOR, "source": source, "stubs": stubs}
    return lab


def has_answers(lab: NotebookNode) -> bool:
    """True when an answer cell is not the stub that was released: somebody's work, which nothing may overwrite."""
    stubs = lab.metadata.get("workbook", {}).get("stubs", {})
    answers = (cell for cell in lab.cells if lab_cells.is_answer(cell))
    return any(_digest(cell.source) != stubs.get(lab_cells.grade_id(cell)) for cell in answers)


def stub(answer: str, where: str = "answer") -> str:
    """The answer's source with each solution region replaced. WorkbookError when there is none, or a bad one.

    >>> print(stub("def twice(x):\\n    ### BEGIN SOLUTION\\n    return 2 * x\\n    ### END SOLUTION"))
    def twice(x):
        raise NotImplementedError("write twice here")
    """
    lines, regions = answer.splitlines(), _regions(answer, SOLUTION, where)
    if not regions:
        raise _bad_marks(where, "no solution region")
    tree = _parse(answer, where)
    for begin, end in reversed(regions):
        lines[begin : end + 1] = _placeholder(tree, begin + 1, end + 1, _indent(lines[begin]), where)
    result = "\n".join(lines)
    _parse(result, f"{where} (its stub)")
    return result


def without_hidden(check: str, where: str = "check") -> str:
    """The check's source without its hidden tests."""
    lines = check.splitlines()
    for begin, end in reversed(_regions(check, HIDDEN, where)):
        del lines[begin : end + 1]
    result = "\n".join(lines).strip("\n")
    _parse(result, f"{where} (without its hidden tests)")
    return result


def _regions(source: str, marks: tuple[str, str], where: str) -> list[tuple[int, int]]:
    """The (begin, end) line indexes of each region, marks included."""
    lines = [line.strip() for line in source.splitlines()]
    marked = [index for index, line in enumerate(lines) if line in marks]
    for index, expected in zip(marked, itertools.cycle(marks), strict=False):
        if lines[index] != expected or (index == marked[-1] and expected == marks[0]):
            raise _bad_marks(where, f"{lines[index]!r} in line {index + 1} has no partner")
    return list(zip(marked[::2], marked[1::2], strict=True))


def _placeholder(tree: ast.Module, begin: int, end: int, indent: str, where: str) -> list[str]:
    """What replaces lines `begin`..`end` (from 1): a raise in a function, else each assigned name's None."""
    inside = [node for node in ast.walk(tree) if isinstance(node, ast.stmt) and begin < node.lineno < end]
    if not inside:
        raise _bad_marks(where, f"the region at line {begin} is empty")
    if name := _enclosing_function(tree, begin, end):
        return [f'{indent}raise NotImplementedError("write {name} here")']
    targets = [target.id for node in inside for target in _targets(node) if isinstance(target, ast.Name)]
    if not targets:
        raise _bad_marks(where, f"the region at line {begin} is in no function and assigns no name")
    return [f"{indent}{name} = None  # your answer" for name in dict.fromkeys(targets)]


def _enclosing_function(tree: ast.Module, begin: int, end: int) -> str:
    """The dotted name of the innermost function around these lines, '' where there is none."""
    named = (node for node in ast.walk(tree) if isinstance(node, DEFINITION))  # outer before inner
    around = [node for node in named if node.lineno < begin and end <= (node.end_lineno or 0) + 1]
    while around and isinstance(around[-1], ast.ClassDef):
        around.pop()
    return ".".join(node.name for node in around)


def _targets(node: ast.stmt) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        return [leaf for target in node.targets for leaf in getattr(target, "elts", [target])]
    return [node.target] if isinstance(node, ast.AnnAssign) else []


def _parse(source: str, where: str) -> ast.Module:
    try:
        return parse(source)
    except SyntaxError as error:
        raise _bad_marks(where, f"line {error.lineno} is not Python ({error.msg})") from None


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _digest(source: str) -> str:
    return hashlib.sha256(source.strip().encode()).hexdigest()[:16]


def _compare(twins: dict[Path, NotebookNode], root: Path) -> int:
    stored = {path: path.read_text("utf-8") if path.exists() else None for path in twins}
    stale = [path for path, twin in twins.items() if stored[path] != nb.text(twin)]
    orphans = [path for path in nb.find_all(root, ["labs"]) if path not in twins]
    for path in stale:
        print(f"✗ {path.relative_to(root)} differs from its source", file=sys.stderr)
    for path in orphans:
        print(f"✗ {path.relative_to(root)} has no source in solutions/: delete it", file=sys.stderr)
    if stale:
        print("to repair: workbook release", file=sys.stderr)
    return 1 if stale or orphans else 0


def _bad_marks(where: str, what: str) -> WorkbookError:
    return WorkbookError(
        f"{where}: {what}",
        f"{SOLUTION[0]!r} and {SOLUTION[1]!r} around each answer's code, {HIDDEN[0]!r} in checks only",
        "repair the marks in solutions/, then run: workbook release",
    )
