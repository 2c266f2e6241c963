"""What grading finds out: a Question for each exercise, made from its cells' results, and a Result for each learner."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from nbformat import NotebookNode

from ...course import lab_cells
from ...course import notebook as nb
from ..intake.assemble import Assembly
from ..sandbox.nbval_run import UNFINISHED, CellResults

GRADED, ATTENTION, UNREADABLE, NOT_SUBMITTED = "graded", "attention", "unreadable", "not submitted"
NOT_WRITTEN = ("untouched", "empty")  # states of an answer cell
TRIED = ("passed", "wrong", "did not run", "hung", "died", "flooded")  # outcomes of an answer that was written and run
TWICE = "Does the notebook work from top to bottom? Kernel > Restart Kernel and Run All Cells."
_UNKNOWN_NAME = re.compile(r"NameError: name '(\w+)' is not defined")


@dataclass(frozen=True)
class GradedQuestion:
    """One exercise of one learner.

    `key` is the grade id of the exercise's first answer, a column of the gradebook. `outcome` is one of OUTCOMES;
    `message` says to the learner what went wrong (plain text, '' when all passed), `hint` where to look,
    `rubric` what the points are for, `fulfilled` which of it is. `check_ids` are the cells that graded it.
    """

    key: str
    title: str
    earned: float
    points: float
    outcome: str
    message: str = ""
    hint: str = ""
    rubric: tuple[str, ...] = ()
    fulfilled: tuple[bool, ...] = ()
    check_ids: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """True when every check passed."""
        return self.outcome == "passed"


# What can become of an exercise, and how it is put to a person who reads a list of them.
OUTCOMES = {
    "passed": "passed",
    "not started": "not started",
    "missing": "the answer cell is missing",
    "wrong": "a check failed",
    "did not run": "the answer cell raised an error",
    "hung": "ran into the time limit",
    "died": "ended the kernel",
    "flooded": "printed too much",
    "not reached": "was not reached",
    NOT_SUBMITTED: "nothing was handed in",
}


@dataclass(frozen=True)
class Result:
    """One learner's row. `learner` is as found (any characters); `slug` is safe as a file's name, and unique.

    `status` is 'graded', 'unreadable' (no notebook in it: 0 points, the reason says why), 'attention' (there are
    points, but a person should look: `reasons`) or 'not submitted' (on the roster, and handed in nothing). `warnings`
    are for the learner. `fingerprint` says of what this is the result; `extra` holds what a person decided (see
    `manual`). `number` is the LMS's own for the learner and `email` their address, each '' where nothing says.
    """

    learner: str
    slug: str
    status: str
    questions: tuple[GradedQuestion, ...]
    reasons: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    seconds: float = 0.0
    fingerprint: str = ""
    extra: dict = field(default_factory=dict)
    number: str = ""
    email: str = ""

    @property
    def score(self) -> float:
        """Points earned."""
        return sum(question.earned for question in self.questions)

    @property
    def points(self) -> float:
        """Points there are."""
        return sum(question.points for question in self.questions)


def from_json(stored: dict) -> Result:
    """The result of which `asdict` was stored as JSON. TypeError or KeyError when it is none."""
    questions = [GradedQuestion(**_tupled(one, "rubric", "fulfilled", "check_ids")) for one in stored["questions"]]
    return Result(**_tupled({**stored, "questions": questions}, "questions", "reasons", "warnings"))


def _tupled(values: dict, *names: str) -> dict:
    """`values`, of which JSON made these lists."""
    return values | {name: tuple(values[name]) for name in names}


def questions_of(reference: NotebookNode, assembly: Assembly, cells: CellResults) -> tuple[GradedQuestion, ...]:
    """One Question per exercise of `reference`, from its assembly's run. Only explicit passes earn points."""
    return tuple(_question(exercise, assembly, cells) for exercise in lab_cells.exercises(reference))


