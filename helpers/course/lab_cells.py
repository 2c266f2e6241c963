"""What a lab's cells are: nbgrader's metadata (schema 3), read in one place, and the exercises they make.

An *answer cell* is the learner's (`solution: true`). What tries it has two halves, both ours and locked: *asking cells*
(`metadata.workbook.role` is "ask") draw inputs and call the answer, and *check cells* (`grade: true`, points) weigh
what came back, one for each part of the question. Reading down the notebook, answers, what asks and the checks that
follow them are an *exercise*; the nearest heading above is its title.

Every other code cell is given, and answers may use it, but for those of three roles. An "apparatus" is what asking
cells and checks use, and a graded answer cannot see. A "reference" is what checks compare with: it is not there when
answers run. A "demonstration" shows something, and nothing needs its names.
"""

from __future__ import annotations

import ast
import re
import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from nbformat import NotebookNode

from ..catalog.errors import WorkbookError

_ONE_PARSER_AT_A_TIME = threading.Lock()
DEFINITION = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
ASK, APPARATUS, REFERENCE, DEMONSTRATION = ROLES = "ask", "apparatus", "reference", "demonstration"
SCHEMA_KEYS = frozenset({"cell_type", "grade", "grade_id", "locked", "points", "schema_version", "solution", "task"})


@dataclass(frozen=True)
class Exercise:
    """One exercise of a lab: its title, its answer cells, the cells that ask, the check cells that grade, in order.

    `hint` is the first folded hint of its text, '' where there is none.
    """

    title: str
    answers: tuple[NotebookNode, ...] = ()
    asks: tuple[NotebookNode, ...] = ()
    checks: tuple[NotebookNode, ...] = ()
    hint: str = ""

    @property
    def points(self) -> float:
        """The sum of its checks' points."""
        return sum(points(check) for check in self.checks)


def grade_id(cell: NotebookNode) -> str:
    """The cell's nbgrader id, '' where it has none."""
    return _metadata(cell).get("grade_id") or ""


def is_answer(cell: NotebookNode) -> bool:
    """True for a code cell that the learner writes."""
    return cell.cell_type == "code" and bool(_metadata(cell).get("solution"))


def is_check(cell: NotebookNode) -> bool:
    """True for a code cell that grades an answer."""
    return cell.cell_type == "code" and bool(_metadata(cell).get("grade")) and not is_answer(cell)


def role(cell: NotebookNode) -> str:
    """What a cell of ours is for: one of ROLES, or '' for any other."""
    return str(cell.metadata.get("workbook", {}).get("role", "")) if cell.cell_type == "code" else ""


def is_ask(cell: NotebookNode) -> bool:
    """True for a code cell that draws inputs and calls the answers above it."""
    return role(cell) == ASK


def is_given(cell: NotebookNode) -> bool:
    """True for any other code cell of the lab: imports, functions, pictures."""
    return cell.cell_type == "code" and not (is_answer(cell) or is_ask(cell) or is_check(cell))


def names_of(answers: Iterable[NotebookNode]) -> list[str]:
    """What the worked answers define: a question asks for these names and no others."""
    return [node.name for cell in answers for node in parse(cell.source).body if isinstance(node, DEFINITION)]


def draws_of(ask: NotebookNode) -> list[str]:
    """The names that an asking cell draws by. WorkbookError where a name is computed, or drawn by twice."""
    calls = [node for node in ast.walk(parse(ask.source)) if isinstance(node, ast.Call)]
    named = [one.args for one in calls if isinstance(one.func, ast.Name) and one.func.id == "draw"]
    names = [str(args[0].value) for args in named if len(args) == 1 and isinstance(args[0], ast.Constant)]
    if len(names) < len(named) or len(set(names)) < len(names):
        what = f"{ask.id}: a name is computed, or drawn by twice, in {', '.join(map(repr, names)) or 'draw()'}"
        raise WorkbookError(what, 'draw("lab-02/mean"), each name once in a cell', "write the name out, once")
    return names


