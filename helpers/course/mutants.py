"""Known-wrong answers: each is code, owns the sentence its learner would read, and must fail its check.

They live in solutions/mutants/lab_NN.py, beside the lab that they are about:

    from helpers.course.mutants import mutant

    @mutant("count-trainable", feedback="frozen parameters are not trainable")
    def count_trainable(model):
        return sum(p.numel() for p in model.parameters())

The file is read, never imported: the function's source, without the decorator, replaces the answer cell's.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from nbformat import NotebookNode

from helpers.catalog.errors import WorkbookError, unknown_name
from helpers.course import grading
from helpers.course import notebook as nb
from helpers.course.kernel import RunCell, error_in, kernel
from helpers.course.release import stub

Exercises = tuple[grading.Exercise, ...]


@dataclass(frozen=True)
class Mutant:
    """A wrong answer for the cell `grade_id`, and the feedback that its check's failure must contain."""

    grade_id: str
    feedback: str
    source: str
    where: str


def mutant(grade_id: str, *, feedback: str) -> Callable[[Callable], Callable]:
    """Mark a function or class as a mutant of the answer `grade_id`; the mark alone, it changes nothing."""
    return lambda answer: answer


def load_mutants(path: Path) -> tuple[Mutant, ...]:
    """The mutants in a file, in order. WorkbookError where an argument is no plain string."""
    source = path.read_text(encoding="utf-8")
    nodes = [node for node in ast.parse(source).body if getattr(node, "decorator_list", None)]
    return tuple(_mutant(node, source, f"{path.name}:{node.lineno}") for node in nodes)


def find_mutants(lab_path: Path) -> Path:
    """Where the mutants of solutions/NN_name.ipynb are: solutions/mutants/lab_NN.py."""
    return lab_path.parent / "mutants" / f"lab_{lab_path.stem.partition('_')[0]}.py"


def problems(lab_path: Path, least: int = 2) -> list[str]:
    """Everything wrong with a worked lab's checks; its test demands an empty list.

    In one kernel, through the lab's own check cells: the solution must pass every check, each untouched stub
    must fail its checks, each mutant must fail with its sentence, and every exercise has `least` mutants.
    """
    lab, mutants = nb.read(lab_path), load_mutants(find_mutants(lab_path))
    return lacking(lab_path, least) or list(_trial_problems(lab, grading.exercises(lab), mutants, lab_path.parent))


def lacking(lab_path: Path, least: int = 2) -> list[str]:
    """Mutants of no exercise, and exercises with fewer than `least`: what is wrong before anything runs."""
    lab, mutants = nb.read(lab_path), load_mutants(find_mutants(lab_path))
    grading.require_ids(lab, lab_path.name)
    exercises = grading.exercises(lab)
    return _misplaced(exercises, mutants) + _too_few(exercises, mutants, least)


def _trial_problems(
    lab: NotebookNode, exercises: Exercises, mutants: tuple[Mutant, ...], folder: Path
) -> Iterator[str]:
    with kernel(folder, cell_timeout_s=60) as run:
        for _, cell in nb.code_cells(lab):
            error = error_in(run(cell.source))
            if error is not None:
                yield f"the solution fails at {nb.first_line(cell.source)!r}: {error.ename}: {error.evalue}"
                return
        for exercise in exercises:
            yield from _exercise_problems(run, exercise, mutants)


def _exercise_problems(run: RunCell, exercise: grading.Exercise, mutants: tuple[Mutant, ...]) -> Iterator[str]:
    answers = {grading.grade_id(cell): cell.source for cell in exercise.answers}
    solved = _try(run, exercise, exercise.answers[0].source)
    yield from (f"{exercise.title}: the solution fails: {why}" for why in solved)
    for key, source in answers.items():
        if len(_try(run, exercise, stub(source), restore=source)) < len(exercise.checks):
            yield f"{exercise.title}: a check passes although {key!r} is untouched"
    for mutant in (one for one in mutants if one.grade_id in answers):
        failures = _try(run, exercise, mutant.source, restore=answers[mutant.grade_id])
        if not failures:
            yield f"{mutant.where}: survives, no check of {exercise.title!r} fails"
        elif not any(mutant.feedback in failure for failure in failures):
            yield f"{mutant.where}: fails without its sentence {mutant.feedback!r}: {failures[0]}"


def _try(run: RunCell, exercise: grading.Exercise, answer: str, restore: str = "") -> list[str]:
    """Each failing check's message for one answer; then the right answer is put back."""
    broken = error_in(run(answer))
    failures = [_failure(check, run(check.source)) for check in exercise.checks]
    if broken is not None:
        failures = [f"{broken.ename}: {broken.evalue}"] * len(failures)
    if restore:
        run(restore)
    return [failure for failure in failures if failure]


def _failure(check: NotebookNode, outputs: list[NotebookNode]) -> str:
    """Why a check cell would fail under nbval, or an empty string: an exception, or other printed lines."""
    error = error_in(outputs)
    if error is not None:
        return f"{error.ename}: {error.evalue}"
    stored, fresh = _text(check.outputs), _text(outputs)
    return "" if fresh == stored else f"printed {fresh!r} instead of {stored!r}"


def _text(outputs: list[NotebookNode]) -> str:
    return "".join(output.text for output in outputs if output.output_type == "stream")


def _misplaced(exercises: Exercises, mutants: tuple[Mutant, ...]) -> list[str]:
    ids = [grading.grade_id(cell) for exercise in exercises for cell in exercise.answers]
    return [f"{one.where}: {unknown_name('answer', one.grade_id, ids)}" for one in mutants if one.grade_id not in ids]


def _too_few(exercises: Exercises, mutants: tuple[Mutant, ...], least: int) -> list[str]:
    counts = [
        (exercise, sum(one.grade_id in map(grading.grade_id, exercise.answers) for one in mutants))
        for exercise in exercises
    ]
    return [f"{exercise.title}: {n} mutants, at least {least} wanted" for exercise, n in counts if n < least]


def _mutant(node: ast.FunctionDef | ast.ClassDef, source: str, where: str) -> Mutant:
    call = node.decorator_list[0]
    feedback = [keyword.value for keyword in getattr(call, "keywords", ()) if keyword.arg == "feedback"]
    texts = [getattr(value, "value", None) for value in [*getattr(call, "args", ()), *feedback]]
    if ast.unparse(getattr(call, "func", call)) != "mutant" or [type(text) for text in texts] != [str, str]:
        raise WorkbookError(
            f"{where}: not a mutant",
            '@mutant("grade-id", feedback="a sentence") with two plain strings',
            "write both as literals: the file is read, not run",
        )
    lines = source.splitlines()[node.lineno - 1 : node.end_lineno]
    return Mutant(texts[0], texts[1], "\n".join(lines), where)
