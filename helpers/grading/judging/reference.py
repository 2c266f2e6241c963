"""What every submission of a class is compared with: the worked lab, run once with the class's seed, on this machine.

So machine and library versions cancel, and who copied the published outputs has the wrong ones. Before anybody is
graded the reference grades itself: the solution must earn all points, the untouched lab none.

An instructor's own checks are a notebook outside the repository, run in a kernel of its own, whose output nobody sees.
`--checks DIR` holds one per lab, named after it (02_anything.ipynb). Its check cells carry nbgrader metadata as the
labs' do (grade, points, a grade_id); its other code cells prepare them. They run after the given cells and the
learner's answers. `metadata.workbook.feedback` of a check is the one sentence that its learner may read.
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

from ...catalog.errors import WorkbookError
from ...course import lab_cells
from ...course import notebook as nb
from ...course.release import without_hidden
from ..intake.assemble import Assembly
from ..sandbox.nbval_run import UNFINISHED, CellResults
from ..sandbox.worker import Worker
from .results import Question, questions_of
from .trial import judge, set_limits, trial, unmarked, untouched

SPARE_S, WALL_S = 10.0, 120.0
MOST_IMPORTS = 2000  # they travel on a command line
OWN = "private-"  # begins the ids of these cells, so that none meets a lab's


class ReferenceFailedError(Exception):
    """The worked lab does not pass its own checks here: nobody can be graded. The words say which cell and why."""


@dataclass(frozen=True)
class Reference:
    """The worked lab with the outputs that `seed` gives and each cell's time limit; the instructor's checks, or None.

    `wall_s` is the time for a whole submission; `digest` changes with anything that could change a grade. `more` is
    what the worked lab imported while it ran, beyond what it names: a worker that has it saves each kernel a second.
    """

    lab: str
    title: str
    seed: str
    notebook: NotebookNode
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


def prepare(
    worker: Worker, path: Path, seed: str, checks: Path | None = None, spare_s: float = SPARE_S, wall_s: float = WALL_S
) -> Reference:
    """The reference made of the worked lab at `path`. ReferenceFailedError when it does not grade itself right.

    `checks` is the notebook with an instructor's own checks. A cell may take ten times what the reference's took and
    `spare_s` more, a whole submission the same of all of it and `wall_s` more. A lab whose wrong answers take long to
    fail, since they end processes that must be started again, has a longer `workbook.spare_s` in its metadata.
    """
    worked = nb.read(path)
    for cell in filter(lab_cells.is_check, worked.cells):
        # A learner's kernel reads whatever it runs, so what is to stay hidden is left out: see `--checks`.
        cell.source = without_hidden(cell.source)
    lab_cells.require_ids(worked, path.name)
    spare_s = max(spare_s, worked.metadata.get("workbook", {}).get("spare_s", 0))
    notebook, seconds, more = _run_through(worker, worked, seed)
    set_limits(notebook, seconds, spare_s)
    own = load_checks(checks, worked) if checks else None
    if own is not None:
        own, own_seconds, _ = _run_through(worker, with_private_checks(notebook, own), seed)
        own = only_private(own)
    parts = [nb.text(worked), nb.text(own) if own else "", seed, spare_s, wall_s, worker.limits, versions()]
    digest = hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()  # before limits, which are timings, are in
    if own is not None:
        set_limits(own, own_seconds, spare_s)
    title = next((cell.source.splitlines()[0].lstrip("# ") for cell in worked.cells if cell.source), path.stem)
    wall_s += 10 * sum(seconds.values())
    reference = Reference(path.stem, title, seed, notebook, own, spare_s, wall_s, digest, tuple(modules(worked)), more)
    _grade_itself(worker, reference)
    return reference


def cells_of(worker: Worker, reference: Reference, notebook: NotebookNode) -> CellResults:
    """How an assembled notebook does: nbval, and the judge where many answers are right."""
    timed = unmarked(notebook)
    for cell in timed.cells:
        cell.metadata.setdefault("workbook", {}).setdefault("limit_s", reference.spare_s)  # the learner's own cells
    found = trial(worker.run, timed, seed=reference.seed, wall_s=reference.wall_s)
    return judge(worker.run, reference.notebook, found, seed=reference.seed, wall_s=reference.wall_s)


def _run_through(
    worker: Worker, notebook: NotebookNode, seed: str
) -> tuple[NotebookNode, dict[str, float], tuple[str, ...]]:
    """`notebook` with the stdout that it has with `seed`, the seconds of each cell, and what was imported meanwhile."""
    fresh = copy.deepcopy(notebook)
    for cell in fresh.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None  # nothing to compare with yet
    cells = worker.run(_listing_imports(fresh), seed=seed, wall_s=1800)
    imported = cells.pop("imported", UNFINISHED).stdout.split()[:MOST_IMPORTS]
    for number, cell in nb.code_cells(fresh):
        result = cells.get(cell.id)
        if result is None or not result.passed:
            why = result.message if result else "it was not reached"
            raise ReferenceFailedError(f"the worked lab fails at {nb.first_line(cell.source)!r}: {why}")
        if lab_cells.is_check(cell):
            if not result.stdout:
                key = lab_cells.grade_id(cell)
                raise ReferenceFailedError(f"check {key!r} prints nothing: every answer would pass")
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


def _grade_itself(worker: Worker, reference: Reference) -> None:
    for notebook, name, state, wanted in (
        (reference.notebook, "the solution", "written", lambda one: one.earned == one.points),
        (untouched(reference.notebook), "the untouched lab", "untouched", lambda one: one.earned == 0),
    ):
        keys = [lab_cells.grade_id(cell) for cell in notebook.cells if lab_cells.is_answer(cell)]
        cells = cells_of(worker, reference, notebook)
        questions = questions_of(reference.notebook, Assembly(notebook, dict.fromkeys(keys, state), ()), cells)
        for one in questions:
            if not wanted(one):
                earned = f"{one.earned:g} of {one.points:g}"
                raise ReferenceFailedError(f"{name} earns {earned} at {one.title!r}: {one.message or one.outcome}")


def find_checks(folder: Path, lab: str) -> Path:
    """The notebook with the private checks of `lab` in `folder`. WorkbookError for none, and for several."""
    number = lab.partition("_")[0]
    found = sorted(path for path in folder.glob("*.ipynb") if path.stem.partition("_")[0] == number)
    if len(found) != 1:
        expected = f"one, {number}_anything.ipynb, whose check cells have points"
        do = "see the instructor's guide, or leave --checks out"
        raise WorkbookError(f"{folder} holds {len(found)} notebooks for lab {number}", expected, do)
    return found[0]


def load_checks(path: Path, worked: NotebookNode) -> NotebookNode:
    """The private checks at `path`. WorkbookError when there is none, or a grade_id is the lab's or repeated."""
    own = nb.read(path)
    lab_cells.require_ids(own, path.name)
    checks = [cell for cell in own.cells if lab_cells.is_check(cell)]
    taken = {lab_cells.grade_id(cell) for cell in worked.cells} & {lab_cells.grade_id(cell) for cell in checks}
    if not checks or taken or any(lab_cells.is_answer(cell) for cell in own.cells):
        what = f"{path.name} holds {len(checks)} check cells" + (f", {min(taken)!r} is the lab's own" if taken else "")
        expected = "code cells with metadata.nbgrader: grade true, solution false, points, a grade_id of their own"
        raise WorkbookError(what, expected, "copy a check cell of the lab and change its grade_id and its source")
    own.cells = [cell for cell in own.cells if cell.cell_type == "code"]
    for number, cell in enumerate(own.cells):
        cell.id = f"{OWN}{number}"
    return own


