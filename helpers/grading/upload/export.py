"""What an LMS exported: whose each row is, and which column the points go to."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from ...catalog.errors import WorkbookError
from ..people import Person
from .csv_cells import Table

AGAIN = "export it again: Canvas: Gradebook > Export; Moodle: the assignment > Download grading worksheet"


@dataclass(frozen=True)
class Export:
    """The table; the column for the points; by line whose it is; the points possible, by line, where it says."""

    path: Path
    kind: str
    table: Table
    column: int
    people: Mapping[int, Person]
    most: Mapping[int, float]

    def require_points(self, points: float) -> None:
        """WorkbookError unless the LMS's assignment is worth the lab's points: no LMS scales what it imports."""
        wrong = next((one for one in self.most.values() if one != points), None)
        if wrong is not None:
            what = f"{self.path} counts to {wrong:g} points, and the lab has {points:g}"
            do = f"set the assignment to {points:g} points in the LMS, and export again"
            raise WorkbookError(what, "an assignment with the lab's points", do)


def header(table: Table, name: str) -> int:
    """The column called `name` in whatever case, -1 where there is none."""
    headers = [cell.strip().casefold() for cell in table.rows[0]] if table.rows else []
    return headers.index(name.casefold()) if name.casefold() in headers else -1


def numbers_in(table: Table, lines: Mapping[int, object] | list[int], column: int) -> dict[int, float]:
    """By line, the number in this column where there is one; a decimal comma is a point."""
    found = {}
    for line in lines:
        with suppress(ValueError):
            found[line] = float(table.cell(line, column).replace(",", "."))
    return found


def refuse(path: Path, table: Table, what: str, expected: str) -> NoReturn:
    """The error for a file that is not that table: it names the columns that are there."""
    there = ", ".join(table.rows[0][:8]) if table.rows else "empty"
    raise WorkbookError(f"{path}: {what}; its first line is {there}", expected, AGAIN)
