"""The gradebook, and the tables that a spreadsheet opens: safe from formulas, the same bytes for the same content.

They are UTF-8 *with* a byte order mark. Without it Excel reads "José" as "JosÃ©"; LibreOffice, pandas and Moodle's
import skip it. Python's csv module needs `encoding="utf-8-sig"`.
"""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from ..judging.results import Result
from ..text import number, one_line
from .late import final_score, lateness

MESSAGE_CHARS = 1000
NAME_CHARS = 120
WIDE = ("learner", "number", "email", "score", "max", "status")
# What begins a formula; the wide ones count where an input method writes them. Where the list separator of Excel is
# a semicolon, a text's own semicolon begins a cell, quoted or not.
_START, _SIGN = r"(^|;\s*)", r"(?=[=+\-@\t\r\n＝＋－＠])"


def write(results: Sequence[Result], out: Path) -> None:
    """Write gradebook.csv (wide) and gradebook_long.csv into the folder `out`, rows in the order given.

    The wide one has one header line of plain names: the learner, their number and e-mail, then `score` (what counts),
    `max`, `status` and a column of points for each question, named by its key. Where there is a due date, `earned`
    (before the deduction) and `late` (the reason) come before the questions. What a question is worth is in the long
    one. A cell stays empty where a learner's result lacks the question. The same results give the same bytes.
    """
    due = ["earned", "late"] if any(lateness(one) for one in results) else []
    keys = list(dict.fromkeys(question.key for result in results for question in result.questions))
    shown = names(results)
    wide = [_row(result, shown[result.slug], bool(due), keys) for result in results]
    write_table(out / "gradebook.csv", [*WIDE, *due, *keys], wide)
    header = ["learner", "question", "title", "earned", "points", "outcome", "message"]
    write_table(out / "gradebook_long.csv", header, [row for one in results for row in _rows(one, shown[one.slug])])


def _row(result: Result, learner: str, due: bool, keys: Sequence[str]) -> list[str]:
    earned = {question.key: number(question.earned) for question in result.questions}
    row = [learner, result.number, result.email, number(final_score(result)), number(result.points), result.status]
    late = lateness(result)
    row += [number(result.score), late.note if late else ""] if due else []
    return row + [earned.get(key, "") for key in keys]


def _rows(result: Result, learner: str) -> list[list[str]]:
    rows = []
    for one in result.questions:
        title, message = one_line(one.title, MESSAGE_CHARS), one_line(one.message, MESSAGE_CHARS)
        rows.append([learner, one.key, title, number(one.earned), number(one.points), one.outcome, message])
    return rows


def guard_formula(text: str) -> str:
    """`text` with an apostrophe before what a spreadsheet would take for a formula.

    >>> guard_formula("=SUM(A1)"), guard_formula("a = b"), guard_formula("a;=b")
    ("'=SUM(A1)", 'a = b', "a;'=b")
    """
    return re.sub(_START + _SIGN, r"\1'", text)


def unguarded(text: str) -> str:
    """What `guard_formula` was given.

    >>> unguarded("'-1 for style"), unguarded("'tis")
    ('-1 for style', "'tis")
    """
    return re.sub(f"{_START}'{_SIGN}", r"\1", text)


def names(results: Sequence[Result]) -> dict[str, str]:
    """By slug, each learner's name as it is shown: one plain line, and no two alike.

    Who is called exactly so keeps the name; another who would look the same is followed by their slug.
    """
    plain_names = {one.slug: one_line(one.learner, NAME_CHARS) or one.slug for one in results}
    itself = {one.slug for one in results if plain_names[one.slug] == one.learner}
    taken: set[str] = set()
    shown = {}
    for slug in sorted(plain_names, key=lambda slug: slug not in itself):
        name = plain_names[slug]
        while guard_formula(name) in taken:
            name = f"{name} ({slug})"
        taken.add(guard_formula(name))
        shown[slug] = name
    return shown


def write_table(path: Path, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Store a table of texts, each guarded; numbers are to come as `number` writes them."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([guard_formula(value) for value in row] for row in [header, *rows])
    store(path, text.getvalue(), encoding="utf-8-sig")


def store(path: Path, text: str, encoding: str = "utf-8") -> None:
    """Write a file in one step, folders included: a crash leaves the old one whole. Nothing is done if it is the same.

    The new file's rights are those of any file that the user makes.
    """
    store_bytes(path, text.encode(encoding))


def store_bytes(path: Path, data: bytes) -> None:
    """`store`, for what is no text."""
    if path.is_file() and path.read_bytes() == data:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        beside.write_bytes(data)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
