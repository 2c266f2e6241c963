"""What stands between two marks in a worked cell, and what a learner finds in its place.

In an answer cell, and in a chapter's cell to fill in, what stands between `### BEGIN SOLUTION` and `### END SOLUTION`
becomes a stub that raises only when called, so that an untouched notebook runs and says what is missing:

    def twice(x):                     def twice(x):
        ### BEGIN SOLUTION                raise NotImplementedError("write twice here")
        return 2 * x             ->
        ### END SOLUTION

At module level each name that the region assigns becomes `name = None  # your answer`.
"""

from __future__ import annotations

import ast
import itertools
import textwrap

from ..catalog.errors import WorkbookError
from .lab_cells import DEFINITION, parse

SOLUTION = ("### BEGIN SOLUTION", "### END SOLUTION")
HIDDEN = ("### BEGIN HIDDEN TESTS", "### END HIDDEN TESTS")


def stub(answer: str, where: str = "answer") -> str:
    """The answer's source with each solution region replaced. WorkbookError when there is none, or a bad one.

    >>> print(stub("def twice(x):\\n    ### BEGIN SOLUTION\\n    return 2 * x\\n    ### END SOLUTION"))
    def twice(x):
        raise NotImplementedError("write twice here")
    """
    lines, regions = answer.splitlines(), _regions(answer, SOLUTION, where)
    if not regions:
        raise bad_marks(where, "no solution region")
    tree = _parse(answer, where)
    for begin, end in reversed(regions):
        lines[begin : end + 1] = _placeholder(tree, begin + 1, end + 1, _indent(lines[begin]), where)
    result = "\n".join(lines)
    _parse(result, f"{where} (its stub)")
    return result


def worked(answer: str, where: str = "answer") -> list[str]:
    """The lines that the stub leaves out, region by region, without their common indent."""
    lines = answer.splitlines()
    regions = _regions(answer, SOLUTION, where)
    return [textwrap.dedent("\n".join(lines[begin + 1 : end])) for begin, end in regions]


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
            raise bad_marks(where, f"{lines[index]!r} in line {index + 1} has no partner")
    return list(zip(marked[::2], marked[1::2], strict=True))


def _placeholder(tree: ast.Module, begin: int, end: int, indent: str, where: str) -> list[str]:
    """What replaces lines `begin`..`end` (from 1): a raise in a function, else each assigned name's None."""
    inside = [node for node in ast.walk(tree) if isinstance(node, ast.stmt) and begin < node.lineno < end]
    if not inside:
        raise bad_marks(where, f"the region at line {begin} is empty")
    if name := _enclosing_function(tree, begin, end):
        return [f'{indent}raise NotImplementedError("write {name} here")']
    targets = [target.id for node in inside for target in _targets(node) if isinstance(target, ast.Name)]
    if not targets:
        raise bad_marks(where, f"the region at line {begin} is in no function and assigns no name")
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
        raise bad_marks(where, f"line {error.lineno} is not Python ({error.msg})") from None


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def bad_marks(where: str, what: str) -> WorkbookError:
    """The error for marks that cannot be released."""
    return WorkbookError(
        f"{where}: {what}",
        f"{SOLUTION[0]!r} and {SOLUTION[1]!r} around each answer's code, {HIDDEN[0]!r} in checks only",
        "repair the marks in solutions/, then run: workbook release",
    )
