"""`workbook check 02`: grade one learner's lab on this machine, one row per exercise."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from nbformat import NotebookNode

from helpers.catalog.errors import WorkbookError
from helpers.course import grading, report
from helpers.course import notebook as nb
from helpers.course.assemble import assemble
from helpers.course.build import execute
from helpers.course.run import run

STORED_SEED = "0"


def check(lab: str, root: Path, learner_path: Path | None = None) -> int:
    """Grade a lab, print the report: 0 when every check passed, 1 when one did not, 2 for unusable input.

    `lab` is a chapter's number ('02'), a lab's stem, or a path to the learner's notebook; with a number,
    `learner_path` says where the notebook is if not in labs/. WORKBOOK_SEED draws other inputs than stored.
    """
    try:
        results, warnings = results_of(*locate(lab, root, learner_path), seed=_seed())
    except WorkbookError as error:
        print(error, file=sys.stderr)
        return 2
    print(report.text(results, warnings))
    return 0 if all(result.passed for result in results) else 1


def results_of(
    reference_path: Path, learner_path: Path, *, seed: str = STORED_SEED
) -> tuple[tuple[report.ExerciseResult, ...], tuple[str, ...]]:
    """The exercise results of one learner's notebook against one reference, and the warnings."""
    reference = reference_lab(reference_path, seed)
    assembly = assemble(reference, nb.read(learner_path))
    cells = run(assembly.notebook, seed=seed)
    return report.exercise_results(reference, assembly, cells), assembly.warnings


def reference_lab(path: Path, seed: str = STORED_SEED) -> NotebookNode:
    """The worked lab with the outputs that `seed` gives: the stored ones, or for another seed fresh ones."""
    reference = nb.read(path)
    grading.require_ids(reference, path.name)
    checks = [cell for exercise in grading.exercises(reference) for cell in exercise.checks]
    if not checks or any(cell.execution_count is None or not cell.outputs for cell in checks):
        # nbval compares nothing in such a cell, so every answer would pass.
        raise WorkbookError(
            f"{path.name} has check cells without a stored output",
            "a worked lab that was built",
            f"run: workbook build {path.stem}",
        )
    if seed == STORED_SEED:
        return reference
    with tempfile.TemporaryDirectory(prefix="workbook-") as folder:
        return execute(reference, Path(folder), seed=seed).notebook


def locate(lab: str, root: Path, learner_path: Path | None = None) -> tuple[Path, Path]:
    """(reference, learner's notebook) for what was asked. WorkbookError when either is not there."""
    if learner_path is None and lab.endswith(".ipynb"):
        learner_path = Path(lab)
        lab = _lab_of(learner_path)
    reference = _one(nb.find(lab, root, ["solutions"]), lab)
    learner_path = learner_path or root / "labs" / reference.name
    if not learner_path.is_file():
        raise WorkbookError(
            f"no notebook at {learner_path}",
            "the lab you worked on",
            "pass its path: workbook check PATH.ipynb",
        )
    return reference, learner_path


def _lab_of(learner_path: Path) -> str:
    """The lab that a notebook was released as, whatever its file is called now; else its name's number."""
    metadata = nb.read(learner_path).metadata if learner_path.is_file() else {}
    source = metadata.get("workbook", {}).get("source", learner_path.name)
    return Path(str(source)).stem.partition("_")[0]


def _one(paths: list[Path], lab: str) -> Path:
    if len(paths) > 1:
        names = ", ".join(path.stem for path in paths)
        raise WorkbookError(f"{lab!r} names {len(paths)} labs", names, "use the whole name")
    return paths[0]


def _seed() -> str:
    return os.environ.get("WORKBOOK_SEED", STORED_SEED)
