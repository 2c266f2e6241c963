"""One submission, start to end: read, assemble, run, judge, and put into words; whatever happens, a row comes out."""

from __future__ import annotations

import copy
import hashlib
import time
from dataclasses import dataclass, replace

from nbformat import NotebookNode, v4

from helpers.course import grading, report
from helpers.course.assemble import Assembly, assemble
from helpers.course.grade import private
from helpers.course.grade.bench import Bench
from helpers.course.grade.intake import Submission
from helpers.course.grade.model import ATTENTION, GRADED, UNREADABLE, Question, Result
from helpers.course.grade.paper import Paper, cells_of
from helpers.course.grade.reading import Unreadable
from helpers.course.grade.suspicion import suspicions
from helpers.course.run import CellResult
from helpers.course.trial import trial

# Outcomes that may be the grader's limits rather than the answer's fault, and what an instructor should know.
_LOOK_AT = {
    "missing": "an answer cell was not found",
    "hung": "an answer ran into the time limit",
    "died": "an answer ended the kernel",
    "flooded": "an answer printed too much",
    "not reached": "the time was over before every check had run",
}


@dataclass(frozen=True)
class Marked:
    """A learner's row, and the notebook as it was run (None when there was none to run)."""

    result: Result
    executed: NotebookNode | None


def mark(bench: Bench, paper: Paper, submission: Submission, slug: str, strict: bool = False) -> Marked:
    """Grade one submission. SandboxError when the grader's own machinery failed, and nothing else.

    With `strict` whatever the learner is warned of (a cell found twice, a file chosen among two) needs attention.
    """
    start = time.monotonic()
    base = Result(
        submission.learner,
        slug,
        UNREADABLE,
        (),
        warnings=submission.warnings,
        fingerprint=fingerprint(paper, submission),
    )
    if submission.path is None:
        return Marked(_without_answers(base, paper, submission.reason), None)
    try:
        submitted = bench.read(submission.path)
    except Unreadable as error:
        return Marked(_without_answers(base, paper, str(error)), None)
    assembly = assemble(paper.reference, submitted)
    warnings = (*submission.warnings, *assembly.warnings)
    if not assembly.is_this_lab:
        reason = "not one answer cell of this lab is in it: another lab, or its cells have lost their names"
        base = replace(base, status=ATTENTION, warnings=warnings)
        return Marked(_without_answers(base, paper, reason), None)
    cells = cells_of(bench, paper, assembly.notebook)
    warnings += report.elsewhere(assembly, cells)
    questions = report.questions(paper.reference, assembly, cells) + _private(bench, paper, assembly)
    reasons = [*_reasons(questions), *suspicions(paper.reference, assembly.notebook), *(warnings if strict else ())]
    status = ATTENTION if reasons else GRADED
    seconds = round(time.monotonic() - start, 2)
    row = replace(base, status=status, questions=questions, reasons=tuple(reasons), warnings=warnings, seconds=seconds)
    return Marked(row, executed(assembly.notebook, cells))


def failed(paper: Paper, submission: Submission, slug: str, error: Exception) -> Marked:
    """The row of a submission that the grader could not grade, through no fault of the learner's."""
    words = (str(error).splitlines() or [""])[0]
    reason = f"the grader failed here, grade it again: {type(error).__name__}: {words}"
    row = Result(submission.learner, slug, ATTENTION, (), warnings=submission.warnings)
    return Marked(_without_answers(row, paper, reason), None)


def blank(paper: Paper, submission: Submission, slug: str) -> Result:
    """The row of a submission that nobody has looked at: every question, and no points."""
    return _without_answers(Result(submission.learner, slug, ATTENTION, ()), paper, "not graded yet")


def fingerprint(paper: Paper, submission: Submission) -> str:
    """Equal when grading again would give the same: the file, its reason, and all that is in the paper's digest."""
    parts = [paper.digest, submission.learner, submission.digest, submission.reason, *submission.warnings]
    return hashlib.sha256("\n".join(parts).encode("utf-8", "surrogatepass")).hexdigest()


def _without_answers(row: Result, paper: Paper, reason: str) -> Result:
    """The row with every question at nothing, because there was no notebook to run."""
    none = {grading.grade_id(cell): "missing" for cell in paper.reference.cells if grading.is_answer(cell)}
    public = report.questions(paper.reference, Assembly(paper.reference, none, ()), {})
    found = public + (private.questions(paper.private, {}) if paper.private else ())
    message = f"nothing could be graded: {reason}"
    questions = tuple(replace(one, outcome="missing", message=message) for one in found)
    return replace(row, questions=questions, reasons=(reason,))


def executed(notebook: NotebookNode, cells: dict[str, CellResult]) -> NotebookNode:
    """The assembled notebook with what its cells showed: text and pictures, no HTML, no scripts."""
    shown = copy.deepcopy(notebook)
    for cell in shown.cells:
        if cell.cell_type == "code":
            outputs = cells[cell.id].outputs if cell.id in cells else ()
            cell.outputs, cell.execution_count = [v4.new_output(**output) for output in outputs], None
    return shown


def _private(bench: Bench, paper: Paper, assembly: Assembly) -> tuple[Question, ...]:
    """The private checks' questions, from a second kernel whose output goes no further than here."""
    if paper.private is None:
        return ()
    notebook = private.assembled(assembly.notebook, paper.private)
    cells = trial(bench.run, notebook, seed=paper.seed, wall_s=paper.wall_s)
    return private.questions(paper.private, cells)


def _reasons(questions: tuple[Question, ...]) -> list[str]:
    outcomes = [one.outcome for one in questions]
    return [words for outcome, words in _LOOK_AT.items() if outcome in outcomes]