def cells_that_ended_the_kernel(assembly: Assembly, cells: CellResults) -> tuple[str, ...]:
    """A warning for each cell outside the exercises that hung or ended the kernel: the rest was run without it."""
    return tuple(
        f"the cell {nb.first_line(cell.source)!r} {cells[cell.id].message}: the rest was run without it"
        for cell in assembly.notebook.cells
        if cell.id in cells and cells[cell.id].fatal and not (lab_cells.is_answer(cell) or lab_cells.is_check(cell))
    )


def _question(exercise: lab_cells.Exercise, assembly: Assembly, cells: CellResults) -> GradedQuestion:
    checks = {check.id: cells.get(check.id, UNFINISHED) for check in exercise.checks}
    outcome, message = _outcome(exercise, assembly, cells, checks)
    return GradedQuestion(
        key=lab_cells.grade_id(exercise.answers[0]),
        title=exercise.title,
        earned=sum(lab_cells.points(check) for check in exercise.checks if checks[check.id].passed),
        points=exercise.points,
        outcome=outcome,
        message=message,
        hint=exercise.hint if outcome in ("wrong", "did not run") else "",
        rubric=tuple(line for check in exercise.checks for line in lab_cells.rubric(check)),
        fulfilled=tuple(checks[check.id].passed for check in exercise.checks for _ in lab_cells.rubric(check)),
        check_ids=tuple(checks),
    )


def _outcome(
    exercise: lab_cells.Exercise, assembly: Assembly, cells: CellResults, checks: CellResults
) -> tuple[str, str]:
    """The first cause: nothing written, a lost cell, a cell the kernel did not survive, an error, a failed check."""
    failed = [result for result in checks.values() if not result.passed]
    if not failed:
        return "passed", ""
    keys = [lab_cells.grade_id(answer) for answer in exercise.answers]
    states = {key: assembly.answers[key] for key in keys}
    if all(state in NOT_WRITTEN for state in states.values()):
        return "not started", ""
    lost = [key for key, state in states.items() if state == "missing"]
    if lost:
        return "missing", f"the answer cell {lost[0]!r} is missing: copy it, with its metadata, from a fresh lab"
    answers = [cells.get(answer.id, UNFINISHED) for answer in exercise.answers]
    fatal = next((result for result in (*answers, *checks.values()) if result.fatal), None)
    if fatal is not None:
        return fatal.fatal, f"your code {fatal.message}"
    broken = next((result for result in answers if result.outcome == "failed"), None)
    if broken is not None:
        message = f"your answer cell did not run: {broken.message}"
        return "did not run", "\n".join([message, *_about_a_name(message, assembly.notebook)])
    if all(result.outcome == "not reached" for result in failed):
        return "not reached", failed[0].message
    message = _part_by_part(exercise, checks)
    return "wrong", "\n".join([message, *_about_a_name(message, assembly.notebook)])


def _about_a_name(message: str, notebook: NotebookNode) -> list[str]:
    """What may help where a name was not there: the lab has it for its checks alone, or a cell was run twice."""
    unknown = _UNKNOWN_NAME.search(message)
    if unknown is None:
        return []
    ours = [cell for cell in notebook.cells if lab_cells.role(cell) or lab_cells.is_check(cell)]
    if any(unknown[1] in lab_cells.bound_names(cell) for cell in ours):
        return [f"The lab has {unknown[1]} for its own checks: when it is graded, answers run without it."]
    return [TWICE]


def _part_by_part(exercise: lab_cells.Exercise, checks: CellResults) -> str:
    """What failed and why, each part by its name; once where one cause has failed them all."""
    causes: dict[str, list[str]] = {}
    for check in exercise.checks:
        if checks[check.id].outcome == "failed":
            names = [line.partition(": ")[2] for line in lab_cells.rubric(check)]
            causes.setdefault(checks[check.id].message, []).extend(names)
    if len(exercise.checks) == 1 or (len(causes) == 1 and len(exercise.checks) == len(*causes.values())):
        return "\n".join(causes)
    return "\n".join(f"{', '.join(names)}: {message}" for message, names in causes.items())
