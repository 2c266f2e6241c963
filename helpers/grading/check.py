"""`workbook check 02`: grade one learner's lab on this machine, one row per exercise."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tempfile
import textwrap
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path

from nbformat import NotebookNode

from ..catalog.errors import WorkbookError, unknown_name
from ..course import lab_cells
from ..course import notebook as nb
from ..course.build import execute
from ..course.notebook import LABS
from ..course.progress import read_notes
from ..course.start_page import renew_start_page
from ..course.workspace import own_lab
from ..lesson import notes
from ..lesson.drawn_inputs import PUBLIC_SEED
from .intake.assemble import assemble
from .intake.reading import Unreadable, read
from .judging.answer_kernel import Run, run_answers
from .judging.check_kernel import weigh
from .judging.results import NOT_WRITTEN, TRIED, GradedQuestion, cells_that_ended_the_kernel, questions_of
from .sandbox.nbval_run import CellResults, run
from .worked_answers import exercise_called, worked_answer

WALL_S = 600
_SPOKEN = re.compile(r"(?:lab)?[ _-]*(\d{1,2})", re.IGNORECASE | re.ASCII)


def check(
    lab: str,
    root: Path,
    learner_path: Path | None = None,
    show: str | None = None,
    as_json: bool = False,
    only: str | None = None,
) -> int:
    """Grade a lab, print the report: 0 when every check passed, 1 when one did not, 2 for unusable input.

    `lab` is a chapter's number ('02'), a lab's stem, or a path to the learner's notebook; with a number,
    `learner_path` says where the notebook is if neither in workspace/ nor in labs/. WORKBOOK_SEED draws other inputs
    than stored. With `show` the worked answer to that question is printed, see `worked_answers`; with `only` that
    question alone is graded.
    What is printed meanwhile goes to stderr, so that with `as_json` stdout holds one JSON object.
    """
    try:
        reference, learner_path = locate(lab, root, learner_path)
        if show is not None:
            print(worked_answer(reference, learner_path, root, show, partial(_tried, reference, learner_path, root)))
            return 0
        seed = os.environ.get("WORKBOOK_SEED", PUBLIC_SEED)
        questions, warnings = results_of(reference, learner_path, seed=seed, only=only)
    except WorkbookError as error:
        print(error, file=sys.stderr)
        return 2
    print(json.dumps(figures(reference, questions, warnings)) if as_json else format_report(questions, warnings))
    _note(questions, reference, learner_path, root)
    return 0 if all(question.passed for question in questions) else 1


def results_of(
    reference_path: Path, learner_path: Path, *, seed: str = PUBLIC_SEED, only: str | None = None
) -> tuple[tuple[GradedQuestion, ...], tuple[str, ...]]:
    """The questions of one learner's notebook against one reference, or `only` one of them, and the warnings."""
    reference = reference_lab(reference_path, seed)
    exercises = lab_cells.exercises(reference)
    chosen = exercises if only is None else (exercise_called(exercises, only),)
    keys = {lab_cells.grade_id(one.answers[0]) for one in chosen}
    try:
        assembly = assemble(reference, read(learner_path))
    except Unreadable as error:
        raise nb.unreadable(learner_path, str(error)) from None
    if all(state in NOT_WRITTEN for state in assembly.answers.values()):
        cells: CellResults = {}  # at once: there is nothing to run
    else:
        cells = _run(reference, chosen, assembly.notebook, seed)
    questions = tuple(one for one in questions_of(reference, assembly, cells) if one.key in keys)
    return questions, (*assembly.warnings, *cells_that_ended_the_kernel(assembly, cells))


def _run(
    reference: NotebookNode, chosen: Iterable[lab_cells.Exercise], assembled: NotebookNode, seed: str
) -> CellResults:
    """How each cell went; of the exercises that were not chosen the answers run, and nothing asks them."""
    asks = {ask.id for one in chosen for ask in one.asks}
    assembled = NotebookNode(assembled)
    assembled.cells = [cell for cell in assembled.cells if not lab_cells.is_ask(cell) or cell.id in asks]
    print("Your answers are asked, then weighed, as in grading. It takes half a minute or more …", file=sys.stderr)
    asking = _counted("asked", {one.title: one.asks for one in chosen})
    cells = run_answers(asking, reference, assembled, seed=seed, wall_s=WALL_S)
    weighing = _counted("weighed", {one.title: one.checks for one in chosen})
    cells = weigh(weighing, reference, cells, seed=seed, wall_s=WALL_S)
    _say("")
    return cells


def _counted(done: str, questions: dict[str, Iterable[NotebookNode]]) -> Run:
    """`run`, which says on stderr of each question when all of its cells were run."""
    left = {title: {cell.id for cell in cells} for title, cells in questions.items()}

    def look(found: CellResults) -> None:
        for title in [title for title, keys in left.items() if keys <= found.keys()]:
            del left[title]
            _say(f"{len(questions) - len(left)} of {len(questions)} {done}: {title}")

    return partial(run, look=look)


