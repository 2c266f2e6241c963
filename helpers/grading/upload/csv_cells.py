"""A CSV file in which single cells are changed and every other byte stays: quotes, spaces, line ends and all.

Python's `csv` reads such a file and writes another: it forgets what was quoted, and how lines ended.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ...catalog.errors import WorkbookError

MOST_BYTES = 50 * 10**6
Place = tuple[int, int]  # row and column, both from 0


@dataclass(frozen=True)
class Table:
    """The file's rows of cells, and where each cell stands in its text."""

    text: str
    encoding: str
    rows: tuple[tuple[str, ...], ...]
    spans: tuple[tuple[tuple[int, int], ...], ...]
    separator: str

    def cell(self, row: int, column: int) -> str:
        """The text of one cell, '' where the row is shorter."""
        return self.rows[row][column] if 0 <= column < len(self.rows[row]) else ""

    def filled(self, values: Mapping[Place, str]) -> bytes:
        """The file with these cells replaced. A row that is too short for one is given the cells up to it."""
        edits = []
        for (row, column), value in values.items():
            there = self.spans[row]
            start, end = there[column] if column < len(there) else (there[-1][1], there[-1][1])
            edits.append((start, end, self.separator * max(0, column - len(there) + 1) + self._quoted(value)))
        text = self.text
        for start, end, value in sorted(edits, reverse=True):
            text = text[:start] + value + text[end:]
        return text.encode(self.encoding)

    def _quoted(self, value: str) -> str:
        needed = any(mark in value for mark in (self.separator, '"', "\n", "\r"))
        return '"' + value.replace('"', '""') + '"' if needed else value


def read(path: Path) -> Table:
    """The table at `path`, its cells separated by commas, semicolons or tabs. WorkbookError names the line."""
    text, encoding = _text(path)
    separator = max(",;\t", key=text.partition("\n")[0].count)
    rows: list[tuple[str, ...]] = []
    spans: list[tuple[tuple[int, int], ...]] = []
    row: list[re.Match[str]] = []
    for cell in _cells(path, text, separator):
        row.append(cell)
        if cell["end"] != separator or cell.end() == len(text):
            rows.append(tuple(_plain(one["cell"]) for one in row))
            spans.append(tuple(one.span("cell") for one in row))
            row = []
    return Table(text, encoding, tuple(rows), tuple(spans), separator)


def _cells(path: Path, text: str, separator: str) -> Iterator[re.Match[str]]:
    plain = rf"[^\"{separator}\r\n][^{separator}\r\n]*"
    pattern = re.compile(rf'(?P<cell>"[^"]*(?:""[^"]*)*"|{plain}|)(?P<end>{separator}|\r?\n|\r|\Z)')
    at = 1 if text.startswith("\ufeff") else 0
    while at < len(text):
        found = pattern.match(text, at)
        if found is None:
            what = f"{path}, line {text.count(chr(10), 0, at) + 1}: not a row of cells"
            raise WorkbookError(what, "every quote closed", "export it again")
        yield found
        at = found.end()


def _plain(cell: str) -> str:
    return cell[1:-1].replace('""', '"') if cell.startswith('"') else cell


def _text(path: Path) -> tuple[str, str]:
    """The file's text, a byte order mark included, and its encoding: the same bytes come out again."""
    expected, do = "the CSV file that the LMS exported", "export it again, as CSV in UTF-8"
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise WorkbookError(f"{path} cannot be read ({error.strerror})", expected, do) from None
    if len(data) > MOST_BYTES or b"\x00" in data or data[:2] == b"PK":
        what = f"{path} is no CSV file" if len(data) <= MOST_BYTES else f"{path} has more than 50 MB"
        raise WorkbookError(what, expected, do)
    for encoding in ("utf-8", "cp1252"):
        try:
            return data.decode(encoding), encoding
        except UnicodeDecodeError:
            continue
    raise WorkbookError(f"{path} is neither UTF-8 nor Windows-1252", expected, do)
