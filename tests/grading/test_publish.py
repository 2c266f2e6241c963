"""From an LMS's zip to what goes back into it, without running anything: marks are made up, all else is real."""

from __future__ import annotations

import csv
import io
import re
import zipfile
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from helpers.catalog.errors import WorkbookError
from helpers.cli import main
from helpers.course import notebook as nb
from helpers.grading import publish
from helpers.grading.attempts import best, every_attempt
from helpers.grading.intake import submissions
from helpers.grading.judging.marking import blank
from helpers.grading.judging.reference import Reference
from helpers.grading.judging.results import Result
from tests.course.example_lab import example_lab

NAME = "05_numbers"
PLAIN = "due = 2026-10-01T23:59:00Z\npercent_per_day = 10\n"
MOODLE = (
    "Identifier,Full name,Email address,Status,Grade,Maximum Grade,Last modified (submission),Last modified (grade)\n"
    'Participant 7,Ada Lovelace,ada@x.org,"Submitted, late",,5,"Friday, 2 October 2026, 2:14 PM",-\n'
    'Participant 8,"Turing, Alan",alan@x.org,Submitted,,5,"Thursday, 1 October 2026, 2:14 PM",-\n'
    "Participant 9,Grace Hopper,grace@x.org,No submission,,5,-,-\n"
)
CANVAS = (
    "Student,ID,SIS User ID,SIS Login ID,Section,Lab 5 (12)\n"
    "    Points Possible,,,,,5\n"
    '"Lovelace, Ada",7,,ada,A,\n'
    '"Turing, Alan",8,,alan,A,\n'
)


def reference(**more: object) -> Reference:
    lab = example_lab()
    made = Reference(NAME, "Lab 05: numbers", "3", lab, None, 10.0, 120.0, "digest", ("math",), (), {})
    return replace(made, **more)


def zipped(path: Path, *names: str) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, nb.text(example_lab()))
    return path


def published(tmp_path: Path, zip_path: Path, **options: object) -> tuple[list[Result], list[str]]:
    """Everybody has all points but those of `twice`, and everything is published into tmp_path/out."""
    out = tmp_path / "out"
    found = submissions.find(zip_path, NAME, tmp_path / "taken")
    wanted = publish.wanted(NAME, **options)
    blanks = [blank(reference(), one, one.slug) for one in found]
    wanted.require(blanks)
    notebooks = {one.slug: one for one in wanted.graded(found)}
    results = [marked(one, at) for at, one in enumerate(notebooks.values())]
    return publish.publish(results, blanks, notebooks, reference(), out, wanted, {"lab": NAME})


def marked(notebook: submissions.LearnerNotebook, lost: int = 0) -> Result:
    row = blank(reference(), notebook, notebook.slug)
    passed = [replace(one, earned=one.points, outcome="passed", message="") for one in row.questions]
    passed[-1] = replace(passed[-1], earned=passed[-1].points if lost else 0)
    return replace(row, status="graded", questions=tuple(passed), reasons=())


def moodle_user(path: str) -> str | None:
    """Whom Moodle's import finds in a path, as importziplib.php reads it."""
    for part in path.split("/"):
        info = part.split("_", 4)
        if len(info) >= 4 and info[1].isdigit() and info[2] == "assignsubmission":
            return info[1]
    return None


def canvas_ids(path: str) -> list[str]:
    """The user and the upload that Canvas finds in a name, as infer_comment_context_from_filename reads it."""
    return [part for part in path.split("_") if re.fullmatch(r"\d+", part)][:2]


def test_the_round_trip_of_moodle(tmp_path):
    folders = ["Ada Lovelace_7_assignsubmission_file", "Alan Turing_8_assignsubmission_file"]
    export = tmp_path / "worksheet.csv"
    export.write_text(MOODLE)
    (tmp_path / "due.toml").write_text(PLAIN)
    class_ = zipped(tmp_path / "moodle.zip", *(f"{folder}/{NAME}.ipynb" for folder in folders))
    results, said = published(tmp_path, class_, due=tmp_path / "due.toml", export=export)
    assert said == []
    table = list(csv.DictReader(io.StringIO((tmp_path / "out/gradebook_moodle.csv").read_text())))
    assert {row["Identifier"]: row["Grade"] for row in table} == {
        "Participant 7": "3.6",  # 4 points, and a day late by the worksheet's time
        "Participant 8": "5",
        "Participant 9": "",
    }
    with zipfile.ZipFile(tmp_path / "out/feedback.zip") as archive:
        pages = {moodle_user(name): archive.read(name).decode() for name in archive.namelist()}
        assert sorted(Path(name).parts[0] for name in archive.namelist()) == folders
    assert "Ada Lovelace" in pages["7"]
    assert "4 points earned. 1 day late: 10 % less." in pages["7"]
    assert "Alan Turing" in pages["8"]
    assert len(results) == 2


def test_the_round_trip_of_canvas(tmp_path):
    files = [f"lovelaceada_7_70_{NAME}.ipynb", f"turingalan_LATE_8_80_{NAME}.ipynb"]
    export = tmp_path / "gradebook.csv"
    export.write_text(CANVAS)
    (tmp_path / "due.toml").write_text(PLAIN)
    class_ = zipped(tmp_path / "canvas.zip", *files)
    _, said = published(tmp_path, class_, due=tmp_path / "due.toml", export=export)
    assert said == ["1 learner: Canvas marks this as late and does not say by how much: nothing is deducted"]
    expected = CANVAS.replace("ada,A,", "ada,A,4").replace("alan,A,", "alan,A,5")
    assert (tmp_path / "out/gradebook_canvas.csv").read_text() == expected
    with zipfile.ZipFile(tmp_path / "out/feedback.zip") as archive:
        names = archive.namelist()
    assert [canvas_ids(name) for name in names] == [["7", "70"], ["8", "80"]]
    assert [name.removesuffix(".html") for name in names] == files


