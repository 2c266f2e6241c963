"""`workbook grade` from submissions to exit code, over the small example lab: no torch, three exercises."""

from __future__ import annotations

import contextlib
import csv
import fcntl
import json
import zipfile
from pathlib import Path

import pytest

from helpers.catalog.errors import WorkbookError
from helpers.cli import main
from helpers.course import notebook as nb
from helpers.grading import batch, executors
from helpers.grading.batch import Options, grade
from helpers.grading.intake.submissions import LearnerNotebook
from helpers.grading.judging import marking
from helpers.grading.judging.reference import Reference
from helpers.grading.sandbox import levels
from tests.course.example_lab import RIGHT, ask, cell_of, check, code, save, with_sources
from tests.grading.reports.marked_class import result

NAME = "05_numbers.ipynb"
CLASS = {"ada": RIGHT, "ben": RIGHT | {"twice": "def twice(x):\n    return x + 2"}, "cleo": {}}
SCORES = {"ada": 5, "ben": 3, "cleo": 0}


@pytest.fixture
def handed_in(built_root, tmp_path) -> Path:
    folder, lab = tmp_path / "class", nb.read(built_root / "labs" / NAME)
    for learner, answers in CLASS.items():
        save(with_sources(lab, answers), folder / f"{learner}.ipynb")
    return folder


def rows(out: Path) -> dict[str, dict[str, str]]:
    with (out / "gradebook.csv").open(encoding="utf-8-sig") as file:
        return {row["learner"]: row for row in csv.DictReader(file)}


def scores(out: Path) -> dict[str, float]:
    return {learner: float(row["score"]) for learner, row in rows(out).items()}


@pytest.mark.slow
def test_a_class_is_graded_once_and_published(built_root, handed_in, tmp_path, capsys):
    out = tmp_path / "out"
    assert grade("05", handed_in, out, built_root, Options(seed="3")) == 0
    assert scores(out) == SCORES
    assert {row["twice"] for row in rows(out).values()} == {"2", "0"}
    told = (out / "feedback/ben.html").read_text()
    assert "twice(1) is 2: did you add two?" in told
    manifest = json.loads((out / "manifest.json").read_text())
    assert (manifest["seed"], manifest["learners"]) == ("3", 3)
    assert "numbers" in (out / "summary.html").read_text()
    ran = nb.read(out / "executed/ada.ipynb")
    assert cell_of(ran, "check-twice").outputs[0].text == "1 -> 2\n5 -> 10\n"
    assert not (out / ".submissions").exists()
    assert "3 learners\n" in capsys.readouterr().out


@pytest.mark.slow
def test_what_was_graded_is_not_graded_again_unless_something_changed(built_root, handed_in, tmp_path, monkeypatch):
    out, marked, prepared = tmp_path / "out", [], []
    original, original_prepare = marking.mark, batch.prepare

    def noted(worker, reference, submission, *more):
        marked.append(submission.learner)
        return original(worker, reference, submission, *more)

    def noted_prepare(*arguments):
        prepared.append("the worked lab")
        return original_prepare(*arguments)

    monkeypatch.setattr("helpers.grading.executors.mark", noted)
    monkeypatch.setattr("helpers.grading.batch.prepare", noted_prepare)

    def graded_by(**options) -> list[str]:
        marked.clear()
        assert grade("05", handed_in, out, built_root, Options(**options)) == 0
        return sorted(marked)

    assert graded_by(jobs=1) == sorted(CLASS)
    first = (out / "gradebook.csv").read_bytes()
    assert graded_by() == [], "the seed is that of the run before"
    assert prepared == ["the worked lab"], "it is kept, too"
    save(with_sources(nb.read(built_root / "labs" / NAME), RIGHT | {"half": "half = 1"}), handed_in / "cleo.ipynb")
    assert graded_by() == ["cleo"]
    assert scores(out)["cleo"] == 4
    table = (out / "changes.csv").read_text(encoding="utf-8-sig")
    assert "cleo,total,0,4,another notebook was handed in" in table
    assert "ben" not in table
    assert len(prepared) == 1
    assert graded_by(force=True, only=("ben",)) == ["ben"]
    assert len(rows(out)) == 3
    assert graded_by(force=True) == sorted(CLASS)
    assert len(prepared) == 3, "what is forced is done from the start"
    assert graded_by(seed="another") == sorted(CLASS)
    assert len(prepared) == 4
    assert first != (out / "gradebook.csv").read_bytes()


