"""Canvas's gradebook, as *Import* reads it (canvas-lms/lib/gradebook_importer.rb).

Columns: Student, ID, SIS User ID, SIS Login ID, Section, then one for each assignment, "Title (4711)". A row "Points
Possible" comes before the learners. A row is found by ID, then by SIS ID or login, then by name; a column by the number
in brackets, then by the whole title. A column that is not found becomes a *new* assignment: give the export.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from ...catalog.errors import WorkbookError
from ..judging.results import Result
from ..people import Person
from ..reports.gradebook import names
from ..reports.late import final_score
from ..text import number
from .csv_cells import Table
from .export import Export, header, numbers_in

COLUMNS = ("Student", "ID", "SIS User ID", "SIS Login ID", "Section")
POINTS_POSSIBLE = "Points Possible"
_ASSIGNMENT = re.compile(r"(?P<title>.+?) \((?P<id>\d+)\)")
_NUMBER = re.compile(r"(?<!\d)\d{1,3}(?!\d)")


def is_canvas(table: Table) -> bool:
    """True for Canvas's columns, whatever the language of the user: these are never translated."""
    return header(table, "SIS Login ID") >= 0 or (header(table, "Student") >= 0 and header(table, "ID") >= 0)


def read(path: Path, table: Table, lab: str, assignment: str | None) -> Export:
    """The export at `path`. WorkbookError where no column, or several, can be the lab's."""
    column = _column(path, table, lab, assignment)
    ids = [header(table, name) for name in COLUMNS[1:4]]
    surname, given = header(table, "LastName"), header(table, "FirstName")
    people, possible = {}, []
    for line in range(1, len(table.rows)):
        parts = filter(None, (table.cell(line, surname), table.cell(line, given)))
        name = table.cell(line, header(table, "Student")) or ", ".join(parts)
        numbers = tuple(table.cell(line, at).strip() for at in ids)
        if POINTS_POSSIBLE in table.cell(line, 0):
            possible.append(line)
        elif name or any(numbers):
            people[line] = Person(name, numbers, next((one for one in numbers if "@" in one), ""))
    return Export(path, "canvas", table, column, people, numbers_in(table, possible, column))


def rows(results: Sequence[Result], assignment: str) -> list[list[str]]:
    """The table made from nothing, its one assignment called so."""
    shown, points = names(results), max((one.points for one in results), default=0)
    learners = [[shown[one.slug], one.number, "", one.email, "", number(final_score(one))] for one in results]
    return [[*COLUMNS, assignment], [f"    {POINTS_POSSIBLE}", "", "", "", "", number(points)], *learners]


def _column(path: Path, table: Table, lab: str, assignment: str | None) -> int:
    titles = {at: found["title"] for at, cell in enumerate(table.rows[0]) if (found := _ASSIGNMENT.fullmatch(cell))}
    if assignment is not None:
        named = [at for at, title in titles.items() if assignment in (title, table.rows[0][at])]
    else:
        named = _of_lab(titles, lab.partition("_")[0])
    if len(named) == 1:
        return named[0]
    asked = assignment or f"lab {lab.partition('_')[0]}"
    there = ", ".join(table.rows[0][at] for at in named or titles) or "a column such as 'Lab 02 (4711)'"
    raise WorkbookError(f"{path} has {len(named)} columns for {asked}", there, "name one with --assignment")


def _of_lab(titles: dict[int, str], lab: str) -> list[int]:
    """The columns with the lab's number in the title; a lone column whose title has no number may be it, too."""
    numbers = {at: {int(found) for found in _NUMBER.findall(title)} for at, title in titles.items()}
    of_lab = [at for at in titles if lab.isdigit() and int(lab) in numbers[at]]
    return of_lab or [at for at in titles if len(titles) == 1 and not numbers[at]]