def test_a_page_that_goes_out_is_escaped(tmp_path):
    name = "<script>x_7_assignsubmission_file"
    published(tmp_path, zipped(tmp_path / "moodle.zip", f"{name}/{NAME}.ipynb"))
    with zipfile.ZipFile(tmp_path / "out/feedback.zip") as archive:
        [page] = [archive.read(one).decode() for one in archive.namelist()]
    assert "<script" not in page
    assert "&lt;script" in page


def test_what_does_not_fit_is_told_before_anybody_is_graded(tmp_path):
    export = tmp_path / "gradebook.csv"
    export.write_text(CANVAS.replace(",5\n", ",100\n"))
    class_ = zipped(tmp_path / "canvas.zip", f"lovelaceada_7_70_{NAME}.ipynb")
    with pytest.raises(WorkbookError, match="counts to 100 points, and the lab has 5"):
        published(tmp_path, class_, export=export)
    with pytest.raises(WorkbookError, match="--assignment names a column of no table"):
        publish.wanted(NAME, assignment="Lab 5")


def test_a_policy_that_names_nobody_and_one_that_was_left_out(tmp_path):
    (tmp_path / "due.toml").write_text(PLAIN + "[extensions]\n'Grace Hopper' = 3\n")
    class_ = zipped(tmp_path / "class.zip", "ada.ipynb")
    _, said = published(tmp_path, class_, due=tmp_path / "due.toml")
    assert "the due policy names 'Grace Hopper', and nobody here is called so" in said
    wanted = publish.wanted(NAME)
    assert publish._about_time([], [], wanted, {"due": True}) == [
        "the run before deducted for being late, and this one has no --due"
    ]
    assert publish._about_time([], [], wanted, {}) == []


def test_the_command_hands_on_what_is_published(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr("helpers.cli.grade.workbook_root", lambda: tmp_path)
    monkeypatch.setattr("helpers.grading.batch.grade", lambda *arguments: seen.append(arguments[-1]) or 0)
    flags = ["--due", "d.toml", "--format", "moodle", "--gradebook", "g.csv", "--assignment", "Bewertung"]
    assert main(["grade", "02", "class.zip", "--out", "out", *flags]) == 0
    [options] = seen
    assert (options.due, options.format) == (Path("d.toml"), "moodle")
    assert (options.gradebook, options.assignment) == (Path("g.csv"), "Bewertung")
    assert main(["grade", "02", "class.zip", "--out", "out", "--format", "blackboard"]) == 2


def attempt(path: Path | None, days_late: int, *earlier: submissions.LearnerNotebook) -> submissions.LearnerNotebook:
    at = datetime(2026, 10, 1, 12, tzinfo=UTC) + timedelta(days=days_late)
    one = submissions.LearnerNotebook("ada", path, handed_in=at.isoformat(), folder="ada", slug="ada")
    return replace(one, attempts=(*earlier, one)) if earlier else one


@pytest.mark.parametrize(
    ("points", "attempts", "counts"),
    [
        ((5, 4), "best", "5 in time"),
        ((4, 5), "best", "4.5 a day late"),
        ((4.8, 5), "best", "4.8 in time"),
        ((4.5, 5), "best", "4.5 a day late"),  # of equal ones the last
        ((5, 4), "latest", "3.6 a day late"),
    ],
)
def test_of_several_attempts_the_best_or_the_last_counts(tmp_path, points, attempts, counts):
    (tmp_path / "due.toml").write_text(f'{PLAIN}attempts = "{attempts}"\n')
    wanted = publish.wanted(NAME, due=tmp_path / "due.toml")
    ada = attempt(tmp_path / "2", 1, attempt(tmp_path / "1", 0), attempt(None, 0))
    notebooks = {one.slug: one for one in wanted.graded([ada])}
    assert list(notebooks) == (["ada~1", "ada"] if attempts == "best" else ["ada"])
    earned = dict(zip(["ada~1", "ada"], points, strict=True))
    results = []
    for slug, one in notebooks.items():
        row = marked(one, 1)
        rest = replace(row.questions[0], earned=earned[slug] - 3)
        results.append(replace(row, questions=(rest, *row.questions[1:])))
    blanks = [blank(reference(), ada, "ada")]
    [one], _ = publish.publish(results, blanks, notebooks, reference(), tmp_path / "out", wanted, {})
    table = csv.DictReader((tmp_path / "out/gradebook.csv").read_text(encoding="utf-8-sig").splitlines())
    assert one.slug == "ada"
    told = "attempt 1 counts: no later one has more points" in (tmp_path / "out/feedback/ada.html").read_text()
    assert told == counts.endswith("in time")
    late = {"": "in time", "1 day late: 10 % less": "a day late"}
    assert [f"{row['score']} {late[row['late']]}" for row in table] == [counts]
    assert [page.name for page in (tmp_path / "out/feedback").iterdir()] == ["ada.html"]


def test_an_attempt_that_needs_a_person_counts_only_where_there_is_no_other():
    ada = attempt(Path("2"), 1, attempt(Path("1"), 0))
    first, last = (marked(one, 1) for one in every_attempt([ada]))
    assert best([first, replace(last, status="attention")]) == {"ada": "ada~1"}
    assert best([replace(first, status="unreadable"), replace(last, status="attention")]) == {"ada": "ada"}