@pytest.mark.slow
def test_private_checks_have_points_and_no_words(built_root, handed_in, tmp_path):
    checks, out = tmp_path / "private", tmp_path / "out"
    own = nb.read(built_root / "solutions" / NAME)
    sentence = "the last bit of a large number counts, too"
    asking = ask("private-ask", "doubled = asked(twice, secret)")
    secret = check("private-twice", "assert doubled == 2 * secret\nprint(doubled)", 2)
    secret.metadata["workbook"] = {"feedback": sentence}
    own.cells = [code("secret = 2**60 + 1", "prepare"), asking, secret]
    save(own, checks / "05_own.ipynb")
    lab = nb.read(built_root / "labs" / NAME)
    save(with_sources(lab, RIGHT | {"twice": "def twice(x):\n    return int(2.0 * x)"}), handed_in / "dora.ipynb")
    assert grade("05", handed_in, out, built_root, Options(seed="3", checks=checks)) == 0
    assert {name: float(row["private-twice"]) for name, row in rows(out).items()} == {
        "ada": 2,
        "ben": 0,
        "cleo": 0,
        "dora": 0,
    }
    assert scores(out)["dora"] == 5, "the public checks did not see it"
    assert sentence in (out / "feedback/dora.html").read_text()
    for path in out.rglob("*"):
        if path.is_file():
            assert b"2**60" not in path.read_bytes(), path
            assert str(2**61 + 2).encode() not in path.read_bytes(), path


@pytest.mark.all
def test_points_given_by_hand_stay(built_root, handed_in, tmp_path):
    out = tmp_path / "out"
    (handed_in / "emil.ipynb").write_text("{")
    assert grade("05", handed_in, out, built_root, Options(seed="3")) == 3
    path = out / "manual.csv"
    with path.open(encoding="utf-8-sig", newline="") as file:
        found = list(csv.DictReader(file))
    assert {row["learner"] for row in found} == {"emil"}
    for row in found:
        row["points"] = "1"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, found[0].keys())
        writer.writeheader()
        writer.writerows(found)
    assert grade("05", handed_in, out, built_root) == 0
    assert scores(out)["emil"] == 3
    (handed_in / "emil.ipynb").unlink()
    with pytest.raises(WorkbookError, match="nobody here is called 'emil'"):
        grade("05", handed_in, out, built_root, Options(force=True))
    assert "emil" in rows(out), "the row was told before anything was done"
    path.unlink()
    assert grade("05", handed_in, out, built_root) == 0
    assert sorted(page.stem for page in (out / "feedback").iterdir()) == sorted(CLASS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cell", "source", "words"),
    [
        ("twice", "def twice(x):\n    ### BEGIN SOLUTION\n    return x\n    ### END SOLUTION", "twice(1) is 2"),
        ("check-half", "x = halves[0]", "prints nothing"),
        ("check-half", "print(1)", "the untouched lab earns"),
    ],
)
def test_a_reference_that_fails_grades_nobody(course, handed_in, tmp_path, capsys, cell, source, words):
    path = course / "solutions" / NAME
    save(with_sources(nb.read(path), {cell: source}), path)
    assert grade("05", handed_in, tmp_path / "out", course, Options(seed="3")) == 1
    told = capsys.readouterr().err
    assert words in told
    assert "Nobody was graded" in told
    assert not (tmp_path / "out/gradebook.csv").exists()


def test_unusable_input_is_told_before_anything_runs(built_root, handed_in, tmp_path):
    for lab, submissions, options, words in [
        ("6", handed_in, Options(), "unknown lab '6'"),
        ("05", tmp_path / "nowhere", Options(), "nowhere"),
        ("05", handed_in, Options(checks=tmp_path), "0 notebooks"),
    ]:
        with pytest.raises(WorkbookError) as told:
            grade(lab, submissions, tmp_path / "out", built_root, options)
        assert words in str(told.value)


