"""manual.csv: what a person should look at, and the points and comments that they give there.

The grader writes a row for every question that it could not judge. The instructor fills in `points`, `comment` or
both, adds rows for other questions if they like, and grades again: their points replace the grader's.

    results = manual.merged(results, out / "manual.csv", waiting)    # before the gradebook and the pages are written
    manual.write(results, out, waiting)                              # keeps every row that was filled in

`waiting` are the learners of the class who are not graded yet: their rows are kept for when they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from helpers.catalog.errors import WorkbookError
from helpers.course.grade.manual_rows import COLUMNS, ManualRow, filled_rows
from helpers.course.grade.model import ATTENTION, GRADED, OUTCOMES, UNREADABLE, Question, Result
from helpers.course.grade.plain import number, one_line, points_text
from helpers.course.grade.sheets import memory_budget, names, write_table

# These the checks have judged; whatever else became of a question, a person should see it.
JUDGED = frozenset({"passed", "not started", "wrong", "did not run"})
REASON_CHARS = 300


@dataclass(frozen=True)
class Mark:
    """What a person decided: the question's points before, theirs (None: a comment only), their comment."""

    before: float
    points: float | None
    comment: str


def marks(result: Result) -> dict[str, Mark]:
    """By question key, what `merged` took from manual.csv for this learner; empty where nothing was filled in."""
    return {key: Mark(**mark) for key, mark in result.extra.get("manual", {}).items()}


def merged(results: Sequence[Result], path: Path, waiting: Sequence[Result] = ()) -> list[Result]:
    """`results` with what is filled in at `path`; unchanged when there is no such file.

    A learner is 'graded' once each unjudged question has points (of an unreadable notebook, every question) and some
    row of theirs is filled in. What was replaced is told by `marks`. `results` and `waiting` are the whole class: a row
    for somebody else, a question that the lab has not, or points that are no number from 0 to the question's maximum
    are a WorkbookError that names the line.
    """
    found = _placed(filled_rows(path), [*results, *waiting], path)
    return [_marked(result, found[result.slug]) for result in results]


def write(results: Sequence[Result], out: Path, waiting: Sequence[Result] = ()) -> None:
    """Write manual.csv into the folder `out`: what to look at, and every row there that was filled in before."""
    path, everybody = out / "manual.csv", [*results, *waiting]
    shown, filled = names(everybody), _placed(filled_rows(path), everybody, path)
    ungraded = {result.slug for result in waiting}  # nothing to look at yet
    rows = [
        [shown[result.slug], *_row(result, question, filled[result.slug].get(question.key))]
        for result in everybody
        for question in result.questions
        if question.key in filled[result.slug] or (result.slug not in ungraded and needs_a_person(result, question))
    ]
    write_table(path, COLUMNS, rows)


def needs_a_person(result: Result, question: Question) -> bool:
    """True where the checks did not judge; where a reason for attention is of no one question, True for all."""
    unjudged = _unjudged(result)
    return question.key in unjudged or (result.status == ATTENTION and not unjudged)


def _unjudged(result: Result) -> set[str]:
    """The keys of the questions that no check has judged: of an unreadable notebook all."""
    whole = result.status == UNREADABLE
    return {question.key for question in result.questions if whole or question.outcome not in JUDGED}


def _marked(result: Result, filled: dict[str, ManualRow]) -> Result:
    if not filled:
        return result
    given = {key: row.points for key, row in filled.items() if row.points is not None}
    before = {question.key: question.earned for question in result.questions}
    kept = {key: asdict(Mark(before[key], row.points, row.comment)) for key, row in filled.items()}
    return replace(
        result,
        status=GRADED if _unjudged(result) <= set(given) else result.status,
        questions=tuple(replace(one, earned=given.get(one.key, one.earned)) for one in result.questions),
        extra={**result.extra, "manual": kept},
    )


def _row(result: Result, question: Question, row: ManualRow | None) -> list[str]:
    mark = marks(result).get(question.key)
    earned = question.earned if mark is None else mark.before
    outcome = OUTCOMES.get(question.outcome, question.outcome)
    reasons = [*result.reasons, f"{outcome}, {points_text(earned)}"]
    if row and row.points is not None and row.points < earned:
        reasons.append("fewer are given here")  # on purpose, or for a notebook that was mended since
    filled = ["" if row is None or row.points is None else number(row.points), row.comment if row else ""]
    return [question.key, number(question.points), one_line("; ".join(reasons), REASON_CHARS), *filled]


def _placed(found: Sequence[ManualRow], results: Sequence[Result], path: Path) -> dict[str, dict[str, ManualRow]]:
    """By slug and question key, the filled rows; WorkbookError for one that belongs nowhere."""
    slugs = _by_spelling(results)
    questions = {result.slug: {one.key: one for one in result.questions} for result in results}
    placed: dict[str, dict[str, ManualRow]] = {result.slug: {} for result in results}
    for row in found:
        slug = slugs.get(row.learner)
        question = questions.get(slug, {}).get(row.question)
        problem = _problem(row, slug, question, placed)
        if problem:
            raise WorkbookError(f"{path}, line {row.line}: {problem[0]}", *problem[1:])
        placed[slug][row.question] = row
    return placed


def _by_spelling(results: Sequence[Result]) -> dict[str, str]:
    """The slug by each spelling of a learner's name: shown, guarded, and as a spreadsheet leaves 00123."""
    shown = {name: slug for slug, name in names(results).items()}
    count = Counter(name.lstrip("0") for name in shown)
    bare = {name.lstrip("0"): slug for name, slug in shown.items() if count[name.lstrip("0")] == 1}
    return {**bare, **{memory_budget(name): slug for name, slug in shown.items()}, **shown}


def _problem(row: ManualRow, slug: str | None, question: Question | None, placed: dict) -> tuple[str, str, str] | None:
    if slug is None:
        what = f"nobody here is called {row.learner!r}"
        return what, "a learner as gradebook.csv has them", "correct the name, or delete the line"
    if question is None:
        what = f"the lab has no question {row.question!r}"
        return what, "a question as gradebook_long.csv has them", "correct it, or delete the line"
    if row.points is not None and row.points > question.points:
        what = f"{points_text(row.points)} for {question.key!r}"
        return what, f"0 to {number(question.points)}", "correct the points"
    if row.question in placed[slug]:
        what = f"{row.question!r} of {row.learner!r} stands on line {placed[slug][row.question].line} already"
        return what, "one row for each learner's question", "delete one of the two"
    return None
