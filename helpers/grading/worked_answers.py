"""`workbook check 02 --show QUESTION`: the worked answer, for a learner who has tried.

A try is an answer that differs from what was given, and on which `workbook check` was run. Instructors who do not want
it set `show_answers = false` in pyproject.toml, under [tool.workbook].
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path

from ..catalog.errors import WorkbookError, unknown_name
from ..course import lab_cells
from ..course import notebook as nb
from ..course.stubs import SOLUTION
from .intake.assemble import assemble
from .intake.reading import Unreadable, read
from .judging.results import NOT_WRITTEN


def worked_answer(
    reference_path: Path, learner_path: Path, root: Path, question: str, tried: Callable[[str], bool]
) -> str:
    """The worked answer to a question of the lab, by its number ('3'), its title or its grade id.

    `tried` says whether the answer with a grade id was checked.
    WorkbookError where the course does not show them, for an unknown question, and before an honest try.
    """
    reference = nb.read(reference_path)
    number = reference_path.name.partition("_")[0]
    exercise = exercise_called(lab_cells.exercises(reference), question)
    if not _are_shown(root):
        what, expected = (
            "worked answers are not shown in this course",
            "your own, with the hints and the checks' sentences",
        )
        raise WorkbookError(what, expected, f"run workbook check {number}, and ask your instructor")
    _require_a_try(reference, learner_path, exercise, tried, number)
    lines = [line for answer in exercise.answers for line in ("", *answer.source.splitlines())]
    shown = [line for line in lines if line.strip() not in SOLUTION]
    return "\n".join([f"{exercise.title}: one way to write it", *shown])


def exercise_called(exercises: tuple[lab_cells.Exercise, ...], question: str) -> lab_cells.Exercise:
    """The question of a lab by its number ('3' or 'q3'), its title or its grade id; WorkbookError without one."""
    asked = question.strip().lower().removeprefix("q")
    for number, exercise in enumerate(exercises, start=1):
        keys = [lab_cells.grade_id(answer) for answer in exercise.answers]
        if asked == str(number) or question in (exercise.title, *keys):
            return exercise
    known = [f"{number} ({exercise.title})" for number, exercise in enumerate(exercises, start=1)]
    raise unknown_name("question", question, known)


def _are_shown(root: Path) -> bool:
    path = root / "pyproject.toml"
    project = tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return project.get("tool", {}).get("workbook", {}).get("show_answers", True) is not False


def _require_a_try(
    reference: nb.NotebookNode,
    learner_path: Path,
    exercise: lab_cells.Exercise,
    tried: Callable[[str], bool],
    number: str,
) -> None:
    try:
        states = assemble(reference, read(learner_path)).answers
    except Unreadable as error:
        raise nb.unreadable(learner_path, str(error)) from None
    keys = [lab_cells.grade_id(answer) for answer in exercise.answers]
    if all(states[key] in (*NOT_WRITTEN, "missing") for key in keys):
        what = f"{exercise.title}: nothing is written yet in {learner_path.name}"
        do = f"write one, run workbook check {number}, then ask again"
        raise WorkbookError(what, "an answer of your own first, right or wrong", do)
    if not tried(keys[0]):
        what, do = f"{exercise.title}: your answer was not checked yet", f"run workbook check {number}, then ask again"
        raise WorkbookError(what, "a check of it", do)
