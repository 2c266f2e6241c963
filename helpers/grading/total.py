"""`workbook grade --total OUT1 OUT2 … --out DIR`: one table over several labs, from each folder's gradebook.csv.

total.csv has a row for each learner: the points of each lab, the total, and the labs that they did not hand in, which
count 0. With `weights` each lab counts as much as its weight says, whatever its points are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..catalog.errors import WorkbookError
from .judging.results import ATTENTION, GRADED, NOT_SUBMITTED, UNREADABLE, GradedQuestion, Result
from .people import Person, matched
from .reports.gradebook import names, unguarded, write_table
from .text import number
from .upload import csv_cells, gradebooks
from .upload.export import header

COLUMNS = ("learner", "number", "email", "total", "max", "missing", "not_final")
_NUMBER = re.compile(r"-?\d+(\.\d+)?", re.ASCII)  # float() takes "nan" and "1e9" as well
MISSING, FINAL, OPEN = "missing", "passed", "not reached"  # of a lab, as of a question
NEEDED = ("learner", "score", "max", "status")


@dataclass(frozen=True)
class LearnerRow:
    """One learner in one lab: who it is, points, and what the gradebook says of them."""

    person: Person
    score: float
    status: str

    @property
    def is_final(self) -> bool:
        """False where a person still has to look at it."""
        return self.status not in (ATTENTION, UNREADABLE)


@dataclass(frozen=True)
class LabFolder:
    """One folder: the lab's number as in its file's name, the points that there are, its learners."""

    name: str
    most: float
    rows: tuple[LearnerRow, ...]


def total(
    folders: Sequence[Path],
    out: Path,
    weights: Mapping[str, float] | None = None,
    kind: str | None = None,
    export: Path | None = None,
    assignment: str | None = None,
) -> list[str]:
    """Write total.csv into `out`, and the LMS's table where `kind` or `export` is given; the sentences to print.

    WorkbookError for a folder that holds no results, for two of one lab, and for weights that are not the labs'.
    """
    labs = [read(folder) for folder in folders]
    twice = next((one.name for one in labs if [other.name for other in labs].count(one.name) > 1), None)
    if twice:
        what = f"lab {twice} is in two of the folders"
        raise WorkbookError(what, "a folder for each lab", "grade both classes into one folder, or make two totals")
    counted = [_weighted(lab, weights) for lab in labs]
    strangers = {name.lstrip("0") for name in weights or {}} - {lab.name.lstrip("0") for lab in labs}
    if strangers:
        there = ", ".join(lab.name for lab in labs)
        raise WorkbookError(f"a weight for lab {min(strangers)}", there, "leave it out, or add the lab's folder")
    results = _results(labs, counted)
    theirs = gradebooks.read_export(export, "", kind, assignment) if export else None
    if theirs:
        theirs.require_points(sum(counted))
    out.mkdir(parents=True, exist_ok=True)
    _write(results, labs, out)
    kind = theirs.kind if theirs else kind
    said = gradebooks.write(results, out, kind, theirs, assignment or "Labs") if kind else []
    return [*_summed_up(results, labs), *said, str(out / "total.csv")]


def read(folder: Path) -> LabFolder:
    """The lab that was graded into `folder`. WorkbookError where none was, or its table is damaged."""
    path, stem = folder / "gradebook.csv", ""
    with suppress(OSError, ValueError, AttributeError):
        stem = str(json.loads((folder / "manifest.json").read_text(encoding="utf-8")).get("lab", ""))
    if not path.is_file():
        do = "grade a lab into it first: workbook grade LAB SUBMISSIONS --out " + str(folder)
        raise WorkbookError(f"{folder} holds no gradebook.csv", "a folder that `workbook grade` wrote", do)
    table = csv_cells.read(path)
    missing = [name for name in NEEDED if header(table, name) < 0]
    if missing:
        raise WorkbookError(f"{path} has no column {missing[0]}", ", ".join(NEEDED), "grade again: it is written anew")
    rows = [_row(table, line, path) for line, cells in enumerate(table.rows) if line and any(map(str.strip, cells))]
    most = max((one[1] for one in rows), default=0.0)
    return LabFolder(stem.partition("_")[0] or folder.name, most, tuple(row for row, _ in rows))


def _row(table: csv_cells.Table, line: int, path: Path) -> tuple[LearnerRow, float]:
    def cell(name: str) -> str:
        return unguarded(table.cell(line, header(table, name)).strip())

    texts = [cell(name).replace(",", ".") for name in ("score", "max")]
    if not all(map(_NUMBER.fullmatch, texts)):
        what = f"{path}, line {line + 1}: score and max are {cell('score')!r} and {cell('max')!r}"
        raise WorkbookError(what, "numbers", "grade again: the table is written anew")
    score, most = map(float, texts)
    person = Person(cell("learner"), (cell("number"),), cell("email"))
    return LearnerRow(person, score, cell("status")), most


def _weighted(lab: LabFolder, weights: Mapping[str, float] | None) -> float:
    """What the lab counts in the total: its weight, or its points."""
    if weights is None:
        return lab.most
    known = {name.lstrip("0"): weight for name, weight in weights.items()}
    if lab.name.lstrip("0") not in known:
        what, given = f"no weight for lab {lab.name}", ", ".join(weights) or "none"
        raise WorkbookError(what, f"one for each lab; there are weights for {given}", f"add --weight {lab.name}=1")
    return known[lab.name.lstrip("0")]


def _results(labs: Sequence[LabFolder], counted: Sequence[float]) -> list[Result]:
    """A row for each learner of any lab, with a question for each lab, sorted by name."""
    people: list[Person] = []
    having: list[dict[str, LearnerRow]] = []
    for lab in labs:
        found = matched([row.person for row in lab.rows], people, strict=False)
        for at, row in enumerate(lab.rows):
            if at not in found:
                found[at] = len(people)
                people.append(row.person)
                having.append({})
            having[found[at]][lab.name] = row
            people[found[at]] = _merged(people[found[at]], row.person)
    learners = _told_apart(people)
    rows = []
    for at, (learner, person, there) in enumerate(zip(learners, people, having, strict=True), start=1):
        questions = tuple(_question(lab, most, there.get(lab.name)) for lab, most in zip(labs, counted, strict=True))
        status = GRADED if all(row.is_final for row in there.values()) else ATTENTION
        one = next(filter(None, person.numbers), "")
        rows.append(Result(learner, f"row-{at}", status, questions, number=one, email=person.email))
    return sorted(rows, key=lambda one: (one.learner.casefold(), one.slug))


def _question(lab: LabFolder, most: float, row: LearnerRow | None) -> GradedQuestion:
    earned = row.score * most / lab.most if row and lab.most else 0.0
    handed_in = row is not None and row.status != NOT_SUBMITTED
    outcome = MISSING if not handed_in else FINAL if row and row.is_final else OPEN
    return GradedQuestion(lab.name, f"Lab {lab.name}", round(earned, 4), most, outcome)


def _merged(known: Person, other: Person) -> Person:
    """What both lists know of one learner."""
    numbers = tuple(dict.fromkeys(filter(None, (*known.numbers, *other.numbers))))
    return Person(known.name, numbers, known.email or other.email)


def _told_apart(people: Sequence[Person]) -> list[str]:
    """Their names; namesakes with what tells them apart."""
    plain = [person.name for person in people]
    shown = []
    for at, person in enumerate(people):
        own = person.email or next(filter(None, person.numbers), f"row {at + 1}")
        shown.append(person.name if plain.count(person.name) == 1 else f"{person.name} ({own})")
    return shown


def _write(results: Sequence[Result], labs: Sequence[LabFolder], out: Path) -> None:
    shown = names(results)
    rows = []
    for one in results:
        missing, open_ones = (", ".join(_with(one, outcome)) for outcome in (MISSING, OPEN))
        sums = [number(one.score), number(one.points), missing, open_ones]
        points = [number(question.earned) for question in one.questions]
        rows.append([shown[one.slug], one.number, one.email, *sums, *points])
    write_table(out / "total.csv", [*COLUMNS, *(lab.name for lab in labs)], rows)


def _with(result: Result, outcome: str) -> list[str]:
    """The labs of this learner that became so."""
    return [question.key for question in result.questions if question.outcome == outcome]


def _summed_up(results: Sequence[Result], labs: Sequence[LabFolder]) -> list[str]:
    most = number(results[0].points) if results else "0"
    lines = [f"{len(results)} learners, {len(labs)} labs, {most} points"]
    for lab in labs:
        missing = sum(lab.name in _with(one, MISSING) for one in results)
        if missing:
            lines.append(f"  lab {lab.name}: {missing} did not hand it in, which counts 0")
    return lines
