"""`workbook progress`: chapters opened, guesses made and how far off they were, points of each lab.

It reads what `lesson.notes` noted beside the learner's copies. Nothing leaves the machine.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from ..catalog.errors import WorkbookError, unknown_name
from ..lesson import notes
from ..lesson.units import signed_percent
from . import lab_cells
from . import notebook as nb
from .notebook import CHAPTERS, LABS

_ASKED = re.compile(r"(?<![.\w])(?:predict|claims\.read)\(")  # and no other's `predict`


@dataclass(frozen=True)
class Lab:
    """A lab: its file's name, what its header says of it, its points, and what `workbook check` found last."""

    name: str
    header: dict[str, str]
    points: float
    noted: dict = field(default_factory=dict)

    @property
    def earned(self) -> float | None:
        """Points at the last check; None before the first."""
        questions = self.noted.get("questions")
        return None if questions is None else sum(row.get("earned", 0) for row in questions.values())


@dataclass(frozen=True)
class Chapter:
    """A chapter, how many guesses and verdicts it asks for, what was noted of it, and its lab."""

    number: str
    name: str
    title: str
    header: dict[str, str]
    asked: int
    noted: dict
    lab: Lab | None

    @property
    def guesses(self) -> dict[str, dict]:
        """Each prediction that was made, by its question."""
        return self.noted.get("predictions", {})

    @property
    def verdicts(self) -> dict[str, dict]:
        """Each verdict on a claim that was given before the evidence, by the claim's id."""
        return self.noted.get("verdicts", {})

    @property
    def typical_off(self) -> float | None:
        """The median distance of the guesses that were compared, as a share; None without one."""
        off = [abs(guess["off"]) for guess in self.guesses.values() if guess.get("off") is not None]
        return median(off) if off else None

    @property
    def said(self) -> str:
        """How far the reader is, as in "4 of 9 guesses, typically 12 % off"; '' for a chapter that was never opened."""
        made = len(self.guesses) + len(self.verdicts)
        if not made:
            return "opened" if self.noted else ""
        off = "" if self.typical_off is None else f", typically {self.typical_off:.0%} off".replace("%", " %")
        return f"{made} of {max(made, self.asked)} guesses{off}"


def chapters(root: Path, noted: dict) -> list[Chapter]:
    """Every chapter of the workbook at `root` with what `noted` (see `lesson.notes.read`) has of it."""
    labs = {path.name.partition("_")[0]: _lab(path, noted) for path in nb.find_all(root, [LABS])}
    return [_chapter(path, noted, labs) for path in nb.find_all(root, [CHAPTERS])]


def progress(root: Path, name: str = "", as_json: bool = False) -> int:
    """Print how far the reader is, in all chapters or in one ('02') with each guess; 0. `as_json`: a list of either."""
    found = chapters(root, read_notes(root))
    if name:
        known = [chapter.number for chapter in found]
        found = [chapter for chapter in found if name in (chapter.number, Path(chapter.name).stem)]
        if not found:
            raise unknown_name("chapter", name, known)
    if as_json:
        print(json.dumps([_figures(chapter) for chapter in found]))
    else:
        print(*(_details(found[0]) if name else _table(found)), sep="\n")
    return 0


def read_notes(root: Path) -> dict:
    """What was noted in the workspace of `root`; WorkbookError for a file that cannot be read."""
    path = root / notes.FOLDER / notes.FILE
    try:
        return notes.read(path.parent)
    except (OSError, ValueError) as error:
        what, expected = f"your progress cannot be read: {error}", f"what the workbook wrote in {path}"
        raise WorkbookError(what, expected, "delete that file to begin anew") from None


def header(notebook: nb.NotebookNode) -> dict[str, str]:
    """The table of time and needs in a chapter's or a lab's first cell, by the names of its columns.

    >>> header(nb.read(Path("notebooks/00_start_here.ipynb")))["time"]  # doctest: +SKIP
    '10 minutes, a few seconds of computing'
    """
    rows = [_columns(line) for line in notebook.cells[0].source.splitlines() if line.startswith("|")]
    return dict(zip(rows[0], rows[2], strict=False)) if len(rows) > 2 else {}


def _columns(line: str) -> list[str]:
    return [column.strip() for column in line.strip().strip("|").split("|")]


def _chapter(path: Path, noted: dict, labs: dict[str, Lab]) -> Chapter:
    notebook = nb.read(path)
    number = path.name.partition("_")[0]
    title = notebook.cells[0].source.splitlines()[0].lstrip("# ").partition("·")[2].strip()
    asked = sum(len(_ASKED.findall(cell.source)) for cell in notebook.cells if cell.cell_type == "code")
    mine = noted["chapters"].get(number, {})
    return Chapter(number, path.name, title, header(notebook), asked, mine, labs.get(number))


def _lab(path: Path, noted: dict) -> Lab:
    notebook = nb.read(path)
    points = sum(map(lab_cells.points, notebook.cells))
    return Lab(path.name, header(notebook), points, noted["labs"].get(path.name.partition("_")[0], {}))


def _figures(one: Chapter) -> dict:
    """Everything that the table and the details show; `typical_off` and each guess's `off` are shares."""
    lab = one.lab and {"points": one.lab.points, "earned": one.lab.earned, **one.lab.noted}
    counted = {"asked": one.asked, "typical_off": one.typical_off, "guesses": one.guesses, "verdicts": one.verdicts}
    return {"chapter": one.number, "title": one.title, "opened": bool(one.noted), **counted, "lab": lab}


def _off(guess: dict) -> str:
    if "off" not in guess:
        return "not compared yet"
    return "compared" if guess["off"] is None else f"off by {signed_percent(guess['off'])}"


def _table(found: Iterable[Chapter]) -> Iterator[str]:
    yield f"{'chapter':<34}{'so far':<40}lab"
    for one in found:
        lab = ""
        if one.lab is not None:
            lab = "–" if one.lab.earned is None else f"{one.lab.earned:g} of {one.lab.points:g} points"
        yield f"{one.number} {one.title:<31}{one.said or '–':<40}{lab}".rstrip()
    yield "\nEach guess of a chapter: workbook progress 02. All of this stays on this machine."


def _details(one: Chapter) -> Iterator[str]:
    yield f"{one.number} {one.title}: {one.said or 'not opened yet'}"
    for question, guess in one.guesses.items():
        yield f"  {question}: {guess['guess']:g} {guess['unit']}, {_off(guess)}"
    for claim, verdict in one.verdicts.items():
        yield f"  claim {claim}: {verdict['guess']}, {'as computed' if verdict['right'] else 'the cases say otherwise'}"
    if one.lab is not None and one.lab.noted:
        yield f"lab {one.number}: {one.lab.earned:g} of {one.lab.points:g} points on {one.lab.noted.get('checked')}"
        for row in one.lab.noted["questions"].values():
            yield f"  {row['title']}: {row['earned']:g} of {row['points']:g}"