def with_private_checks(answers: NotebookNode, own: NotebookNode) -> NotebookNode:
    """`answers` (a reference or a learner's assembly) without the public checks, then the private cells."""
    notebook = copy.deepcopy(answers)
    notebook.cells = [cell for cell in notebook.cells if not lab_cells.is_check(cell)] + copy.deepcopy(own.cells)
    return notebook


def only_private(notebook: NotebookNode) -> NotebookNode:
    """The private cells alone, as `with_private_checks` put them there, with what a run gave them."""
    own = copy.deepcopy(notebook)
    own.cells = [cell for cell in own.cells if cell.id.startswith(OWN)]
    return own


def private_questions(own: NotebookNode, cells: CellResults) -> tuple[Question, ...]:
    """A Question per private check. Its message is the instructor's sentence, or that it failed; never an output."""
    checks = [cell for cell in own.cells if lab_cells.is_check(cell)]
    return tuple(_private_question(number, check, cells) for number, check in enumerate(checks, start=1))


def _private_question(number: int, check: NotebookNode, cells: CellResults) -> Question:
    passed = cells.get(check.id, UNFINISHED).passed
    sentence = str(check.metadata.get("workbook", {}).get("feedback", "")) or "a check of your instructor's failed"
    return Question(
        key=lab_cells.grade_id(check),
        title=f"Private check {number}",
        earned=lab_cells.points(check) if passed else 0,
        points=lab_cells.points(check),
        outcome="passed" if passed else "wrong",
        message="" if passed else sentence,
        check_ids=(check.id,),
    )
