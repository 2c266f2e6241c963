"""`workbook sample-class LAB --out FOLDER`: a made-up class of twenty, to try the grader on before the real one.

    submissions/LEARNER/...   what each handed in: right, wrong, half done, and what goes wrong with files
    expected.csv              learner, score, points, what happened

Nothing is drawn: the same lab gives the same bytes. A wrong answer returns nothing: each part of a question has a check
of its own, so a likelier one might be right in some part, and the score would not be known.
"""

from __future__ import annotations

import copy
import csv
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from nbformat import NotebookNode, v4

from ..catalog.errors import WorkbookError
from ..course import lab_cells
from ..course import notebook as nb
from ..course.lab_cells import Exercise
from ..course.release import released
from ..course.stubs import SOLUTION, stub

Exercises = tuple[Exercise, ...]
Files = dict[str, bytes]


@dataclass(frozen=True)
class Sample:
    """One learner's files by name, the points that they earn, and what happened."""

    learner: str
    what: str
    files: Files
    score: float


@dataclass(frozen=True)
class _Lab:
    stem: str
    twin: NotebookNode
    exercises: Exercises
    right: dict[str, str]  # each answer by its grade id

    def notebook(self, lost: Exercises = (), others: dict[str, str] | None = None) -> NotebookNode:
        """The released lab with every right answer written into it, but for those of `lost`; then these others."""
        answers = {key: source for key, source in self.right.items() if key not in _keys(lost)} | (others or {})
        lab = copy.deepcopy(self.twin)
        for cell in lab.cells:
            key = lab_cells.grade_id(cell)
            if lab_cells.is_answer(cell) and key in answers:
                cell.source = f"{lab_cells.anchor(key)}\n{answers[key]}"
        return lab

    def named(self, lab: NotebookNode) -> Files:
        """The notebook under the name that it was released as."""
        return {f"{self.stem}.ipynb": _bytes(lab)}


# What a learner did, given the lab and the exercises that it cost.
Deed = Callable[[_Lab, Exercises], Files]


def sample_class(name: str, root: Path, folder: Path) -> int:
    """Write the class for the lab called `name` into `folder`, which is new or empty; 0 when done.

    `name` is a chapter's number or a lab's stem. WorkbookError for an unknown lab or a folder that holds something.
    """
    path = nb.find(name, root, ["solutions"])[0]
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise WorkbookError(f"{folder} holds something", "a new or empty folder", "name another one with --out")
    solution = nb.read(path)
    found = samples(solution, path.stem)
    for sample in found:
        own = folder / "submissions" / sample.learner
        own.mkdir(parents=True)
        for file, contents in sample.files.items():
            (own / file).write_bytes(contents)
    points = sum(exercise.points for exercise in lab_cells.exercises(solution))
    with open(folder / "expected.csv", "w", encoding="utf-8", newline="") as table:
        rows = csv.writer(table, lineterminator="\n")
        rows.writerow(("learner", "score", "points", "what"))
        rows.writerows((sample.learner, f"{sample.score:g}", f"{points:g}", sample.what) for sample in found)
    number = path.stem.partition("_")[0]
    print(f"{len(found)} submissions; now: workbook grade {number} {folder / 'submissions'} --out {folder / 'grades'}")
    return 0


def samples(solution: NotebookNode, stem: str) -> tuple[Sample, ...]:
    """The twenty submissions for a worked lab, whose file is called `stem`, by learner."""
    twin = released(solution, f"solutions/{stem}.ipynb")
    exercises = lab_cells.exercises(solution)
    right = {lab_cells.grade_id(cell): _unmarked(cell.source) for one in exercises for cell in one.answers}
    lab = _Lab(stem, twin, exercises, right)
    total = sum(exercise.points for exercise in exercises)
    found = [
        Sample(learner, what, deed(lab, exercises[cost]), total - sum(one.points for one in exercises[cost]))
        for learner, what, cost, deed in _CLASS
    ]
    return tuple(sorted(found, key=lambda sample: sample.learner))


def _left(lab: _Lab, cost: Exercises) -> Files:
    """All but the lost exercises."""
    return lab.named(lab.notebook(lost=cost))


def _wrong(lab: _Lab, cost: Exercises) -> Files:
    """The lost exercises are answered with nothing."""
    return lab.named(lab.notebook(others=_nothing(cost)))


def _stuck(lines: str) -> Deed:
    """The first lost exercise begins with `lines`, which the kernel does not get past; the rest is unwritten."""

    def deed(lab: _Lab, cost: Exercises) -> Files:
        stuck = {key: f"{lines}\n\n{lab.right[key]}" for key in _keys(cost[:1])}
        return lab.named(lab.notebook(lost=cost, others=stuck))

    return deed


def _renamed(lab: _Lab, cost: Exercises) -> Files:
    return {f"Lab {lab.stem.partition('_')[0]} final.ipynb": _bytes(lab.notebook())}


def _two_files(lab: _Lab, cost: Exercises) -> Files:
    """The empty lab, and the finished one as a browser names a second download."""
    return lab.named(lab.twin) | {f"{lab.stem} (1).ipynb": _bytes(lab.notebook())}