def test_bad_input_is_2_as_everywhere(capsys, tmp_path):
    assert main(["grade", "99", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    assert main(["grade"]) == 2
    assert main(["check", "99"]) == 2
    assert "99" in capsys.readouterr().err


def test_two_graders_do_not_share_a_folder(built_root, handed_in, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    with open(out / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(WorkbookError, match="another `workbook grade`"):
            grade("05", handed_in, out, built_root)


@pytest.mark.slow
def test_from_moodle_and_back(built_root, tmp_path, capsys):
    lab = nb.read(built_root / "labs" / NAME)
    with zipfile.ZipFile(tmp_path / "moodle.zip", "w") as archive:
        for folder, answers in (("Ada Lovelace_7", RIGHT), ("Alan Turing_8", CLASS["ben"])):
            archive.writestr(f"{folder}_assignsubmission_file/{NAME}", nb.text(with_sources(lab, answers)))
    columns = "Identifier,Full name,Grade,Maximum Grade,Last modified (submission),Last modified (grade)\n"
    rows = 'Participant 7,Ada,,5,"Friday, 2 October 2026, 2:14 PM",-\nParticipant 8,Alan,,5,-,-\n'
    (tmp_path / "worksheet.csv").write_text(columns + rows)
    (tmp_path / "due.toml").write_text("due = 2026-10-01T23:59:00Z\npercent_per_day = 10\n")
    out, options = tmp_path / "out", Options(seed="3", due=tmp_path / "due.toml", gradebook=tmp_path / "worksheet.csv")
    assert grade("05", tmp_path / "moodle.zip", out, built_root, options) == 0
    filled = columns + rows.replace("Ada,,", "Ada,4.5,").replace("Alan,,", "Alan,3,")
    assert (out / "gradebook_moodle.csv").read_text() == filled
    with zipfile.ZipFile(out / "feedback.zip") as archive:
        assert b"1 day late: 10 % less" in archive.read("Ada Lovelace_7_assignsubmission_file/feedback.html")
    assert "1 learner: Moodle's zip does not say when this was handed in" in capsys.readouterr().out
    assert grade("05", tmp_path / "moodle.zip", out, built_root, Options()) == 0
    told = capsys.readouterr()
    assert "the run before deducted for being late, and this one has no --due" in told.out
    assert "Ada Lovelace: 4.5 → 5: nothing is deducted for being late any more" in told.out
    assert "the worked lab is run" not in told.err


@pytest.mark.parametrize(("level", "stored"), [("bubblewrap", True), ("limits", False)])
def test_without_a_sandbox_nothing_of_the_worked_lab_is_stored(built_root, tmp_path, monkeypatch, level, stored):
    """There a learner's code can read what we can."""
    made = Reference("05", "Numbers", "3", nb.read(built_root / "solutions" / NAME), None, 1, 1, "digest", (), (), {})
    monkeypatch.setattr(batch, "Worker", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(batch, "prepare", lambda *_: made)
    arguments = (built_root / "solutions" / NAME, "3", None)
    for one in ("bubblewrap", level):
        assert batch._reference(*arguments, levels.SandboxLevel(one), tmp_path, Options()) == made
    assert (tmp_path / "reference.json").exists() == stored


def test_the_bar_says_who_is_being_graded():
    with batch._Progress(2) as progress:
        for name in ("ada", "ben\x1b[31m"):
            progress.started(LearnerNotebook(name, None))
        assert progress.now == ["ada", "ben"]
        done = (marking.Marked(result(name), None) for name in ("ben", "ada"))
        left = [list(progress.now) for _ in progress.until_done(done)]
    assert left == [["ada"], []]


@pytest.mark.slow
def test_an_unknown_learner_is_named(built_root, handed_in, tmp_path):
    with pytest.raises(WorkbookError, match="unknown learner 'adda'"):
        grade("05", handed_in, tmp_path / "out", built_root, Options(seed="3", only=("adda",)))


def not_on_the_engine(*_: object) -> None:
    raise ConnectionError("the engine is gone")


@pytest.mark.all
def test_engines_of_a_cluster_grade_like_local_workers(built_root, handed_in, tmp_path, monkeypatch):
    ipyparallel = pytest.importorskip("ipyparallel")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    local, remote = tmp_path / "local", tmp_path / "remote"
    assert grade("05", handed_in, local, built_root, Options(seed="3")) == 0
    with pytest.raises(WorkbookError, match="no engine answers"):
        grade("05", handed_in, tmp_path / "none", built_root, Options(seed="3", cluster="nobody"))
    with ipyparallel.Cluster(n=2, profile="graders", cluster_id=""):
        assert grade("05", handed_in, remote, built_root, Options(seed="3", cluster="graders")) == 0
        with monkeypatch.context() as broken:  # what travels is a reference to this function, which no engine has
            broken.setattr(executors, "_on_engine", not_on_the_engine)
            assert grade("05", handed_in, tmp_path / "lost", built_root, Options(seed="3", cluster="graders")) == 3
    assert "the grader failed here" in (tmp_path / "lost/manual.csv").read_text(encoding="utf-8-sig")
    assert (remote / "gradebook_long.csv").read_bytes() == (local / "gradebook_long.csv").read_bytes()
    assert sorted(path.name for path in (remote / "executed").iterdir()) == [f"{name}.ipynb" for name in CLASS]