def _say(line: str) -> None:
    """On stderr; in a terminal in place of the line before, where '' leaves none."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{line[: shutil.get_terminal_size().columns - 1]}", end="", file=sys.stderr, flush=True)
    elif line:
        print(line, file=sys.stderr, flush=True)


def reference_lab(path: Path, seed: str = PUBLIC_SEED) -> NotebookNode:
    """The worked lab with the outputs that `seed` gives: the stored ones, or for another seed fresh ones."""
    reference = nb.read(path)
    lab_cells.require_ids(reference, path.name)
    checks = [cell for exercise in lab_cells.exercises(reference) for cell in exercise.checks]
    if not checks or any(cell.execution_count is None or not cell.outputs for cell in checks):
        # nbval compares nothing in such a cell, so every answer would pass.
        what, do = f"{path.name} has check cells without a stored output", f"run: workbook build {path.stem}"
        raise WorkbookError(what, "a worked lab that was built", do)
    if seed == PUBLIC_SEED:
        return reference
    with tempfile.TemporaryDirectory(prefix="workbook-") as folder:
        return execute(reference, Path(folder), seed=seed).notebook


def locate(lab: str, root: Path, learner_path: Path | None = None) -> tuple[Path, Path]:
    """(reference, learner's notebook) for what was asked. WorkbookError when either is not there."""
    if learner_path is None and lab.endswith(".ipynb"):
        learner_path = Path(lab)
        lab = _lab_of(learner_path)
    reference = one_lab(lab, root)
    learner_path = learner_path or own_lab(root, reference.name)
    if not learner_path.is_file():
        do = "pass its path: workbook check PATH.ipynb"
        raise WorkbookError(f"no notebook at {learner_path}", "the lab you worked on", do)
    return reference, learner_path


def one_lab(lab: str, root: Path) -> Path:
    """The worked lab called `lab`: by its number ('02', '2', 'lab 2'), its name, or the file of either twin.

    A file that was renamed is known by the lab that it says it is. WorkbookError for an unknown name, and for one that
    names several.
    """
    known = nb.find_all(root, ["solutions"])
    if not known:
        raise nb.none_there(root, ["solutions"])
    name = _name_of(lab.strip(), {path.stem for path in known})
    paths = [path for path in known if name in (path.stem, path.stem.partition("_")[0])]
    if not paths:
        raise unknown_name("lab", lab, [path.stem for path in known])
    if len(paths) > 1:
        names = ", ".join(path.stem for path in paths)
        raise WorkbookError(f"{lab!r} names {len(paths)} labs", names, "use the whole name")
    return paths[0]


def _name_of(lab: str, stems: set[str]) -> str:
    """The stem or the two-digit number that is meant by `lab`; itself where it is neither a number nor a file."""
    if lab.lower().endswith(".ipynb"):
        path = Path(lab)
        return path.stem if path.stem in stems or not path.is_file() else _lab_of(path)
    spoken = _SPOKEN.fullmatch(lab)
    return f"{int(spoken[1]):02d}" if spoken else lab


def format_report(questions: tuple[GradedQuestion, ...], warnings: tuple[str, ...] = ()) -> str:
    """The report: a row per exercise, the warnings, the total."""
    earned, points = sum(one.earned for one in questions), sum(one.points for one in questions)
    rows = [*map(_format_question, questions), *(f"! {warning}" for warning in warnings)]
    return "\n".join([*rows, f"{earned:g} of {points:g} points"])


def figures(reference: Path, questions: tuple[GradedQuestion, ...], warnings: tuple[str, ...]) -> dict:
    """The report for machines: the lab's name, its points, each question with its outcome, the warnings."""
    earned, points = sum(one.earned for one in questions), sum(one.points for one in questions)
    rows = [asdict(question) for question in questions]
    return {"lab": reference.stem, "earned": earned, "points": points, "questions": rows, "warnings": warnings}


def _note(questions: tuple[GradedQuestion, ...], reference: Path, learner_path: Path, root: Path) -> None:
    """Keep in the workspace what was earned by the learner whose workspace it is."""
    if _is_own(learner_path, root):
        rows = {
            one.key: {"title": one.title, "earned": one.earned, "points": one.points, "tried": one.outcome in TRIED}
            for one in questions
        }
        notes.checked(root / notes.FOLDER, reference.name.partition("_")[0], rows)
        renew_start_page(root)


def _tried(reference_path: Path, learner_path: Path, root: Path, key: str) -> bool:
    """Whether this answer was checked: noted in the workspace; of a notebook elsewhere nothing is, so check it now."""
    if _is_own(learner_path, root) and (root / notes.FOLDER).is_dir():
        noted = read_notes(root)["labs"].get(reference_path.name.partition("_")[0], {})
        return bool(noted.get("questions", {}).get(key, {}).get("tried"))
    (question,), _ = results_of(reference_path, learner_path, only=key)
    return question.outcome in TRIED


def _is_own(learner_path: Path, root: Path) -> bool:
    return learner_path.resolve().parent in ((root / notes.FOLDER / LABS).resolve(), (root / LABS).resolve())


def _format_question(question: GradedQuestion) -> str:
    mark = {"passed": "✓", "not started": "–"}.get(question.outcome, "✗")
    row = f"{mark} {question.title[:60]:<60} {question.earned:g}/{question.points:g}"
    message = question.message or ("not started" if question.outcome == "not started" else "")
    return row + ("\n" + textwrap.indent(message, "    ") if message else "")


def _lab_of(learner_path: Path) -> str:
    """The lab that a notebook was released as, whatever its file is called now; else its name's number."""
    source = ""
    with suppress(Unreadable):
        source = read(learner_path).source_lab
    return Path(source or learner_path.name).stem.partition("_")[0]
