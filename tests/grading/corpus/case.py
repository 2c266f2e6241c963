"""What a case of the corpus is, and whether a grader's row is the one that it must produce."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from nbformat import NotebookNode

from helpers.grading.judging.results import ATTENTION, GRADED, OUTCOMES, GradedQuestion, Result
from tests.grading.corpus.lab import POINTS

HONEST, WRONG, DYING, FORGING = "honest", "wrong", "dying", "forging"
Outcomes = frozenset[str]

PASSED = frozenset({"passed"})
FAILED = frozenset({"wrong"})
NOT_STARTED = frozenset({"not started"})
ANY = frozenset(OUTCOMES)
NOT_PASSED = ANY - PASSED
ENDED = frozenset({"hung", "died", "flooded", "not reached"})


def row(**changed: Outcomes) -> dict[str, Outcomes]:
    """The outcomes that each exercise may have: 'passed', but for those named."""
    return dict.fromkeys(POINTS, PASSED) | changed


def every(outcomes: Outcomes) -> dict[str, Outcomes]:
    """The same outcomes for each exercise."""
    return dict.fromkeys(POINTS, outcomes)


@dataclass(frozen=True)
class Case:
    """One submission and the row that it must produce.

    `build` gets a copy of the released lab and returns the notebook that is handed in. `expect` names for each
    exercise the outcomes that are right. A forger's are those of the same submission without its attack, and
    whatever else earns no more: `most_points` is the honest score.
    """

    name: str
    group: str
    item: str
    build: Callable[[NotebookNode], NotebookNode]
    expect: dict[str, Outcomes] = field(default_factory=row)
    status: frozenset[str] = frozenset({GRADED, ATTENTION})

    @property
    def most_points(self) -> float:
        """The points of the exercises that may pass."""
        return sum(POINTS[key] for key, outcomes in self.expect.items() if "passed" in outcomes)

    def __str__(self) -> str:
        return f"{self.group}: {self.name}"


def hand_in(case: Case, released: NotebookNode, path: Path) -> Path:
    """Write the case's notebook to `path` as it was built; the path. nbformat would mend what is broken on purpose."""
    path.write_text(json.dumps(case.build(copy.deepcopy(released)), indent=1), encoding="utf-8")
    return path


def problems(case: Case, result: Result) -> list[str]:
    """What is wrong with the row that a grader made of a case; nothing when it is as it must be."""
    return [f"{case}: {problem}" for problem in _problems(case, result)]


def _problems(case: Case, result: Result) -> Iterator[str]:
    keys = [question.key for question in result.questions]
    if keys != list(POINTS):
        yield f"the exercises are {keys}, expected {list(POINTS)}"
        return
    if result.status not in case.status:
        yield f"status {result.status!r}, expected {' or '.join(sorted(case.status))}; reasons: {result.reasons}"
    if result.status == ATTENTION and not any(result.reasons):
        yield "a person should look, and is not told at what"
    if result.score > case.most_points:
        yield f"{result.score:g} points, honestly at most {case.most_points:g}"
    for question in result.questions:
        yield from _question_problems(case.expect[question.key], question)


def _question_problems(expected: Outcomes, question: GradedQuestion) -> Iterator[str]:
    key, points = question.key, POINTS[question.key]
    if question.outcome not in expected:
        yield f"{key} is {question.outcome!r}, expected {' or '.join(sorted(expected))}: {question.message[:200]}"
    if question.points != points:
        yield f"{key} is worth {question.points:g} points, the lab says {points}"
    if question.earned != (points if question.passed else 0):
        yield f"{key} is {question.outcome!r} and earns {question.earned:g} of {points}"
    if not question.passed and question.outcome != "not started" and not question.message.strip():
        yield f"{key} is {question.outcome!r}, and the learner is not told why"
