"""What grading produces: a Question for each exercise, a Result for each learner, and both as JSON."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field

GRADED, ATTENTION, UNREADABLE = "graded", "attention", "unreadable"


@dataclass(frozen=True)
class Question:
    """One exercise of one learner.

    `key` is the grade id of the exercise's first answer, a column of the gradebook. `outcome` is one of OUTCOMES;
    `message` says to the learner what went wrong (plain text, '' when all passed), `hint` where to look,
    `rubric` what the points are for. `check_ids` are the cells that graded it.
    """

    key: str
    title: str
    earned: float
    points: float
    outcome: str
    message: str = ""
    hint: str = ""
    rubric: tuple[str, ...] = ()
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
}


@dataclass(frozen=True)
class Result:
    """One learner's row. `learner` is as found (any characters); `slug` is safe as a file's name, and unique.

    `status` is 'graded', 'unreadable' (no notebook in it: 0 points, the reason says why) or 'attention' (there
    are points, but a person should look: `reasons`). `warnings` are for the learner. `fingerprint` says of what this
    is the result; `extra` holds what a person decided (see `manual`).
    """

    learner: str
    slug: str
    status: str
    questions: tuple[Question, ...]
    reasons: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    seconds: float = 0.0
    fingerprint: str = ""
    extra: dict = field(default_factory=dict)

    @property
    def score(self) -> float:
        """Points earned."""
        return sum(question.earned for question in self.questions)

    @property
    def points(self) -> float:
        """Points there are."""
        return sum(question.points for question in self.questions)


def to_json(result: Result) -> dict:
    """The result as plain JSON values."""
    return asdict(result)


def from_json(stored: dict) -> Result:
    """The result that `to_json` stored. TypeError or KeyError when it is none."""
    questions = [
        Question(**{**one, "rubric": tuple(one["rubric"]), "check_ids": tuple(one["check_ids"])})
        for one in stored["questions"]
    ]
    texts = {name: tuple(stored[name]) for name in ("reasons", "warnings")}
    return Result(**{**stored, "questions": tuple(questions), **texts})


def slugs(learners: list[str]) -> dict[str, str]:
    """A file name for each learner, safe everywhere and unique, close to the original.

    >>> slugs(["ada", "../Ada", "=SUM(A1)"])
    {'ada': 'ada', '../Ada': 'Ada-2', '=SUM(A1)': 'SUM-A1'}
    """
    taken: set[str] = set()
    found = {}
    for learner in learners:
        base = re.sub(r"[^A-Za-z0-9_.@+-]+", "-", learner).strip("-._+@")[:60] or "learner"
        slug, number = base, 1
        while slug.lower() in taken:  # on some systems Ada.html and ada.html are one file
            number += 1
            slug = f"{base}-{number}"
        taken.add(slug.lower())
        found[learner] = slug
    return found
