"""`workbook release`: write labs/ from solutions/, and labs/chapters/ from notebooks/, as learners open them.

In a lab answers are replaced by stubs and hidden checks removed, see `stubs`; a chapter, its companion and the appendix
are cleared, see `copies`.
"""

from __future__ import annotations

import copy
import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path

from nbformat import NotebookNode

from . import lab_cells
from . import notebook as nb
from .address import FOLDED, for_lab, stamped_with
from .copies import GENERATOR, cleared, is_touched, relinked
from .notebook import BOOK, CLEARED_BOOK, LABS, home
from .stubs import HIDDEN, SOLUTION, bad_marks, stub, without_hidden

OUT_OF_SIGHT = (lab_cells.APPARATUS, lab_cells.REFERENCE)  # folded, as checks are: a learner reads what they print


def release(root: Path, check: bool = False) -> int:
    """Write the twin of every solutions/NN_*.ipynb into labs/, of every chapter, companion and of the
    appendix into labs/chapters/; 0 when done.

    With `check` nothing is written: 1, and the names, when a twin differs from its source or has none.
    A twin in which somebody wrote is never overwritten: it is named, and 1 returned. WorkbookError for a source
    that cannot be released (unbalanced marks, an empty region, missing or repeated grade_id).
    """
    twins = {root / path: twin for path, twin in _twins(root)}
    if check:
        return _compare(twins, root)
    kept = [path for path in twins if path.exists() and _is_somebodys(nb.read(path))]
    for path in kept:
        name = path.relative_to(root)
        print(f"✗ {name} holds answers and was kept: move it away, then release", file=sys.stderr)
    for path, twin in twins.items():
        if path not in kept:
            path.parent.mkdir(parents=True, exist_ok=True)
            print(f"✓ {path.relative_to(root)}: {'written' if nb.write(path, twin) else 'unchanged'}")
    return 1 if kept else 0


def _twins(root: Path) -> Iterator[tuple[str, NotebookNode]]:
    """Everything that is released: where it belongs, and what it is."""
    for path in nb.find_all(root, ["solutions"]):
        yield f"{LABS}/{path.name}", released(nb.read(path), f"solutions/{path.name}")
    for path in nb.find_all(root, BOOK):
        source = path.relative_to(root).as_posix()
        yield home(source), cleared(nb.read(path), source)


def _is_somebodys(twin: NotebookNode) -> bool:
    own = twin.metadata.get("workbook", {})
    return is_touched(twin) if "given" in own else has_answers(twin)


def released(solution: NotebookNode, source: str) -> NotebookNode:
    """The lab of one worked notebook; `source` is its path, for the lab's metadata, its links, and for errors."""
    lab_cells.require_ids(solution, source)
    lab_cells.exercises(solution)
    lab = copy.deepcopy(solution)
    own, address = dict(lab.metadata.get("workbook", {})), stamped_with(lab)
    for cell in lab.cells[:1]:
        cell.source = for_lab(cell.source, Path(source).name)
    for cell in lab.cells:
        where = f"{source}, cell {lab_cells.grade_id(cell) or cell.get('id')!r}"
        if lab_cells.is_answer(cell):
            cell.source = f"{lab_cells.anchor(lab_cells.grade_id(cell))}\n{stub(cell.source, where)}"
            cell.outputs, cell.execution_count = [], None
        elif lab_cells.is_check(cell):
            cell.source = without_hidden(cell.source, where)
            cell.metadata.update(FOLDED)
        elif lab_cells.role(cell) in OUT_OF_SIGHT:
            cell.metadata.update(FOLDED)
        elif cell.cell_type == "markdown":
            cell.source = relinked(cell.source, source, home(f"{LABS}/{Path(source).name}"), address)
        if any(mark in cell.source for mark in SOLUTION + HIDDEN):
            raise bad_marks(where, "a mark in a cell that may not have it")
    stubs = {lab_cells.grade_id(cell): _digest(cell.source) for cell in lab.cells if lab_cells.is_answer(cell)}
    lab.metadata["workbook"] = own | {"generator": GENERATOR, "source": source, "stubs": stubs}
    return lab


def has_answers(lab: NotebookNode) -> bool:
    """True when an answer cell is not the stub that was released: somebody's work, which nothing may overwrite."""
    stubs = lab.metadata.get("workbook", {}).get("stubs", {})
    answers = (cell for cell in lab.cells if lab_cells.is_answer(cell))
    return any(_digest(cell.source) != stubs.get(lab_cells.grade_id(cell)) for cell in answers)


def _digest(source: str) -> str:
    return hashlib.sha256(source.strip().encode()).hexdigest()[:16]


def _compare(twins: dict[Path, NotebookNode], root: Path) -> int:
    stored = {path: path.read_text("utf-8") if path.exists() else None for path in twins}
    stale = [path for path, twin in twins.items() if stored[path] != nb.text(twin)]
    orphans = [path for path in nb.find_all(root, [LABS, *CLEARED_BOOK]) if path not in twins]
    for path in stale:
        print(f"✗ {path.relative_to(root)} differs from its source", file=sys.stderr)
    for path in orphans:
        print(f"✗ {path.relative_to(root)} has no source: delete it", file=sys.stderr)
    if stale:
        print("to repair: workbook release", file=sys.stderr)
    return 1 if stale or orphans else 0
