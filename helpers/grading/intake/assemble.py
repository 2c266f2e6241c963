"""Put a learner's answers into the pristine reference: pure functions, one notebook out.

The reference brings its check cells, tags, counts and stored outputs; the learner brings answers and any cells of
their own. What the learner did to a check cell, to its points or to a stored output is left behind.
"""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass
from typing import NamedTuple

from nbformat import NotebookNode, v4

from ...course import lab_cells
from ...course.stubs import stub
from .reading import Cell, Submitted

_ANCHOR = re.compile(r"#\s*answer:\s*(\S+)")


@dataclass(frozen=True)
class Assembly:
    """The notebook to run; each answer's state ('written', 'untouched', 'empty', 'missing'); warnings."""

    notebook: NotebookNode
    answers: dict[str, str]
    warnings: tuple[str, ...]

    @property
    def is_this_lab(self) -> bool:
        """False when not one answer cell of the lab was found."""
        return any(state != "missing" for state in self.answers.values())


def assemble(reference: NotebookNode, submitted: Submitted) -> Assembly:
    """`reference` (a worked lab with stored outputs) with the answers of `submitted`.

    Cells are matched by grade_id, then cell id, then Colab's id, then the answer's anchor comment. An answer in parts
    is joined in order, with a warning; of several tries the last above the cells that ask and check it counts, as it
    does for who runs the notebook. A code cell that the reference does not have, a given cell that was changed, and an
    earlier try run after the last cell matched before them. A missing answer becomes the stub, so that its check fails
    by itself.
    """
    matched, extras = _match(reference, submitted)
    cells, states, warnings = [], {}, [*submitted.warnings]
    for cell in copy.deepcopy(reference).cells:
        if lab_cells.is_answer(cell):
            found = matched.get(cell.id, [])
            tries, parts = _told_apart(cell, found)
            key = lab_cells.grade_id(cell)
            if len(found) > 1:
                how = "joined in order" if len(parts) == len(found) else "the last one above its checks counts"
                warnings.append(f"answer {key!r} was found {len(found)} times: {how}")
            cells += [_own(one, f"{cell.id}-{number}") for number, one in enumerate(tries)]
            states[key] = _fill(cell, parts)
        cells += [cell, *extras.get(cell.id, [])]
    notebook = copy.deepcopy(reference)
    notebook.cells = [*extras.get(None, []), *cells]
    return Assembly(notebook, states, tuple(warnings))


def _told_apart(answer: NotebookNode, found: list[_Found]) -> tuple[list[Cell], list[Cell]]:
    """(Tries, to be run before the answer; its parts, in order.) A try defines what is asked for, as a later one does.

    One that stands below the cells that weigh the answer is kept and not run, where one above them defines it.
    """
    names = "|".join(map(re.escape, lab_cells.names_of([answer])))
    defines = re.compile(rf"^(?:(?:async def|def|class) (?:{names})\b|(?:{names}) *=[^=])", re.MULTILINE)
    defining = [one for one in found if defines.search(one.cell.source)]
    above = [one for one in defining if not one.is_below and not _is_untouched(answer, one.cell)]
    counts = next(reversed(above or defining), None)
    tries = [one.cell for one in defining if one is not counts and not one.is_below]
    return tries, [one.cell for one in found if one is counts or one not in defining]


def _is_untouched(answer: NotebookNode, part: Cell) -> bool:
    return _without_anchor(part.source) == _without_anchor(stub(answer.source))


def _own(cell: Cell, number: int | str) -> NotebookNode:
    return v4.new_code_cell(without_marks(cell.source), id=f"learner-{number}")


def without_marks(source: str) -> str:
    """`source` with nbval's comment marks blanked: a learner's `# NBVAL_SKIP` must not switch a check off.

    >>> without_marks("# NBVAL_IGNORE_OUTPUT\\nx = 1")
    '\\nx = 1'
    """
    from nbval.plugin import comment_markers

    lines = source.splitlines()  # as nbval splits, so that no exotic line end hides a mark
    return "\n".join("" if _comment(line) in comment_markers else line for line in lines)


def _comment(line: str) -> str:
    return line.strip().lstrip("#").strip() if line.strip().startswith("#") else ""


class _Found(NamedTuple):
    """A learner's cell for one of the reference's, and whether it stands below the cells that weigh it."""

    cell: Cell
    is_below: bool


def _match(
    reference: NotebookNode, submitted: Submitted
) -> tuple[dict[str, list[_Found]], dict[str | None, list[NotebookNode]]]:
    """Per reference cell id: the learner's cells for it, and their own to run after it (None: first)."""
    by_grade = {lab_cells.grade_id(cell): cell for cell in reference.cells if lab_cells.grade_id(cell)}
    by_id = {cell.id: cell for cell in reference.cells}
    weighed_by = {
        cell.id: [answer.id for answer in one.answers]
        for one in lab_cells.exercises(reference)
        for cell in (*one.asks, *one.checks)
    }
    matched: dict[str, list[_Found]] = {}
    extras: dict[str | None, list[NotebookNode]] = {}
    after, weighed = None, set[str]()
    for number, cell in enumerate(submitted.cells):
        found = by_grade.get(cell.grade_id or ""), by_id.get(cell.id or ""), by_id.get(cell.colab_id or "")
        mine = next((one for one in found if one is not None), None) or by_grade.get(_anchored(cell))
        if mine is not None and mine.cell_type == cell.type:
            after = mine.id
            matched.setdefault(mine.id, []).append(_Found(cell, mine.id in weighed))
            weighed |= matched.keys() & weighed_by.get(mine.id, ())
        if cell.type == "code" and cell.source.strip() and _is_extra(cell, mine):
            extras.setdefault(after, []).append(_own(cell, number))
    return matched, extras


def _anchored(cell: Cell) -> str:
    """The answer that the cell's first line says it is, or ''."""
    found = _ANCHOR.match(cell.source.lstrip())
    return found[1] if found and cell.type == "code" else ""


def _is_extra(cell: Cell, mine: NotebookNode | None) -> bool:
    """True for the learner's own cell, and for a given one they changed (an import added, say)."""
    if mine is None:
        return not cell.is_check
    return lab_cells.is_given(mine) and not lab_cells.role(mine) and mine.source.strip() != cell.source.strip()


def _fill(cell: NotebookNode, found: list[Cell]) -> str:
    """Put the learner's cells into the reference's answer cell, in place; how the answer was."""
    untouched = stub(cell.source)
    source = "\n\n".join(without_marks(part.source) for part in found).strip("\n")
    # No count and no outputs: nbval never compares an answer cell, only the check that follows.
    cell.source, cell.outputs, cell.execution_count = source or untouched, [], None
    if not found:
        return "missing"
    written = _without_anchor(source)
    if not written:
        return "empty"
    return "untouched" if written == untouched.strip() else "written"


def _without_anchor(source: str) -> str:
    return _ANCHOR.sub("", source.strip(), count=1).strip() if _ANCHOR.match(source.strip()) else source.strip()
