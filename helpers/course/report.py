"""From cells' results to what a learner reads: a row per exercise, points, and the sentence that helps."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

from nbformat import NotebookNode

from helpers.course import grading
from helpers.course.assemble import Assembly
from helpers.course.run import CellResult, missing

NOT_STARTED = "not started"


@dataclass(frozen=True)
class ExerciseResult:
    """One exercise: points earned of points, and the message when they are not all there."""

    title: str
    earned: float
    points: float
    message: str

    @property
    def passed(self) -> bool:
        """True when every check passed."""
        return not self.message

    def __str__(self) -> str:
        mark = "✓" if self.passed else "–" if self.message == NOT_STARTED else "✗"
        row = f"{mark} {self.title[:60]:<60} {self.earned:g}/{self.points:g}"
        return row + ("\n" + textwrap.indent(self.message, "    ") if self.message else "")


def exercise_results(
    reference: NotebookNode, assembly: Assembly, cells: dict[str, CellResult]
) -> tuple[ExerciseResult, ...]:
    """One result per exercise of `reference`, from its assembly's run. Only explicit passes earn points."""
    return tuple(_result(exercise, assembly, cells) for exercise in grading.exercises(reference))


def text(results: tuple[ExerciseResult, ...], warnings: tuple[str, ...] = ()) -> str:
    """The report: a row per exercise, the warnings, the total."""
    earned, points = sum(result.earned for result in results), sum(result.points for result in results)
    rows = [*map(str, results), *(f"! {warning}" for warning in warnings), f"{earned:g} of {points:g} points"]
    return "\n".join(rows)


def _result(exercise: grading.Exercise, assembly: Assembly, cells: dict[str, CellResult]) -> ExerciseResult:
    checks = {check.id: cells.get(check.id, missing()) for check in exercise.checks}
    earned = sum(grading.points(check) for check in exercise.checks if checks[check.id].passed)
    failures = [result.message for result in checks.values() if not result.passed]
    message = _message(exercise, assembly, cells, failures) if failures else ""
    return ExerciseResult(exercise.title, earned, exercise.points, message)


def _message(exercise: grading.Exercise, assembly: Assembly, cells: dict[str, CellResult], failures: list[str]) -> str:
    """The first cause: nothing written, a lost cell, an answer that does not run, or what the checks said."""
    states = {grading.grade_id(answer): assembly.answers[grading.grade_id(answer)] for answer in exercise.answers}
    if all(state in ("untouched", "empty") for state in states.values()):
        return NOT_STARTED
    lost = [key for key, state in states.items() if state == "missing"]
    if lost:
        return f"the answer cell {lost[0]!r} is missing: copy it, with its metadata, from a fresh lab"
    results = [cells.get(answer.id, missing()) for answer in exercise.answers]
    broken = [result.message for result in results if not result.passed]
    if broken:
        return f"your answer cell did not run: {broken[0]}"
    return "\n".join(dict.fromkeys(failures)) or "failed"
