"""One submission, start to end: read, assemble, run, judge, and put into words; whatever happens, a row comes out."""

from __future__ import annotations

import copy
import hashlib
import time
from dataclasses import dataclass, replace

from nbformat import NotebookNode, v4

from ...course import lab_cells
from ..intake.assemble import Assembly, assemble
from ..intake.reading import Unreadable
from ..intake.submissions import LearnerNotebook
from ..sandbox.nbval_run import CellResults
from ..sandbox.worker import Worker
from .check_kernel import reached_in, replaced_in, spoken_for
from .reference import Reference, cells_of, private_questions
from .results import (
    ATTENTION,
    GRADED,
    NOT_SUBMITTED,
    UNREADABLE,
    GradedQuestion,
    Result,
    cells_that_ended_the_kernel,
    questions_of,
)
from .tamper_checks import signs_of_tampering

# Outcomes that may be the grader's limits rather than the answer's fault, and what an instructor should know.
_LOOK_AT = {
    "missing": "an answer cell was not found",
    "hung": "an answer ran into the time limit",
    "died": "an answer ended the kernel",
    "flooded": "an answer printed too much",
    "not reached": "the time was over before every check had run",
}
_SPOKEN_FOR = "an answer sent what only the grader sends: nothing is taken from the question in which it did"


@dataclass(frozen=True)
class Marked:
    """A learner's row, and the notebook as it was run (None when there was none to run)."""

    result: Result
    executed: NotebookNode | None


def mark(worker: Worker, reference: Reference, submission: LearnerNotebook, slug: str, strict: bool = False) -> Marked:
    """Grade one submission. SandboxError when the grader's own machinery failed, and nothing else.

    With `strict` whatever the learner is warned of (a cell found twice, a file chosen among two) needs attention.
    """
    start = time.monotonic()
    digest = fingerprint(reference, submission)
    base = replace(_row(submission, slug, UNREADABLE), fingerprint=digest)
    if submission.path is None:
        return Marked(_without_answers(base, reference, submission.reason), None)
    try:
        submitted = worker.read(submission.path)
    except Unreadable as error:
        return Marked(_without_answers(base, reference, str(error)), None)
    assembly = assemble(reference.notebook, submitted)
    warnings = (*submission.warnings, *assembly.warnings)
    if not assembly.is_this_lab:
        reason = "not one answer cell of this lab is in it: another lab, or its cells have lost their names"
        base = replace(base, status=ATTENTION, warnings=warnings)
        return Marked(_without_answers(base, reference, reason), None)
    cells = cells_of(worker, reference, assembly.notebook)
    warnings += cells_that_ended_the_kernel(assembly, cells)
    questions = questions_of(reference.notebook, assembly, cells) + _private(worker, reference, assembly)
    outcomes = {one.outcome for one in questions}
    reasons = tuple(words for outcome, words in _LOOK_AT.items() if outcome in outcomes)
    reasons += signs_of_tampering(reference.notebook, assembly.notebook) + _replaced(cells)
    reasons += tuple(sorted({words for result in cells.values() for words in reached_in(result)}))
    reasons += (_SPOKEN_FOR,) * spoken_for(reference.notebook, cells)
    reasons += warnings if strict else ()
    status = ATTENTION if reasons else GRADED
    seconds = round(time.monotonic() - start, 2)
    row = replace(base, status=status, questions=questions, reasons=reasons, warnings=warnings, seconds=seconds)
    return Marked(row, executed(assembly.notebook, cells))


def _replaced(cells: CellResults) -> tuple[str, ...]:
    names = sorted({name for result in cells.values() for name in replaced_in(result)})
    return tuple(f"an answer replaced {name}, which is given: it was put back" for name in names)


def failed(reference: Reference, submission: LearnerNotebook, slug: str, error: Exception) -> Marked:
    """The row of a submission that the grader could not grade, through no fault of the learner's."""
    words = (str(error).splitlines() or [""])[0]
    reason = f"the grader failed here, grade it again: {type(error).__name__}: {words}"
    return Marked(_without_answers(_row(submission, slug, ATTENTION), reference, reason), None)


def blank(reference: Reference, submission: LearnerNotebook, slug: str) -> Result:
    """The row of a submission that nobody has looked at: every question, and no points."""
    row = replace(_row(submission, slug, ATTENTION), warnings=())
    return _without_answers(row, reference, "not graded yet")


def not_submitted(reference: Reference, submission: LearnerNotebook) -> Result:
    """The row of a learner of the roster who handed in nothing: every question, no points, nothing to look at."""
    row = _row(submission, submission.slug, NOT_SUBMITTED)
    questions = tuple(
        replace(one, outcome=NOT_SUBMITTED, message="") for one in blank(reference, submission, row.slug).questions
    )
    return replace(row, questions=questions, reasons=(submission.reason,))


def fingerprint(reference: Reference, submission: LearnerNotebook) -> str:
    """Equal when grading again would give the same: the file, its reason, and all that is in the reference's digest."""
    parts = [reference.digest, submission.learner, submission.digest, submission.reason, *submission.warnings]
    return hashlib.sha256("\n".join(parts).encode("utf-8", "surrogatepass")).hexdigest()


def _row(submission: LearnerNotebook, slug: str, status: str) -> Result:
    """Whose row it is, and nothing graded."""
    return Result(
        submission.learner,
        slug,
        status,
        questions=(),
        warnings=submission.warnings,
        number=submission.number,
        email=submission.email,
    )


def _without_answers(row: Result, reference: Reference, reason: str) -> Result:
    """The row with every question at nothing, because there was no notebook to run."""
    none = {lab_cells.grade_id(cell): "missing" for cell in reference.notebook.cells if lab_cells.is_answer(cell)}
    public = questions_of(reference.notebook, Assembly(reference.notebook, none, ()), {})
    found = public + (private_questions(reference.private, {}) if reference.private else ())
    message = f"nothing could be graded: {reason}"
    questions = tuple(replace(one, outcome="missing", message=message) for one in found)
    return replace(row, questions=questions, reasons=(reason,))


def executed(notebook: NotebookNode, cells: CellResults) -> NotebookNode:
    """The assembled notebook with what its cells showed: text and pictures, no HTML, no scripts."""
    shown = copy.deepcopy(notebook)
    for cell in shown.cells:
        if cell.cell_type == "code":
            outputs = cells[cell.id].outputs if cell.id in cells else ()
            cell.outputs, cell.execution_count = [v4.new_output(**output) for output in outputs], None
    return shown


def _private(worker: Worker, reference: Reference, assembly: Assembly) -> tuple[GradedQuestion, ...]:
    """The private checks' questions, from a second kernel whose output goes no further than here."""
    if reference.private is None:
        return ()
    return private_questions(reference.private, cells_of(worker, reference, assembly.notebook, private=True))