def bound_names(cell: NotebookNode) -> set[str]:
    """Every name that a cell of the lab defines, assigns or imports, inside its functions too."""
    nodes = list(ast.walk(parse(cell.source)))
    imports = [alias for node in nodes if isinstance(node, ast.Import | ast.ImportFrom) for alias in node.names]
    found = {(alias.asname or alias.name).partition(".")[0] for alias in imports}
    found |= {node.name for node in nodes if isinstance(node, DEFINITION)}
    return found | {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


def anchor(key: str) -> str:
    """The comment that a released answer begins with: by it the answer is found where an editor lost all metadata."""
    return f"# answer: {key}"


def rubric(check: NotebookNode) -> tuple[str, ...]:
    """What the check's points are for, in words."""
    return tuple(check.metadata.get("workbook", {}).get("rubric", ()))


def points(cell: NotebookNode) -> float:
    """What a check cell is worth; 0 for any other."""
    return _metadata(cell).get("points", 0)


def exercises(lab: NotebookNode) -> tuple[Exercise, ...]:
    """The lab's exercises in order. WorkbookError for an answer without a check, or the reverse."""
    found: list[Exercise] = []
    heading, text = "", ""
    for cell in lab.cells:
        if cell.cell_type == "markdown":
            heading, text = _heading(cell.source) or heading, cell.source
        elif is_answer(cell):
            if not found or found[-1].checks or found[-1].asks:
                found.append(Exercise(heading or grade_id(cell), hint=_hint(text)))
            found[-1] = replace(found[-1], answers=(*found[-1].answers, cell))
        elif is_ask(cell):
            if not found:
                raise _alone(cell, "an answer cell before it")
            found[-1] = replace(found[-1], asks=(*found[-1].asks, cell))
        elif is_check(cell):
            if not found:
                raise _alone(cell, "an answer cell before it")
            found[-1] = replace(found[-1], checks=(*found[-1].checks, cell))
    if found and not found[-1].checks:
        raise _alone(found[-1].answers[0], "a check cell after it")
    return tuple(found)


def require_ids(lab: NotebookNode, name: str) -> None:
    """WorkbookError unless every answer and check cell has a grade_id of its own."""
    ids = [grade_id(cell) for cell in lab.cells if is_answer(cell) or is_check(cell)]
    if "" in ids:
        what, do = f"{name}: an answer or check cell has no grade_id", "add metadata.nbgrader.grade_id to the cell"
        raise WorkbookError(what, "a grade_id in each one's nbgrader metadata", do)
    for key, count in sorted(Counter(ids).items()):
        if count > 1:
            what = f"{name}: grade_id {key!r} is used {count} times"
            raise WorkbookError(what, "a grade_id that is unique in its notebook", "rename all but one of them")


def parse(source: str) -> ast.Module:
    """`ast.parse(source)`. Python 3.11 counts the depth of all threads' trees in one place.

    So a tree that is made while another thread makes one may end in "SystemError: AST constructor recursion depth
    mismatch" (python/cpython#106905).
    """
    with _ONE_PARSER_AT_A_TIME:
        return ast.parse(source)


def _alone(cell: NotebookNode, missing: str) -> WorkbookError:
    what, do = f"cell {grade_id(cell)!r} stands alone", "add the missing cell, or remove the nbgrader metadata"
    return WorkbookError(what, f"{missing}: an exercise is answer cells, then cells that ask, then check cells", do)


def _metadata(cell: NotebookNode) -> dict[str, Any]:
    found = cell.metadata.get("nbgrader", {})
    return found if isinstance(found, dict) else {}


def _heading(source: str) -> str | None:
    return next((line.lstrip("#").strip() for line in source.splitlines() if line.startswith("#")), None)


def _hint(text: str) -> str:
    """The first folded part whose summary says that it is a hint, as plain text."""
    for summary, body in re.findall(r"<details>\s*<summary>(.*?)</summary>(.*?)</details>", text, re.DOTALL):
        if summary.strip().lower().startswith("hint"):
            return body.strip()
    return ""
