"""Several labs in one table: by learner, with what they did not hand in as 0, by points or by weights."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

from helpers.catalog.errors import WorkbookError
from helpers.cli import main
from helpers.grading.judging.results import Result
from helpers.grading.reports import gradebook
from helpers.grading.total import total
from tests.grading.reports.marked_class import question, result


def learner(name: str, *changed, number: str = "", email: str = "", **more: object) -> Result:
    return replace(result(name, *changed, **more), number=number, email=email)


def graded(tmp_path: Path, lab: str, *class_: Result) -> Path:
    folder = tmp_path / f"grades-{lab}"
    gradebook.write(class_, folder)
    (folder / "manifest.json").write_text(json.dumps({"lab": f"{lab}_something"}))
    return folder


def table(out: Path) -> list[dict[str, str]]:
    with (out / "total.csv").open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


LOST = question("pages", "wrong")


@pytest.fixture
def folders(tmp_path) -> list[Path]:
    first = graded(tmp_path, "02", learner("Ada Lovelace", number="7", email="ada@x.org"), learner("=Ben", LOST))
    second = graded(tmp_path, "05", learner("=Ben"), learner("Cleo", status="attention", reasons=("look",)))
    third = graded(tmp_path, "06", learner("Lovelace, Ada", LOST, number="99", email="ADA@x.org"))
    return [first, second, third]


def test_by_points(tmp_path, folders):
    said = total(folders, tmp_path / "total")
    rows = {row["learner"]: row for row in table(tmp_path / "total")}
    assert list(rows) == ["'=Ben", "Ada Lovelace", "Cleo"]
    ada = rows["Ada Lovelace"]
    assert (ada["total"], ada["max"], ada["missing"]) == ("8", "15", "05")
    assert (ada["02"], ada["05"], ada["06"], ada["number"], ada["email"]) == ("5", "0", "3", "7", "ada@x.org")
    assert (rows["'=Ben"]["total"], rows["'=Ben"]["missing"]) == ("8", "06")
    assert (rows["Cleo"]["total"], rows["Cleo"]["missing"], rows["Cleo"]["not_final"]) == ("5", "02, 06", "05")
    assert said[:2] == ["3 learners, 3 labs, 15 points", "  lab 02: 1 did not hand it in, which counts 0"]


def test_by_weights(tmp_path, folders):
    total(folders, tmp_path / "total", {"2": 50, "05": 40, "06": 10})
    rows = {row["learner"]: row for row in table(tmp_path / "total")}
    assert (rows["Ada Lovelace"]["total"], rows["Ada Lovelace"]["max"]) == ("56", "100")
    assert rows["'=Ben"]["total"] == "70"


@pytest.mark.parametrize(
    ("weights", "words"), [({"02": 1, "05": 1}, "no weight for lab 06"), ({"02": 1, "05": 1, "06": 1, "9": 1}, "lab 9")]
)
def test_weights_that_are_not_the_labs(tmp_path, folders, weights, words):
    with pytest.raises(WorkbookError, match=words):
        total(folders, tmp_path / "total", weights)
    assert not (tmp_path / "total").exists()


def test_a_row_of_a_roster_is_missing_too(tmp_path):
    folder = graded(tmp_path, "02", replace(learner("Ada", LOST), status="not submitted", questions=()))
    other = graded(tmp_path, "05", learner("Ada"))
    total([folder, other], tmp_path / "total")
    assert table(tmp_path / "total")[0]["missing"] == "02"


def test_moodle_numbers_its_participants_anew_in_each_lab(tmp_path):
    folders = [graded(tmp_path, lab, learner("Ada", number=number)) for lab, number in (("02", "7"), ("05", "91"))]
    total(folders, tmp_path / "total")
    assert [row["total"] for row in table(tmp_path / "total")] == ["10"]


def test_namesakes_are_two(tmp_path):
    class_ = [learner("Wei Li", number="1", email="a@x"), learner("Wei Li (2)", LOST, number="2", email="b@x")]
    first = graded(tmp_path, "02", *class_)
    second = graded(tmp_path, "05", *(replace(one, learner="Wei Li", slug=one.slug + "x") for one in class_[1:]))
    total([first, second], tmp_path / "total")
    assert [(row["learner"], row["total"]) for row in table(tmp_path / "total")] == [
        ("Wei Li", "5"),
        ("Wei Li (2)", "6"),
    ]


def test_the_lms_gets_the_total(tmp_path, folders):
    export = tmp_path / "export.csv"
    export.write_text(
        'Student,ID,SIS Login ID,Section,Labs (9)\n  Points Possible,,,,15\n"Lovelace, Ada",7,,A,\nCleo,8,,A,\n'
    )
    said = total(folders, tmp_path / "total", export=export)
    assert (tmp_path / "total/gradebook_canvas.csv").read_text().endswith('"Lovelace, Ada",7,,A,8\nCleo,8,,A,\n')
    assert "not in gradebook_canvas.csv, whose points are not final: Cleo" in said
    with pytest.raises(WorkbookError, match="counts to 15 points, and the lab has 3"):
        total(folders, tmp_path / "total", {"02": 1, "05": 1, "06": 1}, export=export)


def test_what_is_no_results_folder(tmp_path, folders):
    with pytest.raises(WorkbookError, match=r"holds no gradebook.csv"):
        total([*folders, tmp_path], tmp_path / "total")
    with pytest.raises(WorkbookError, match="lab 02 is in two of the folders"):
        total([folders[0], folders[0]], tmp_path / "total")
    (folders[0] / "gradebook.csv").write_text("learner,score,max,status\nada,five,5,graded\n")
    with pytest.raises(WorkbookError, match="line 2: score and max are 'five' and '5'"):
        total(folders, tmp_path / "total")
    (folders[0] / "gradebook.csv").write_text("learner,score,max,status\nada,nan,5,graded\n")
    with pytest.raises(WorkbookError, match="score and max are 'nan' and '5'"):
        total(folders, tmp_path / "total")
    (folders[0] / "gradebook.csv").write_text("learner\nada\n")
    with pytest.raises(WorkbookError, match="has no column score"):
        total(folders, tmp_path / "total")


def test_a_table_that_excel_saved_is_read(tmp_path, folders):
    path = folders[0] / "gradebook.csv"
    path.write_bytes(
        path.read_text(encoding="utf-8-sig").replace(",", ";").replace(";5;5;", ";4,5;5;").encode("cp1252") + b";;;\r\n"
    )
    total(folders, tmp_path / "total")
    assert {row["learner"]: row["02"] for row in table(tmp_path / "total")}["Ada Lovelace"] == "4.5"


def test_the_command(tmp_path, folders, capsys):
    out = str(tmp_path / "total")
    named = list(map(str, folders))
    assert (
        main(["grade", "--total", *named, "--out", out, "--weight", "02=1", "--weight", "05=1", "--weight", "06=2"])
        == 0
    )
    assert "3 learners, 3 labs, 4 points" in capsys.readouterr().out
    for wrong in (
        ["grade", "--out", out],
        ["grade", "02", "--out", out],
        ["grade", "02", "x", "--out", out, "--weight", "02=1"],
        ["grade", "--total", *named, "--out", out, "--weight", "02"],
        ["grade", "--total", *named, "--out", out, "--weight", "02=0"],
        ["grade", "--total", *named, "--out", out, "--due", "x.toml"],
        ["grade", "02", "x", "--out", out, "--total", *named],
    ):
        assert main(wrong) == 2
        assert "do:" in capsys.readouterr().err
