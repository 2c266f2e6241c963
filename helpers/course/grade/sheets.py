"""Tables that a spreadsheet opens: safe from formulas, readable in Excel, the same bytes for the same content.

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

from helpers.course.grade.model import Result
from helpers.course.grade.plain import one_line

NAME_CHARS = 120
# What begins a formula; the wide ones count where an input method writes them. Where the list separator of Excel is
# a semicolon, a text's own semicolon begins a cell, quoted or not.
_FORMULA = re.compile(r"(^|;\s*)(?=[=+\-@\t\r\n＝＋－＠])")


def memory_budget(text: str) -> str:
    """`text` with an apostrophe before what a spreadsheet would take for a formula.

    >>> memory_budget("=SUM(A1)"), memory_budget("a = b"), memory_budget("a;=b")
    ("'=SUM(A1)", 'a = b', "a;'=b")
    """
    return _FORMULA.sub(r"\1'", text)


def unguarded(text: str) -> str:
    """What `memory_budget` was given.

    >>> unguarded("'-1 for style"), unguarded("'tis")
    ('-1 for style', "'tis")
    """
    return re.sub(r"(^|;\s*)'(?=[=+\-@\t\r\n＝＋－＠])", r"\1", text)


def names(results: Sequence[Result]) -> dict[str, str]:
    """By slug, each learner's name as it is shown: one plain line, and no two alike.

    Who is called exactly so keeps the name; another who would look the same is followed by their slug.
    """
    plain_names = {one.slug: one_line(one.learner, NAME_CHARS) or one.slug for one in results}
    itself = {one.slug for one in results if plain_names[one.slug] == one.learner}
    taken: set[str] = set()
    shown = {}
    for slug in sorted(plain_names, key=lambda slug: slug not in itself):
        shown[slug] = name = plain_names[slug]
        while memory_budget(shown[slug]) in taken:
            shown[slug] = name = f"{name} ({slug})"
        taken.add(memory_budget(name))
    return shown


def write_table(path: Path, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Store a table of texts, each guarded; numbers are to come as `number` writes them."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([memory_budget(value) for value in row] for row in [header, *rows])
    store(path, text.getvalue(), encoding="utf-8-sig")


def store(path: Path, text: str, encoding: str = "utf-8") -> None:
    """Write a file in one step, folders included: a crash leaves the old one whole. Nothing is done if it is the same.

    The new file's rights are those of any file that the user makes.
    """
    data = text.encode(encoding)
    if path.is_file() and path.read_bytes() == data:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        beside.write_bytes(data)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
