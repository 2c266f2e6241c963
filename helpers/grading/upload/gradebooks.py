"""gradebook_canvas.csv, gradebook_moodle.csv: the LMS's own export with the points filled in, or one made from nothing.

Of an export every byte but those of the points stays. Both LMSs read 3.5 with a point, whatever their language is.
Learners who still need attention are left as they are: what stands in an LMS is final for whoever reads it there.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from datetime import datetime, tzinfo
from pathlib import Path

from ..judging.results import ATTENTION, UNREADABLE, Result
from ..people import matched
from ..reports.gradebook import guard_formula, store, store_bytes
from ..reports.late import final_score, person
from ..text import number
from . import canvas, csv_cells, moodle
from .export import Export, refuse

CANVAS, MOODLE = "canvas", "moodle"
KINDS = (CANVAS, MOODLE)
MOST_NAMED = 5


def read_export(path: Path, lab: str, kind: str | None = None, assignment: str | None = None) -> Export:
    """What the LMS exported, at `path`. WorkbookError says what is missing, and which columns there are.

    `lab` is a stem such as '02_where_training_memory_goes': of several assignments of Canvas the one whose title has
    its number is taken, unless `assignment` names another.
    """
    table = csv_cells.read(path)
    found = CANVAS if canvas.is_canvas(table) else MOODLE
    if kind not in (None, found):
        columns = canvas.COLUMNS if kind == CANVAS else moodle.COLUMNS
        refuse(path, table, f"this is no export of {str(kind).capitalize()}", ", ".join(columns))
    return canvas.read(path, table, lab, assignment) if found == CANVAS else moodle.read(path, table, assignment)


def write(results: Sequence[Result], out: Path, kind: str, export: Export | None, assignment: str) -> list[str]:
    """Write the table into the folder `out`; the sentences that say whose points are not in it.

    Without an `export` an assignment of Canvas is called `assignment`.
    """
    path = out / f"gradebook_{kind}.csv"
    said = _named(path, "whose points are not final", [one.learner for one in results if not is_final(one)])
    if export is not None:
        return said + _fill(results, path, export)
    final = [one for one in results if is_final(one)]
    store(path, _csv(canvas.rows(final, assignment) if kind == CANVAS else moodle.rows(final)))
    unnumbered = [one.learner for one in final if kind == MOODLE and not one.number]
    return said + _named(path, "whom Moodle could not find without a number", unnumbered)


def is_final(result: Result) -> bool:
    """True unless a person still has to look at it."""
    return result.status not in (ATTENTION, UNREADABLE)


def stated_times(export: Export, results: Sequence[Result], zone: tzinfo) -> dict[str, datetime]:
    """By slug, when the LMS says that it was handed in: Moodle's worksheet does."""
    times = moodle.times(export, zone) if export.kind == MOODLE else {}
    return {one.slug: times[line] for line, one in _lines(export, results).items() if line in times}


def _fill(results: Sequence[Result], path: Path, export: Export) -> list[str]:
    lines = _lines(export, results)
    filled = {(line, export.column): number(final_score(one)) for line, one in lines.items() if is_final(one)}
    store_bytes(path, export.table.filled(filled))
    there = {one.slug for one in lines.values()}
    strangers = [one.learner for one in results if one.slug not in there]
    return _named(path, f"who have no row in {export.path.name}", strangers)


def _lines(export: Export, results: Sequence[Result]) -> dict[int, Result]:
    """By the export's line, whose it is."""
    lines = sorted(export.people)
    found = matched([export.people[line] for line in lines], [person(one) for one in results])
    return {lines[row]: results[at] for row, at in found.items()}


def _csv(rows: Sequence[Sequence[str]]) -> str:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows([guard_formula(cell) for cell in row] for row in rows)
    return text.getvalue()


def _named(path: Path, who: str, learners: Sequence[str]) -> list[str]:
    """A sentence that names them, or nothing."""
    if not learners:
        return []
    more = f" and {len(learners) - MOST_NAMED} more" if len(learners) > MOST_NAMED else ""
    return [f"not in {path.name}, {who}: {', '.join(learners[:MOST_NAMED])}{more}"]
