"""Put a learner's answers into the pristine reference: pure functions, one notebook out.

The reference brings its check cells, tags, counts and stored outputs; the learner brings answers and any cells of
their own. What the learner did to a check cell, to its points or to a stored output is left behind.
"""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass

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

    Cells are matched by grade_id, then cell id, then Colab's id, then the answer's anchor comment. An answer found
    twice is joined in order, with a warning. A code cell that the reference does not have, or a given cell that was
    changed, runs after the last cell matched before it. A missing answer becomes the stub, so that its check fails by
    itself.
    """
    matched, extras = _match(reference, submitted)
    cells, states, warnings = [], {}, [*submitted.warnings]
    for cell in copy.deepcopy(reference).cells:
        if lab_cells.is_answer(cell):
            found = matched.get(cell.id, [])
            key = lab_cells.grade_id(cell)
            if len(found) > 1:
                warnings.append(f"answer {key!r} was found {len(found)} times: joined in order")
            states[key] = _fill(cell, found)
        cells += [cell, *extras.get(cell.id, [])]
    notebook = copy.deepcopy(reference)
    notebook.cells = [*extras.get(None, []), *cells]
    return Assembly(notebook, states, tuple(warnings))


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


def _match(
    reference: NotebookNode, submitted: Submitted
) -> tuple[dict[str, list[Cell]], dict[str | None, list[NotebookNode]]]:
    """Per reference cell id: the learner's cells for it, and their own to run after it (None: first)."""
    by_grade = {lab_cells.grade_id(cell): cell for cell in reference.cells if lab_cells.grade_id(cell)}
    by_id = {cell.id: cell for cell in reference.cells}
    matched: dict[str, list[Cell]] = {}
    extras: dict[str | None, list[NotebookNode]] = {}
    after = None
    for number, cell in enumerate(submitted.cells):
        found = by_grade.get(cell.grade_id or ""), by_id.get(cell.id or ""), by_id.get(cell.colab_id or "")
        mine = next((one for one in found if one is not None), None) or by_grade.get(_anchored(cell))
        if mine is not None and mine.cell_type == cell.type:
            after = mine.id
            matched.setdefault(mine.id, []).append(cell)
        if cell.type == "code" and cell.source.strip() and _is_extra(cell, mine):
            extra = v4.new_code_cell(without_marks(cell.source), id=f"learner-{number}")
            extras.setdefault(after, []).append(extra)
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
