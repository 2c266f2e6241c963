"""From cells' results to what a learner reads: a Question per exercise, points, and the sentence that helps."""

from __future__ import annotations

import textwrap

from nbformat import NotebookNode

from helpers.course import grading
from helpers.course import notebook as nb
from helpers.course.assemble import Assembly
from helpers.course.grade.model import Question
from helpers.course.run import CellResult, missing

TWICE = "Does the notebook work from top to bottom? Kernel > Restart Kernel and Run All Cells."


def questions(reference: NotebookNode, assembly: Assembly, cells: dict[str, CellResult]) -> tuple[Question, ...]:
    """One Question per exercise of `reference`, from its assembly's run. Only explicit passes earn points."""
    return tuple(_question(exercise, assembly, cells) for exercise in grading.exercises(reference))


def text(questions: tuple[Question, ...], warnings: tuple[str, ...] = ()) -> str:
    """The report: a row per exercise, the warnings, the total."""
    earned, points = sum(one.earned for one in questions), sum(one.points for one in questions)
    rows = [*map(_row, questions), *(f"! {warning}" for warning in warnings), f"{earned:g} of {points:g} points"]
    return "\n".join(rows)


def elsewhere(assembly: Assembly, cells: dict[str, CellResult]) -> tuple[str, ...]:
    """A warning for each cell outside the exercises that hung or ended the kernel: the rest was run without it."""
    return tuple(
        f"the cell {nb.first_line(cell.source)!r} {cells[cell.id].message}: the rest was run without it"
        for cell in assembly.notebook.cells
        if cell.id in cells and cells[cell.id].fatal and not (grading.is_answer(cell) or grading.is_check(cell))
    )


def _row(question: Question) -> str:
    mark = {"passed": "✓", "not started": "–"}.get(question.outcome, "✗")
    row = f"{mark} {question.title[:60]:<60} {question.earned:g}/{question.points:g}"
    message = question.message or ("not started" if question.outcome == "not started" else "")
    return row + ("\n" + textwrap.indent(message, "    ") if message else "")


def _question(exercise: grading.Exercise, assembly: Assembly, cells: dict[str, CellResult]) -> Question:
    checks = {check.id: cells.get(check.id, missing()) for check in exercise.checks}
    outcome, message = _outcome(exercise, assembly, cells, list(checks.values()))
    return Question(
        key=grading.grade_id(exercise.answers[0]),
        title=exercise.title,
        earned=sum(grading.points(check) for check in exercise.checks if checks[check.id].passed),
        points=exercise.points,
        outcome=outcome,
        message=message,
        hint=exercise.hint if outcome in ("wrong", "did not run") else "",
        rubric=tuple(line for check in exercise.checks for line in grading.rubric(check)),
        check_ids=tuple(checks),
    )


def _outcome(
    exercise: grading.Exercise, assembly: Assembly, cells: dict[str, CellResult], checks: list[CellResult]
) -> tuple[str, str]:
    """The first cause: nothing written, a lost cell, a cell the kernel did not survive, an error, a failed check."""
    failed = [result for result in checks if not result.passed]
    if not failed:
        return "passed", ""
    states = {grading.grade_id(answer): assembly.answers[grading.grade_id(answer)] for answer in exercise.answers}
    if all(state in ("untouched", "empty") for state in states.values()):
        return "not started", ""
    lost = [key for key, state in states.items() if state == "missing"]
    if lost:
        return "missing", f"the answer cell {lost[0]!r} is missing: copy it, with its metadata, from a fresh lab"
    answers = [cells.get(answer.id, missing()) for answer in exercise.answers]
    fatal = next((result for result in (*answers, *checks) if result.fatal), None)
    if fatal is not None:
        return fatal.fatal, f"your code {fatal.message}"
    broken = next((result for result in answers if result.outcome == "failed"), None)
    if broken is not None:
        return "did not run", f"your answer cell did not run: {broken.message}"
    if all(result.outcome == "not reached" for result in failed):
        return "not reached", failed[0].message
    messages = list(dict.fromkeys(result.message for result in failed if result.outcome == "failed"))
    return "wrong", "\n".join(messages + [TWICE] * any("NameError" in message for message in messages))
