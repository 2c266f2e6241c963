"""The gradebook: a row for each learner, and a row for each learner's question."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from helpers.course.grade.model import Result
from helpers.course.grade.plain import number, one_line
from helpers.course.grade.sheets import names, write_table

MESSAGE_CHARS = 1000


def write(results: Sequence[Result], out: Path) -> None:
    """Write gradebook.csv (wide) and gradebook_long.csv into the folder `out`, rows in the order given.

    The wide one is what an LMS imports: one header line of plain names, the learner first, then `score`, `max`,
    `status` and a column of points for each question, named by its key. What a question is worth is in the long
    one. A cell stays empty where a learner's result lacks the question. The same results give the same bytes.
    """
    keys = list(dict.fromkeys(question.key for result in results for question in result.questions))
    shown = names(results)
    wide = [_row(result, shown[result.slug], keys) for result in results]
    write_table(out / "gradebook.csv", ["learner", "score", "max", "status", *keys], wide)
    header = ["learner", "question", "title", "earned", "points", "outcome", "message"]
    write_table(out / "gradebook_long.csv", header, [row for one in results for row in _rows(one, shown[one.slug])])


def _row(result: Result, learner: str, keys: Sequence[str]) -> list[str]:
    earned = {question.key: number(question.earned) for question in result.questions}
    totals = [number(result.score), number(result.points), result.status]
    return [learner, *totals, *(earned.get(key, "") for key in keys)]


def _rows(result: Result, learner: str) -> list[list[str]]:
    return [
        [
            *(learner, question.key, one_line(question.title, MESSAGE_CHARS)),
            *(number(question.earned), number(question.points)),
            *(question.outcome, one_line(question.message, MESSAGE_CHARS)),
        ]
        for question in result.questions
    ]
