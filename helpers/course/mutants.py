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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from nbformat import NotebookNode

from ..catalog.errors import WorkbookError, unknown_name
from ..lesson.drawn_inputs import PUBLIC_SEED
from . import lab_cells
from . import notebook as nb
from .forked_cells import CellRun, Trial, run_in_forks
from .stubs import stub

Definition = ast.FunctionDef | ast.ClassDef


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
    """The mutants in a file, in order, each with the definitions without a decorator that it names.

    WorkbookError where an argument is no plain string.
    """
    source = path.read_text(encoding="utf-8")
    every = [node for node in ast.parse(source).body if isinstance(node, Definition)]
    shared = {node.name: _lines(node, source) for node in every if not node.decorator_list}
    return tuple(_mutant(one, source, f"{path.name}:{one.lineno}", shared) for one in every if one.decorator_list)


def find_mutants(lab_path: Path) -> Path:
    """Where the mutants of solutions/NN_name.ipynb are: solutions/mutants/lab_NN.py."""
    return lab_path.parent / "mutants" / f"lab_{lab_path.stem.partition('_')[0]}.py"


def problems(lab_path: Path, least: int = 2, seed: str = PUBLIC_SEED) -> list[str]:
    """Everything wrong with a worked lab's checks; its test demands an empty list.

    Through the lab's own check cells, with the inputs of `seed`: the solution must pass every check, each untouched
    stub must fail its checks, each mutant must fail with its sentence, and every exercise has `least` mutants.
    With the stored seed the solution prints what is stored, with another one something else.
    """
    lab, mutants = nb.read(lab_path), load_mutants(find_mutants(lab_path))
    return lacking(lab_path, least) or list(_trial_problems(lab, mutants, lab_path.parent, seed))


def lacking(lab_path: Path, least: int = 2) -> list[str]:
    """Mutants of no exercise, and exercises with fewer than `least`: what is wrong before anything runs."""
    lab, mutants = nb.read(lab_path), load_mutants(find_mutants(lab_path))
    lab_cells.require_ids(lab, lab_path.name)
    exercises = lab_cells.exercises(lab)
    ids = [lab_cells.grade_id(cell) for exercise in exercises for cell in exercise.answers]
    found = [f"{one.where}: {unknown_name('answer', one.grade_id, ids)}" for one in mutants if one.grade_id not in ids]
    for exercise in exercises:
        keys = set(map(lab_cells.grade_id, exercise.answers))
        count = sum(one.grade_id in keys for one in mutants)
        if count < least:
            found.append(f"{exercise.title}: {count} mutants, at least {least} wanted")
    return found


def _trial_problems(lab: NotebookNode, mutants: tuple[Mutant, ...], folder: Path, seed: str) -> Iterator[str]:
    cells = [cell for _, cell in nb.code_cells(lab)]
    attempts = [one for exercise in lab_cells.exercises(lab) for one in _attempts(exercise, mutants)]
    ran = run_in_forks(folder, [cell.source for cell in cells], [one.trial for one in attempts], seed=seed)
    printed = {}
    for cell, run in zip(cells, ran.before, strict=False):
        if run.error:
            yield f"the solution fails at {nb.first_line(cell.source)!r}: {run.error}"
            return
        printed[cell.id] = run.printed
        if lab_cells.is_check(cell):
            yield from _of_the_solution(cell, run, is_stored_seed=seed == PUBLIC_SEED)
    for attempt, runs in zip(attempts, ran.trials, strict=True):
        yield from attempt.problems(runs, printed)


def _of_the_solution(check: NotebookNode, run: CellRun, is_stored_seed: bool) -> Iterator[str]:
    """What is wrong with a check that the solution passed: it prints what is stored, for the stored seed alone."""
    difference = _failure(run, nb.stream(check.outputs, "stdout"))
    if is_stored_seed and difference:
        yield f"the solution fails {lab_cells.grade_id(check)!r}: {difference}"
    if not is_stored_seed and not difference:
        yield f"{lab_cells.grade_id(check)!r} draws nothing: it prints the same with another seed"


@dataclass(frozen=True)
class _Attempt:
    """An answer that must fail: a mutant, or (`mutant` None) the stub of the answer `key`."""

    exercise: lab_cells.Exercise
    key: str
    mutant: Mutant | None
    trial: Trial

    def problems(self, runs: tuple[CellRun, ...], printed: dict[str, str]) -> Iterator[str]:
        """What is wrong with how the answer, its asking cells and its checks ran; `printed` is by the solution."""
        asked = 1 + len(self.exercise.asks)
        failures = [run.error for run in runs[:asked] if run.error][:1]
        if not failures:
            pairs = zip(self.exercise.checks, runs[asked:], strict=False)
            failures = [_failure(run, printed[check.id]) for check, run in pairs]
        failed = [failure for failure in failures if failure]
        if self.mutant is None:
            if len(failed) < len(failures):
                yield f"{self.exercise.title}: a check passes although {self.key!r} is untouched"
        elif not failed:
            yield f"{self.mutant.where}: survives, no check of {self.exercise.title!r} fails"
        elif not any(self.mutant.feedback in failure for failure in failed):
            yield f"{self.mutant.where}: fails without its sentence {self.mutant.feedback!r}: {failed[0]}"


def _attempts(exercise: lab_cells.Exercise, mutants: tuple[Mutant, ...]) -> Iterator[_Attempt]:
    """Every stub of the exercise, and every mutant: the answer replaced, then what asks it and what checks."""
    answers = {lab_cells.grade_id(cell): cell.source for cell in exercise.answers}
    checks = tuple(cell.source for cell in (*exercise.asks, *exercise.checks))
    for key, source in answers.items():
        yield _Attempt(exercise, key, None, Trial((stub(source), *checks)))
    for one in mutants:
        if one.grade_id in answers:
            yield _Attempt(exercise, one.grade_id, one, Trial((one.source, *checks), until=one.feedback))


def _failure(run: CellRun, right: str) -> str:
    """Why a check cell would fail under nbval, or '': an exception, or other printed lines."""
    return run.error or ("" if run.printed == right else f"printed {run.printed!r} instead of {right!r}")


def _mutant(node: Definition, source: str, where: str, shared: Mapping[str, str]) -> Mutant:
    match node.decorator_list[0]:
        case ast.Call(
            func=ast.Name(id="mutant"),
            args=[ast.Constant(value=str(key))],
            keywords=[ast.keyword(arg="feedback", value=ast.Constant(value=str(feedback)))],
        ):
            named = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
            before = [text for name, text in shared.items() if name in named]
            return Mutant(key, feedback, "\n\n\n".join([*before, _lines(node, source)]), where)
    expected = '@mutant("grade-id", feedback="a sentence") with two plain strings'
    raise WorkbookError(f"{where}: not a mutant", expected, "write both as literals: the file is read, not run")


def _lines(node: Definition, source: str) -> str:
    return "\n".join(source.splitlines()[node.lineno - 1 : node.end_lineno])
