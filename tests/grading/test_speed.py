"""Benchmark: thirty honest submissions of lab 01, graded by nbgrader's autograde and by `workbook grade --jobs 2`.

Lab 01 imports torch, as every lab does, and computes little, so what is compared is grading (kernels, imports, files)
and not the lab.
"""

from __future__ import annotations

import csv
import os
import resource
import subprocess
import sys
import time
from itertools import cycle, islice
from pathlib import Path

import nbformat
import pytest
from nbformat import v4

from helpers.course import notebook as nb
from helpers.course.nbgrader_course import write_course
from helpers.grading.sample_class import samples

ROOT = Path(__file__).resolve().parents[2]
LAB = "01_the_memory_hierarchy"
COUNT, GOAL = 30, 3
# Of the sample class those whose file and code both graders can live with: no loops, no broken files.
HONEST = {
    "amara.okafor",
    "anders.lindqvist",
    "beatriz.costa",
    "chen.wei",
    "dana.horvath",
    "dmitri.volkov",
    "elif.yilmaz",
    "farid.rahimi",
    "hana.sato",
    "jonas.becker",
}
pytestmark = [pytest.mark.all, pytest.mark.alone]


def hand_in(submitted: Path) -> dict[str, float]:
    """Write the submissions, no two the same, as nbgrader wants them; the score that each should get."""
    path = ROOT / "solutions" / f"{LAB}.ipynb"
    found = samples(nb.read(path), LAB)
    scores = {}
    for number, sample in enumerate(islice(cycle(one for one in found if one.learner in HONEST), COUNT)):
        lab = nbformat.reads(sample.files[path.name].decode(), as_version=4)
        lab.cells.append(v4.new_markdown_cell(f"By number {number}.", id=f"by-{number}"))
        folder = submitted / f"{sample.learner}-{number:02d}" / LAB
        folder.mkdir(parents=True)
        nb.write(folder / path.name, lab)
        scores[folder.parent.name] = sample.score
    return scores


def seconds(*command: object, folder: Path) -> tuple[float, float]:
    """(wall, CPU) of one command, its children included."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = os.environ | {"PATH": path, "OMP_NUM_THREADS": "1"}
    start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    words = [sys.executable, "-m", *map(str, command)]
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return time.perf_counter() - start, cpu


def scores_in(path: Path, learner: str) -> dict[str, float]:
    """The column `score` of a CSV, by the column called `learner`."""
    rows = csv.DictReader(path.read_text(encoding="utf-8-sig").splitlines())
    return {row[learner]: float(row["score"]) for row in rows}


def test_grading_beside_nbgrader(tmp_path, capsys):
    pytest.importorskip("nbgrader", reason="nbgrader is not installed: pip install -r requirements-nbgrader.txt")
    course = tmp_path / "course"
    write_course(ROOT, course)
    expected = hand_in(course / "submitted")
    seconds("nbgrader", "generate_assignment", LAB, folder=course)
    grade = ("helpers.cli", "grade", "01", course / "submitted", "--jobs", 2, "--out")
    ours = seconds(*grade, tmp_path / "out", folder=ROOT)
    theirs = seconds("nbgrader", "autograde", LAB, folder=course)
    seconds("nbgrader", "export", folder=course)
    assert scores_in(course / "grades.csv", "student_id") == expected
    assert scores_in(tmp_path / "out" / "gradebook.csv", "learner") == expected
    ratio = theirs[0] / ours[0]
    with capsys.disabled():
        print(
            f"\n  {COUNT} submissions of lab 01 in seconds (of CPU): nbgrader {theirs[0]:.0f} ({theirs[1]:.0f}), "
            f"workbook grade --jobs 2 {ours[0]:.0f} ({ours[1]:.0f}): {ratio:.1f} times as fast"
        )
    assert ratio >= GOAL
