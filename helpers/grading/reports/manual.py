"""manual.csv: what a person should look at, and the points and comments that they give there.

The grader writes a row for every question that it could not judge. The instructor fills in `points`, `comment` or
both, adds rows for other questions if they like, and grades again: their points replace the grader's.

    results = manual.merged(results, out / "manual.csv", waiting)    # before the gradebook and the pages are written
    manual.write(results, out, waiting)                              # keeps every row that was filled in

`waiting` are the learners of the class who are not graded yet: their rows are kept for when they are.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import NoReturn

from ...catalog.errors import WorkbookError
from ..judging.results import ATTENTION, GRADED, NOT_SUBMITTED, OUTCOMES, UNREADABLE, GradedQuestion, Result
from ..text import number, one_line, plain, points_text
from .gradebook import guard_formula, names, unguarded, write_table

# These the checks have judged; whatever else became of a question, a person should see it.
JUDGED = frozenset({"passed", "not started", "wrong", "did not run", NOT_SUBMITTED})
REASON_CHARS = 300
COLUMNS = ("learner", "question", "max", "reason", "points", "comment")
# float() takes "nan", "1_0" and "1e3" as well, which are slips here.
_POINTS = re.compile(r"\d+([.,]\d+)?", re.ASCII)


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
    row of theirs is filled in. `marks` says what was replaced. `results` and `waiting` are the whole class: a row
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


def needs_a_person(result: Result, question: GradedQuestion) -> bool:
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
    is_judged = _unjudged(result) <= set(given) and (given or result.status != NOT_SUBMITTED)
    before = {question.key: question.earned for question in result.questions}
    kept = {key: asdict(Mark(before[key], row.points, row.comment)) for key, row in filled.items()}
    return replace(
        result,
        status=GRADED if is_judged else result.status,
        questions=tuple(replace(one, earned=given.get(one.key, one.earned)) for one in result.questions),
        extra={**result.extra, "manual": kept},
    )


def _row(result: Result, question: GradedQuestion, row: ManualRow | None) -> list[str]:
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
        if slug is None:
            what = f"nobody here is called {row.learner!r}"
            _refuse(path, row.line, what, "a learner as gradebook.csv has them", "correct the name, or delete the line")
        if problem := _problem(row, questions[slug].get(row.question), placed[slug]):
            _refuse(path, row.line, *problem)
        placed[slug][row.question] = row
    return placed


def _by_spelling(results: Sequence[Result]) -> dict[str, str]:
    """The slug by each spelling of a learner's name: shown, guarded, and as a spreadsheet leaves 00123."""
    shown = {name: slug for slug, name in names(results).items()}
    count = Counter(name.lstrip("0") for name in shown)
    bare = {name.lstrip("0"): slug for name, slug in shown.items() if count[name.lstrip("0")] == 1}
    return bare | {guard_formula(name): slug for name, slug in shown.items()} | shown


def _problem(
    row: ManualRow, question: GradedQuestion | None, placed: Mapping[str, ManualRow]
) -> tuple[str, str, str] | None:
    """What is wrong with a learner's row, what is expected, what to do; `placed` are that learner's rows above it."""
    if question is None:
        what = f"the lab has no question {row.question!r}"
        return what, "a question as gradebook_long.csv has them", "correct it, or delete the line"
    if row.points is not None and row.points > question.points:
        what = f"{points_text(row.points)} for {question.key!r}"
        return what, f"0 to {number(question.points)}", "correct the points"
    if row.question in placed:
        what = f"{row.question!r} of {row.learner!r} stands on line {placed[row.question].line} already"
        return what, "one row for each learner's question", "delete one of the two"
    return None


@dataclass(frozen=True)
class ManualRow:
    """One filled row: its line in the file, learner and question as written there, points (None: open), comment."""

    line: int
    learner: str
    question: str
    points: float | None
    comment: str


def filled_rows(path: Path) -> list[ManualRow]:
    """The rows at `path` with points or a comment; none when there is no file.

    Commas, semicolons or tabs between the cells, a decimal comma, UTF-8 or Windows-1252: as Excel saves them.
    WorkbookError, naming the line, for points that are no number, other columns, or a row with too many cells.
    """
    if not path.is_file():
        return []
    found: list[ManualRow] = []
    header: list[str] = []
    for line, cells in _lines(path):
        if not header:
            header = cells
            if sorted(header) != sorted(COLUMNS):
                _refuse(path, line, f"its columns are {', '.join(header)}", ", ".join(COLUMNS))
        elif len(cells) > len(header):
            _refuse(path, line, f"{len(cells)} cells", f"{len(header)}: a comment that has the separator is quoted")
        else:
            found += _filled(path, line, dict(zip_longest(header, cells, fillvalue="")))
    return found


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """(line, its cells) for each row that is not empty."""
    text = _text(path)
    separator = next((mark for mark in ";\t" if mark in text.partition("\n")[0]), ",")
    # strict: a quote that is never closed would take every row below it for one comment.
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    line = 1
    try:
        for row in reader:
            if cells := _cells(row):
                yield line, cells
            line = reader.line_num + 1
    except csv.Error as error:
        _refuse(path, line, f"not a row of cells: {error}", "every quote closed")


def _cells(row: list[str]) -> list[str]:
    """The row's plain texts, without the empty cells that a spreadsheet adds at the end."""
    texts = [plain(cell).strip() for cell in row]
    return texts[: max((number for number, text in enumerate(texts, start=1) if text), default=0)]


def _filled(path: Path, line: int, row: dict[str, str]) -> list[ManualRow]:
    """The row, or nothing where neither points nor a comment were filled in."""
    points, comment = row["points"], unguarded(row["comment"])
    if points and not _POINTS.fullmatch(points):
        _refuse(path, line, f"points are {points!r}", "a number such as 2 or 2.5, or nothing")
    value = float(points.replace(",", ".")) if points else None
    return [ManualRow(line, row["learner"], row["question"], value, comment)] if points or comment else []


def _text(path: Path) -> str:
    data = path.read_bytes()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("cp1252", errors="replace")


def _refuse(path: Path, line: int, what: str, expected: str, do: str = "correct the line, and grade again") -> NoReturn:
    raise WorkbookError(f"{path}, line {line}: {what}", expected, do)
