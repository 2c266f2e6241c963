"""What every submission of a class is held against: the worked lab, run once with the class's seed, on this machine.

So machine and library versions cancel, and who copied the published outputs has the wrong ones. Before anybody is
graded the paper grades itself: the solution must earn all points, the untouched lab none.
"""

from __future__ import annotations

import ast
import copy
import hashlib
import importlib.metadata
import platform
from dataclasses import dataclass
from pathlib import Path

from nbformat import NotebookNode, v4

import helpers
from helpers.course import grading, report
from helpers.course import notebook as nb
from helpers.course.assemble import Assembly
from helpers.course.grade import private
from helpers.course.grade.bench import Bench
from helpers.course.judging import judge, unmarked
from helpers.course.release import without_hidden
from helpers.course.run import CellResult, missing
from helpers.course.trial import set_limits, trial, untouched

SPARE_S, WALL_S = 10.0, 120.0
MOST_IMPORTS = 2000  # they travel on a command line


class ReferenceFailedError(Exception):
    """The worked lab does not pass its own checks here: nobody can be graded. The words say which cell and why."""


@dataclass(frozen=True)
class Paper:
    """The reference with the outputs that `seed` gives and each cell's time limit; the instructor's checks, or None.

    `wall_s` is the time for a whole submission; `digest` changes with anything that could change a grade. `more` is
    what the worked lab imported while it ran, beyond what it names: a bench that has it saves each kernel a second.
    """

    lab: str
    title: str
    seed: str
    reference: NotebookNode
    private: NotebookNode | None
    spare_s: float
    wall_s: float
    digest: str
    modules: tuple[str, ...]
    more: tuple[str, ...]


def versions() -> dict[str, str]:
    """Of what could change a grade: the language, the libraries that count and compare, and ours."""
    ours = {"python": platform.python_version(), "helpers": helpers.__version__}
    return ours | {name: importlib.metadata.version(name) for name in ("torch", "nbval", "ipykernel")}


def modules(reference: NotebookNode) -> list[str]:
    """What the lab imports: worth importing once, before any kernel is made."""
    found: list[str] = []
    for _, cell in nb.code_cells(reference):
        try:
            nodes = ast.walk(ast.parse(cell.source))
        except SyntaxError:  # a magic
            continue
        for node in nodes:
            if isinstance(node, ast.Import):
                found += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                found.append(node.module)
    return list(dict.fromkeys(found))


def paper(
    bench: Bench, path: Path, seed: str, checks: Path | None = None, spare_s: float = SPARE_S, wall_s: float = WALL_S
) -> Paper:
    """The paper of the worked lab at `path`. ReferenceFailedError when it does not grade itself right.

    `checks` is the notebook with an instructor's own checks. A cell may take ten times what the reference's took and
    `spare_s` more, a whole submission the same of all of it and `wall_s` more. A lab whose wrong answers take long to
    fail, since they end processes that must be started again, has a longer `workbook.spare_s` in its metadata.
    """
    worked = _without_hidden_tests(nb.read(path))
    grading.require_ids(worked, path.name)
    spare_s = max(spare_s, worked.metadata.get("workbook", {}).get("spare_s", 0))
    reference, seconds, more = _run_through(bench, worked, seed)
    set_limits(reference, seconds, spare_s)
    own = private.load(checks, worked) if checks else None
    if own is not None:
        own, own_seconds, _ = _run_through(bench, private.assembled(reference, own), seed)
        own = private.only(own)
        set_limits(own, own_seconds, spare_s)
    title = next((cell.source.splitlines()[0].lstrip("# ") for cell in worked.cells if cell.source), path.stem)
    parts = [nb.text(worked), nb.text(own) if own else "", seed, spare_s, wall_s, bench.limits, versions()]
    digest = hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()
    wall_s += 10 * sum(seconds.values())
    made = Paper(path.stem, title, seed, reference, own, spare_s, wall_s, digest, tuple(modules(worked)), more)
    _grade_itself(bench, made)
    return made


def cells_of(bench: Bench, paper: Paper, notebook: NotebookNode) -> dict[str, CellResult]:
    """How an assembled notebook does: nbval, and the judge where many answers are right."""
    timed = unmarked(notebook)
    for cell in timed.cells:
        cell.metadata.setdefault("workbook", {}).setdefault("limit_s", paper.spare_s)  # the learner's own cells
    found = trial(bench.run, timed, seed=paper.seed, wall_s=paper.wall_s)
    return judge(bench.run, paper.reference, found, seed=paper.seed, wall_s=paper.wall_s)


def _without_hidden_tests(worked: NotebookNode) -> NotebookNode:
    """A learner's kernel reads whatever it runs, so what is to stay hidden is left out: see `--checks`."""
    for cell in worked.cells:
        if grading.is_check(cell):
            cell.source = without_hidden(cell.source)
    return worked


def _run_through(
    bench: Bench, notebook: NotebookNode, seed: str
) -> tuple[NotebookNode, dict[str, float], tuple[str, ...]]:
    """`notebook` with the stdout that it has with `seed`, the seconds of each cell, and what was imported meanwhile."""
    fresh = copy.deepcopy(notebook)
    for cell in fresh.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None  # nothing to compare with yet
    cells = bench.run(_listing_imports(fresh), seed=seed, wall_s=1800)
    imported = cells.pop("imported", missing()).stdout.split()[:MOST_IMPORTS]
    for number, cell in nb.code_cells(fresh):
        result = cells.get(cell.id)
        if result is None or not result.passed:
            why = result.message if result else "it was not reached"
            raise ReferenceFailedError(f"the worked lab fails at {nb.first_line(cell.source)!r}: {why}")
        if grading.is_check(cell):
            if not result.stdout:
                raise ReferenceFailedError(f"check {grading.grade_id(cell)!r} prints nothing: every answer would pass")
            cell.outputs = [v4.new_output("stream", name="stdout", text=result.stdout)]
            cell.execution_count = number
    return fresh, {key: result.seconds for key, result in cells.items()}, tuple(imported)


def _listing_imports(notebook: NotebookNode) -> NotebookNode:
    """`notebook` with a last cell that prints which modules have come since the first, in their order."""
    longer = copy.deepcopy(notebook)
    first = v4.new_code_cell("import sys\nsys.there_before = set(sys.modules)", id="there-before")
    words = "name for name in sys.modules if name not in sys.there_before and name.replace('.', '').isidentifier()"
    last = v4.new_code_cell(f"import sys\nprint(*({words}))", id="imported")
    longer.cells = [first, *longer.cells, last]
    set_limits(longer, {}, 300.0)
    return longer


def _grade_itself(bench: Bench, made: Paper) -> None:
    for notebook, name, state, wanted in (
        (made.reference, "the solution", "written", lambda one: one.earned == one.points),
        (untouched(made.reference), "the untouched lab", "untouched", lambda one: one.earned == 0),
    ):
        keys = [grading.grade_id(cell) for cell in notebook.cells if grading.is_answer(cell)]
        cells = cells_of(bench, made, notebook)
        questions = report.questions(made.reference, Assembly(notebook, dict.fromkeys(keys, state), ()), cells)
        for one in questions:
            if not wanted(one):
                earned = f"{one.earned:g} of {one.points:g}"
                raise ReferenceFailedError(f"{name} earns {earned} at {one.title!r}: {one.message or one.outcome}")
