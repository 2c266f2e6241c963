"""What every submission of a class is compared with: the worked lab, run once with the class's seed, on this machine.

So machine and library versions cancel, and who copied the published outputs has the wrong ones. Before anybody is
graded the reference grades itself: the solution must earn all points, the untouched lab none.

An instructor's own checks are a notebook outside the repository, run in a kernel of its own, whose output nobody sees.
`--checks DIR` holds one per lab, named after it (02_anything.ipynb). It is made as the labs are: asking cells, whose
`metadata.workbook.role` is "ask", call the answers; check cells carry nbgrader metadata (grade, points, a grade_id) and
weigh what came back; its other code cells prepare them, and answers see nothing of those. `metadata.workbook.feedback`
of a check is the one sentence that its learner may read.
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

from ... import __version__
from ...catalog.errors import WorkbookError
from ...course import lab_cells
from ...course import notebook as nb
from ...course.stubs import without_hidden
from ..intake.assemble import Assembly
from ..sandbox.nbval_run import UNFINISHED, CellResults
from ..sandbox.worker import Worker
from .answer_kernel import answering, run_answers, set_limits, untouched
from .check_kernel import References, notebook_of, rows_of, weigh
from .results import GradedQuestion, questions_of

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
    `references` is what the checks have measured to compare with, by check.
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
    references: References


def versions() -> dict[str, str]:
    """Of what could change a grade: the language, the libraries that count and compare, and ours."""
    ours = {"python": platform.python_version(), "helpers": __version__}
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
    own = load_checks(checks, worked) if checks else None
    parts = [nb.text(worked), nb.text(own) if own else "", seed, spare_s, wall_s, worker.limits, versions()]
    digest = hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()
    public = _run_through(worker, worked, seed, spare_s)
    seconds, references, private = public.seconds, public.references, None
    if own is not None:
        ran = _run_through(worker, with_private_checks(worked, own), seed, spare_s)
        private, references = only_private(ran.notebook), references | ran.references
    title = next((cell.source.splitlines()[0].lstrip("# ") for cell in worked.cells if cell.source), path.stem)
    wall_s += 10 * sum(seconds.values())
    names = tuple(modules(worked))
    reference = Reference(
        path.stem, title, seed, public.notebook, private, spare_s, wall_s, digest, names, public.imported, references
    )
    _grade_itself(worker, reference)
    return reference


def cells_of(worker: Worker, reference: Reference, notebook: NotebookNode, private: bool = False) -> CellResults:
    """How an assembled notebook does: its answers asked, and what they gave weighed; or by the private checks."""
    lab = reference.notebook
    if private and reference.private is not None:
        lab, notebook = (with_private_checks(one, reference.private) for one in (lab, notebook))
    timed = copy.deepcopy(notebook)
    for cell in timed.cells:
        cell.metadata.setdefault("workbook", {}).setdefault("limit_s", reference.spare_s)  # the learner's own cells
    seed, wall_s = reference.seed, reference.wall_s
    found = run_answers(worker.run, lab, timed, seed=seed, wall_s=wall_s)
    return weigh(worker.run, lab, found, seed=seed, wall_s=wall_s, references=reference.references)


@dataclass(frozen=True)
class _Ran:
    """The worked lab as it ran: checks with their outputs, cells with their limits; what else it told."""

    notebook: NotebookNode
    seconds: dict[str, float]
    imported: tuple[str, ...]
    references: References


def _run_through(worker: Worker, notebook: NotebookNode, seed: str, spare_s: float) -> _Ran:
    """The worked lab, asked and weighed with `seed`."""
    fresh = copy.deepcopy(notebook)
    for cell in fresh.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None  # nothing to compare with yet
    asked = _listing_imports(answering(fresh, fresh, seed))
    cells = worker.run(asked, wall_s=1800)
    imported = cells.pop("imported", UNFINISHED).stdout.split()[:MOST_IMPORTS]
    _require_passed(asked, cells)
    asks = [ask for exercise in lab_cells.exercises(fresh) for ask in exercise.asks]
    weighing = notebook_of(fresh, {ask.id: rows_of(cells[ask.id]) for ask in asks}, {}, seed, publish=True)
    set_limits(weighing, {}, 300.0)
    weighed = worker.run(weighing, wall_s=1800)
    _require_passed(weighing, weighed)
    for number, cell in nb.code_cells(fresh):
        if lab_cells.is_check(cell):
            printed = weighed[cell.id].stdout
            if not printed:
                raise ReferenceFailedError(
                    f"check {lab_cells.grade_id(cell)!r} prints nothing: every answer would pass"
                )
            cell.outputs, cell.execution_count = [v4.new_output("stream", name="stdout", text=printed)], number
    checks = [cell.id for cell in fresh.cells if lab_cells.is_check(cell)]
    seconds = {key: result.seconds for key, result in (weighed | cells).items()}
    references = {key: told for key in checks for told in weighed[f"after-{key}"].told[-1:] if told}
    set_limits(fresh, seconds, spare_s)
    return _Ran(fresh, seconds, tuple(imported), references)


def _require_passed(notebook: NotebookNode, cells: CellResults) -> None:
    for cell in notebook.cells:
        result = cells.get(cell.id, UNFINISHED)
        if cell.cell_type == "code" and not result.passed and cell.id != "imported":
            raise ReferenceFailedError(f"the worked lab fails at {nb.first_line(cell.source)!r}: {result.message}")
        failed = next((row["raised"] for row in rows_of(result) if "raised" in row), "")
        if failed:
            raise ReferenceFailedError(f"the worked lab fails at {nb.first_line(cell.source)!r}: {failed}")


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
    asks = [cell for cell in own.cells if lab_cells.is_ask(cell)]
    if not checks or not asks or taken or any(lab_cells.is_answer(cell) for cell in own.cells):
        what = f"{path.name} holds {len(asks)} asking and {len(checks)} check cells"
        what += f", {min(taken)!r} is the lab's own" if taken else ""
        expected = "cells that ask, with metadata.workbook.role 'ask', and check cells with a grade_id of their own"
        raise WorkbookError(what, expected, "copy an exercise's cells from the lab, change the grade_id and the source")
    own.cells = [cell for cell in own.cells if cell.cell_type == "code"]
    for number, cell in enumerate(own.cells):
        cell.id = f"{OWN}{number}"
        if lab_cells.is_given(cell) and not lab_cells.role(cell):
            cell.metadata["workbook"] = cell.metadata.get("workbook", {}) | {"role": lab_cells.APPARATUS}
    return own


def with_private_checks(answers: NotebookNode, own: NotebookNode) -> NotebookNode:
    """`answers` (a reference or a learner's assembly) without the public questions, then the private cells."""
    notebook = copy.deepcopy(answers)
    kept = [cell for cell in notebook.cells if not (lab_cells.is_check(cell) or lab_cells.is_ask(cell))]
    notebook.cells = kept + copy.deepcopy(own.cells)
    return notebook


def only_private(notebook: NotebookNode) -> NotebookNode:
    """The private cells alone, as `with_private_checks` put them there, with what a run gave them."""
    own = copy.deepcopy(notebook)
    own.cells = [cell for cell in own.cells if cell.id.startswith(OWN)]
    return own


def private_questions(own: NotebookNode, cells: CellResults) -> tuple[GradedQuestion, ...]:
    """A Question per private check. Its message is the instructor's sentence, or that it failed; never an output."""
    checks = [cell for cell in own.cells if lab_cells.is_check(cell)]
    return tuple(_private_question(number, check, cells) for number, check in enumerate(checks, start=1))


def _private_question(number: int, check: NotebookNode, cells: CellResults) -> GradedQuestion:
    passed = cells.get(check.id, UNFINISHED).passed
    sentence = str(check.metadata.get("workbook", {}).get("feedback", "")) or "a check of your instructor's failed"
    return GradedQuestion(
        key=lab_cells.grade_id(check),
        title=f"Private check {number}",
        earned=lab_cells.points(check) if passed else 0,
        points=lab_cells.points(check),
        outcome="passed" if passed else "wrong",
        message="" if passed else sentence,
        check_ids=(check.id,),
    )
