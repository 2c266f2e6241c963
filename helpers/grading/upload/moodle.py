"""Moodle's grading worksheet, as *Upload grading worksheet* reads it.

Columns (moodle/mod/assign/gradingtable.php): Identifier ("Participant 123"), Full name, Email address, Status, Grade,
Maximum Grade, Grade can be changed, Last modified (submission), Last modified (grade), Feedback comments. The import
(mod/assign/feedback/offline/importgradeslib.php) needs Identifier, Grade and Last modified (grade). It leaves out,
without a word, a grade above the maximum, and one that was changed in Moodle after the file's Last modified (grade).
Our own table has no Feedback comments: an empty column would erase the comments that are in Moodle.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, tzinfo
from pathlib import Path

from ..judging.results import Result
from ..people import Person
from ..reports.gradebook import names
from ..reports.late import final_score
from ..text import number
from .csv_cells import Table
from .export import Export, header, numbers_in, refuse

COLUMNS = (
    *("Identifier", "Full name", "Email address", "Status", "Grade", "Maximum Grade", "Grade can be changed"),
    *("Last modified (submission)", "Last modified (grade)"),
)
_DATES, _TIMES = ("%A, %d %B %Y", "%A, %B %d, %Y"), ("%I:%M %p", "%H:%M", "%I:%M:%S %p", "%H:%M:%S")
_FORMS = tuple(f"{date}, {time}" for date in _DATES for time in _TIMES)


def read(path: Path, table: Table, assignment: str | None) -> Export:
    """The worksheet at `path`; `assignment` is what its column of grades is called where that is not Grade.

    Of a worksheet in another language the first column is the identifier, and learners are found by it alone.
    """
    grade = header(table, assignment or "Grade")
    if grade < 0 or (assignment is None and header(table, "Identifier") < 0):
        missing = repr(assignment or "Grade") if grade < 0 else "'Identifier'"
        refuse(path, table, f"no column {missing}", ", ".join(COLUMNS))
    identifier = max(0, header(table, "Identifier"))
    name, email, own = (header(table, one) for one in ("Full name", "Email address", "ID number"))
    people = {}
    for line in range(1, len(table.rows)):
        if digits := re.search(r"\d+$", table.cell(line, identifier).strip()):
            numbers = (digits[0], table.cell(line, own).strip())
            people[line] = Person(table.cell(line, name), numbers, table.cell(line, email).strip())
    return Export(path, "moodle", table, grade, people, numbers_in(table, people, header(table, "Maximum Grade")))


def rows(results: Sequence[Result]) -> list[list[str]]:
    """The table made from nothing, of those whose number Moodle gave."""
    shown, found = names(results), [list(COLUMNS)]
    for one in (result for result in results if result.number):
        who = [f"Participant {one.number}", shown[one.slug], one.email, ""]
        found.append([*who, number(final_score(one)), number(one.points), "Yes", "", ""])
    return found


def times(export: Export, zone: tzinfo) -> dict[int, datetime]:
    """By line, when it was handed in: English dates, in the zone of whoever downloaded the worksheet.

    'Wednesday, 10 June 2026, 2:14 PM' and 'Wednesday, June 10, 2026, 2:14 PM' are understood, with 14:14 too.
    """
    column, found = header(export.table, "Last modified (submission)"), {}
    for line in export.people:
        text = " ".join(export.table.cell(line, column).split())
        for form in _FORMS:
            with suppress(ValueError):
                found[line] = datetime.strptime(text, form).replace(tzinfo=zone)
    return found
