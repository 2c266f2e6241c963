"""The course that `workbook release --nbgrader` writes, and nbgrader's own commands run on it."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from helpers.catalog.errors import WorkbookError
from helpers.course import notebook as nb
from helpers.course.nbgrader_course import write_course, write_twins
from helpers.course.release import release
from tests.course.example_lab import RIGHT, cell_of, save, with_sources

LAB = "05_numbers"
SOURCE, RELEASE = (f"{step}/{LAB}/{LAB}.ipynb" for step in ("source", "release"))


def configuration(folder: Path) -> SimpleNamespace:
    """What nbgrader_config.py sets, run as nbgrader runs it."""
    c = SimpleNamespace(**{name: SimpleNamespace() for name in ("CourseDirectory", "GenerateAssignment", "Execute")})
    path = folder / "nbgrader_config.py"
    exec(compile(path.read_text("utf-8"), path, "exec"), {"get_config": lambda: c, "__file__": str(path)})
    return c


def test_source_is_the_worked_lab_and_release_its_twin(built_root, tmp_path):
    write_course(built_root, tmp_path / "course")
    written = sorted(str(path.relative_to(tmp_path / "course")) for path in tmp_path.rglob("*") if path.is_file())
    assert written == ["README.md", "nbgrader_config.py", RELEASE, SOURCE]
    for mine, theirs in ((SOURCE, "solutions"), (RELEASE, "labs")):
        assert (tmp_path / "course" / mine).read_bytes() == (built_root / theirs / f"{LAB}.ipynb").read_bytes()
    assert f"nbgrader autograde {LAB}" in (tmp_path / "course/README.md").read_text("utf-8")
    assert "workbook grade 05 submitted" in (tmp_path / "course/README.md").read_text("utf-8")


def test_the_settings_point_at_the_course_and_at_helpers(course, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", "theirs")
    root = course.rename(tmp_path / "the dean's")
    write_course(root, tmp_path / "here")
    moved = (tmp_path / "here").rename(tmp_path / "there")
    assert configuration(moved).CourseDirectory.root == str(moved)
    assert os.environ["PYTHONPATH"] == os.pathsep.join([str(root), "theirs"])


def test_again_renews_the_labs_and_leaves_the_rest(course, tmp_path):
    folder = tmp_path / "nbgrader"
    write_course(course, folder)
    kept = [folder / "nbgrader_config.py", folder / "gradebook.db", folder / f"submitted/ada/{LAB}/{LAB}.ipynb"]
    kept[-1].parent.mkdir(parents=True)
    for path in kept:
        path.write_text("mine")
    changed = with_sources(nb.read(course / f"solutions/{LAB}.ipynb"), {"title": "# Lab 05: more numbers"})
    save(changed, course / f"solutions/{LAB}.ipynb")
    write_course(course, folder)
    assert [path.read_text() for path in kept] == ["mine"] * 3
    assert cell_of(nb.read(folder / RELEASE), "title").source == "# Lab 05: more numbers"


@pytest.mark.parametrize("what", ["a folder of other things", "a file"])
def test_another_folder_is_refused_and_left_as_it_is(what, built_root, tmp_path):
    folder = tmp_path / "thesis"
    if what == "a file":
        folder.write_text("x")
    else:
        save(nb.read(built_root / f"labs/{LAB}.ipynb"), folder / "draft.ipynb")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(WorkbookError, match="holds something else"):
        write_course(built_root, folder)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_lab_that_cannot_be_released_leaves_nothing(course, tmp_path):
    path = course / f"solutions/{LAB}.ipynb"
    save(with_sources(nb.read(path), {"half": "def half(x):\n    return x / 2"}), path)
    with pytest.raises(WorkbookError, match="no solution region"):
        write_course(course, tmp_path / "nbgrader")
    with pytest.raises(WorkbookError, match="holds no notebooks"):
        write_course(tmp_path, tmp_path / "nbgrader")
    assert not (tmp_path / "nbgrader").exists()


def test_the_hook_puts_the_workbooks_lab_back(built_root, tmp_path):
    write_course(built_root, tmp_path)
    before = (tmp_path / RELEASE).read_bytes()
    (tmp_path / RELEASE).write_text("nbgrader's version")
    write_twins(LAB, ".", [f"{tmp_path}/source/./{LAB}/{LAB}.ipynb"])  # as nbgrader spells it
    assert (tmp_path / RELEASE).read_bytes() == before


SUBMISSIONS = {  # the cells that the learner wrote, and the points: twice 2, pages 2, half 1
    "solved": (RIGHT, 5),
    "untouched": ({}, 0),
    "half": ({"twice": RIGHT["twice"], "pages": "class Pages:\n    def count(self, tokens):\n        return 0"}, 2),
    "hidden": ({"twice": "def twice(x):\n    return {1: 2, 5: 10}[x]", "half": RIGHT["half"]}, 1),
}


@pytest.mark.all
def test_nbgraders_own_commands_run_on_it(course, tmp_path):
    pytest.importorskip("nbgrader", reason="nbgrader is not installed: pip install -r requirements-nbgrader.txt")
    solution = course / f"solutions/{LAB}.ipynb"
    setup = cell_of(nb.read(solution), "setup").source + "\nfrom helpers.catalog import model"
    save(with_sources(nb.read(solution), {"setup": setup}), solution)
    assert release(course) == 0
    folder = tmp_path / "nbgrader"
    write_course(course, folder)
    nbgrader("generate_assignment", LAB, folder=folder)
    assert (folder / RELEASE).read_bytes() == (course / f"labs/{LAB}.ipynb").read_bytes()
    for learner, (answers, _) in SUBMISSIONS.items():
        save(with_sources(nb.read(folder / RELEASE), answers), folder / f"submitted/{learner}/{LAB}/{LAB}.ipynb")
    for step in ("autograde", "generate_feedback"):
        nbgrader(step, LAB, folder=folder)
    nbgrader("export", folder=folder)
    rows = csv.DictReader((folder / "grades.csv").read_text("utf-8").splitlines())
    grades = {row["student_id"]: (float(row["score"]), float(row["max_score"])) for row in rows}
    assert grades == {learner: (points, 5) for learner, (_, points) in SUBMISSIONS.items()}
    for learner in SUBMISSIONS:
        feedback = (folder / f"feedback/{learner}/{LAB}/{LAB}.html").read_text("utf-8")
        assert (": a started page is a page" in feedback) == (learner == "half")  # the traceback, not the source


def nbgrader(*arguments: str, folder: Path) -> None:
    """Run one command of nbgrader's in `folder`, as its README says."""
    command = [sys.executable, "-m", "nbgrader", *arguments]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])  # it looks there for alembic
    environment = os.environ | {"PATH": path}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
