"""The filled rows of a manual.csv, as whatever spreadsheet last saved it."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import NoReturn

from helpers.catalog.errors import WorkbookError
from helpers.course.grade.plain import plain
from helpers.course.grade.sheets import unguarded

COLUMNS = ("learner", "question", "max", "reason", "points", "comment")
# float() takes "nan", "1_0" and "1e3" as well, which are slips here.
_POINTS = re.compile(r"\d+([.,]\d+)?", re.ASCII)


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
    while True:
        try:
            row = next(reader, None)
        except csv.Error as error:
            _refuse(path, line, f"not a row of cells: {error}", "every quote closed")
        if row is None:
            return
        if cells := _cells(row):
            yield line, cells
        line = reader.line_num + 1


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


def _refuse(path: Path, line: int, what: str, expected: str) -> NoReturn:
    raise WorkbookError(f"{path}, line {line}: {what}", expected, "correct the line, and grade again")