def _own_cells(lab: _Lab, cost: Exercises) -> Files:
    tried = lab.notebook()
    for position in range(len(tried.cells), 0, -4):
        tried.cells.insert(position, v4.new_code_cell(f'print("here", {position})', id=f"try-{position}"))
    return lab.named(tried)


def _split(lab: _Lab, cost: Exercises) -> Files:
    """JupyterLab's "split cell": both halves keep the answer's metadata."""
    changed = lab.notebook()
    position = next(index for index, cell in enumerate(changed.cells) if lab_cells.is_answer(cell))
    half = copy.deepcopy(changed.cells[position])
    half.id, half.source = "first-half", "first_half = True"
    changed.cells.insert(position, half)
    return lab.named(changed)


def _without_metadata(lab: _Lab, cost: Exercises) -> Files:
    """Through an editor that keeps sources only."""
    changed = lab.notebook()
    changed.metadata = NotebookNode()
    for number, cell in enumerate(changed.cells):
        cell.metadata, cell.id = NotebookNode(), f"cell-{number}"
    return lab.named(changed)


def _edited_checks(lab: _Lab, cost: Exercises) -> Files:
    """The lost exercises are wrong, and their checks were made to like it, for more points."""
    changed = lab.notebook(others=_nothing(cost))
    theirs = {lab_cells.grade_id(check) for exercise in cost for check in exercise.checks}
    for cell in changed.cells:
        if lab_cells.grade_id(cell) in theirs:
            cell.source, cell.metadata["nbgrader"]["points"] = 'print("ok")', 100
    return lab.named(changed)


def _byte_order_mark(lab: _Lab, cost: Exercises) -> Files:
    return {f"{lab.stem}.ipynb": b"\xef\xbb\xbf" + _bytes(lab.notebook())}


def _cut_off(lab: _Lab, cost: Exercises) -> Files:
    whole = _bytes(lab.notebook())
    return {f"{lab.stem}.ipynb": whole[: len(whole) * 2 // 3]}


def _no_notebook(lab: _Lab, cost: Exercises) -> Files:
    return {f"{lab.stem}.pdf": b"%PDF-1.7\n% printed from the browser\n"}


# The exercises that a deed costs. Always the last ones, since an answer may build on the exercises before it.
ALL, BUT_FIRST, LAST_THREE, LAST_TWO, LAST = (slice(begin, None) for begin in (0, 1, -3, -2, -1))
NONE = slice(0)
_UNWRITTEN = re.compile(r"raise NotImplementedError\(.*\)")
LOOP = "count = 0\nwhile count < 10:\n    count =+ 1"
_CLASS: tuple[tuple[str, str, slice, Deed], ...] = (
    ("amara.okafor", "everything right", NONE, _left),
    ("anders.lindqvist", "nothing written", ALL, _left),
    ("beatriz.costa", "the first question alone", BUT_FIRST, _left),
    ("chen.wei", "all but the last question", LAST, _left),
    ("dana.horvath", "one wrong answer", LAST, _wrong),
    ("dmitri.volkov", "the last three answers wrong", LAST_THREE, _wrong),
    ("elif.yilmaz", "every answer wrong", ALL, _wrong),
    ("farid.rahimi", "a syntax error, where the learner stopped", LAST_TWO, _stuck("def halved(x)\n    return x / 2")),
    ("grace.njoroge", "an endless loop: =+ for +=", LAST_THREE, _stuck(LOOP)),
    ("hana.sato", "an import that does not exist", LAST, _stuck("from helpers.memory import bugdet")),
    ("ines.moreau", "waits for somebody to type", BUT_FIRST, _stuck('count = int(input("How many? "))')),
    ("jonas.becker", "cells of his own, which print", NONE, _own_cells),
    ("kavya.iyer", "an answer split into two cells", NONE, _split),
    ("liam.obrien", "an editor dropped ids and metadata", NONE, _without_metadata),
    ("maría.fernández", "the file was renamed", NONE, _renamed),
    ("noah.cohen", "two files, the empty lab and the finished one", NONE, _two_files),
    ("olga.petrova", "a byte order mark before the first byte", NONE, _byte_order_mark),
    ("pedro.alves", "the upload was cut off", ALL, _cut_off),
    ("qiang.zhou", "a wrong answer, and its check edited to say ok for 100 points", LAST, _edited_checks),
    ("rosa.klein", "a PDF in place of the notebook", ALL, _no_notebook),
)


def _nothing(exercises: Exercises) -> dict[str, str]:
    """Answers whose functions return None, by grade id."""
    cells = [cell for exercise in exercises for cell in exercise.answers]
    return {lab_cells.grade_id(cell): _UNWRITTEN.sub("return None", stub(cell.source)) for cell in cells}


def _keys(exercises: Exercises) -> list[str]:
    """The grade ids of their answers."""
    return [lab_cells.grade_id(cell) for exercise in exercises for cell in exercise.answers]


def _unmarked(answer: str) -> str:
    return "\n".join(line for line in answer.splitlines() if line.strip() not in SOLUTION)


def _bytes(lab: NotebookNode) -> bytes:
    return nb.text(lab).encode()
