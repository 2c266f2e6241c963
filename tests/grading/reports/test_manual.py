"""manual.csv: which rows it asks for, what is taken from it, and what is refused, as spreadsheets save it."""

from __future__ import annotations

import csv
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from helpers.catalog.errors import WorkbookError
from helpers.grading.judging.results import ATTENTION, OUTCOMES, from_json
from helpers.grading.reports import gradebook, manual
from helpers.grading.reports.manual import Mark
from tests.grading.reports.marked_class import NAMES, hostile_class, question, result, small_class, unreadable

HEADER = "learner,question,max,reason,points,comment\n"


def table(folder: Path) -> list[list[str]]:
    with (folder / "manual.csv").open(encoding="utf-8-sig", newline="") as file:
        return list(csv.reader(file))


def save(folder: Path, *lines: str, encoding: str = "utf-8") -> Path:
    path = folder / "manual.csv"
    path.write_bytes((HEADER + "".join(f"{line}\n" for line in lines)).encode(encoding))
    return path


def fill(folder: Path, **cells: tuple[str, str]) -> None:
    """Fill in points and comment where learner and question are those of a keyword 'ada_twice'."""
    header, *rows = table(folder)
    for row in rows:
        row[4:] = cells.get(f"{row[0]}_{row[1]}", row[4:])
    with (folder / "manual.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([header, *rows])


def earned(results: list) -> dict[str, float]:
    return {one.learner: one.score for one in results}


def test_rows_for_what_no_check_has_judged(tmp_path):
    manual.write(small_class(), tmp_path)
    assert table(tmp_path) == [
        HEADER.strip().split(","),
        ["dan", "half", "1", "half ended the kernel; ended the kernel, 0 points", "", ""],
        *(
            ["eve", key, points, "this is no notebook: invalid JSON in line 1; was not reached, 0 points", "", ""]
            for key, points in (("twice", "2"), ("pages", "2"), ("half", "1"))
        ),
    ]


@pytest.mark.parametrize("outcome", [*OUTCOMES, "some new outcome"])
def test_each_outcome_is_judged_or_asked_about(outcome):
    judged = {"passed", "not started", "wrong", "did not run", "not submitted"}
    one = question("twice", outcome)
    assert manual.needs_a_person(result("ada", one), one) is (outcome not in judged)


def test_a_reason_of_no_one_question_asks_about_all(tmp_path):
    """Full marks, and a file read that was none of theirs: no outcome would tell."""
    manual.write([result("ada", status=ATTENTION, reasons=("it read a solution",))], tmp_path)
    reasons = [row[3] for row in table(tmp_path)[1:]]
    assert reasons == [f"it read a solution; passed, {points}" for points in ("2 points", "2 points", "1 point")]


def test_no_file_changes_nothing(tmp_path):
    assert manual.merged(small_class(), tmp_path / "manual.csv") == small_class()


def test_filled_rows_replace_points_survive_and_settle(tmp_path):
    manual.write(small_class(), tmp_path)
    assert manual.merged(small_class(), tmp_path / "manual.csv") == small_class()  # nothing is filled in yet
    fill(tmp_path, dan_half=("0.5", "right idea, -1 for the loop"), eve_twice=("2", ""), eve_pages=("", "=1+1"))
    results = manual.merged(small_class(), tmp_path / "manual.csv")
    assert earned(results) == {"ada": 5, "ben": 3, "cleo": 2, "dan": 4.5, "eve": 2}
    assert [one.status for one in results[3:]] == ["graded", "unreadable"]  # eve has questions without points
    assert manual.marks(results[3]) == {"half": Mark(0, 0.5, "right idea, -1 for the loop")}
    assert manual.marks(results[4])["pages"] == Mark(0, None, "=1+1")
    for source in (results, small_class()):  # before or after they were merged
        manual.write(source, tmp_path)
        assert table(tmp_path)[1][3] == "half ended the kernel; ended the kernel, 0 points"
        assert [row[4:] for row in table(tmp_path)[1:]] == [
            ["0.5", "right idea, -1 for the loop"],
            ["2", ""],
            ["", "'=1+1"],
            ["", ""],
        ]
    assert manual.merged(small_class(), tmp_path / "manual.csv") == results


def test_the_merged_points_are_the_gradebooks(tmp_path):
    path = save(tmp_path, "ben,pages,2,,1.5,")
    gradebook.write(manual.merged(small_class(), path), tmp_path)
    assert "ben,,,4.5,5,graded,2,1.5,1\n" in (tmp_path / "gradebook.csv").read_text(encoding="utf-8")


def test_a_row_that_the_instructor_added_is_kept(tmp_path):
    path = save(tmp_path, "ada,twice,2,,1,a good comment")
    manual.write(small_class(), tmp_path)
    assert table(tmp_path)[1][:3] == ["ada", "twice", "2"]
    assert table(tmp_path)[1][3:] == ["passed, 2 points; fewer are given here", "1", "a good comment"]
    assert earned(manual.merged(small_class(), path))["ada"] == 4


def test_rows_of_who_is_not_graded_yet_are_kept_for_then(tmp_path):
    ada, *others = small_class()
    path = save(tmp_path, "ada,twice,2,,1,by hand", "dan,half,1,,1,")
    with pytest.raises(WorkbookError, match="nobody here is called 'ada'"):
        manual.merged(others, path)
    results = manual.merged(others, path, waiting=[ada])
    assert [one.learner for one in results] == [one.learner for one in others]
    manual.write(results, tmp_path, waiting=[ada])
    assert ["1", "by hand"] in [row[4:] for row in table(tmp_path) if row[:2] == ["ada", "twice"]]
    assert sum(row[0] == "ada" for row in table(tmp_path)) == 1, "nobody is asked about ada yet"
    assert earned(manual.merged(small_class(), path)) == earned(results) | {"ada": 4}


def test_merged_results_go_through_json(tmp_path):
    path = save(tmp_path, "dan,half,1,,1,fine")
    results = manual.merged(small_class(), path)
    assert [from_json(asdict(one)) for one in results] == results


@pytest.mark.parametrize("status", [ATTENTION, "unreadable"])
def test_when_a_learner_is_settled(tmp_path, status):
    """Attention without a question to blame: one row will do. An unreadable notebook: every question."""
    whole = result("ada", status=status, reasons=("why",))
    one = manual.merged([whole], save(tmp_path, "ada,twice,2,,2,"))[0]
    assert (one.status == "graded") is (status == ATTENTION)
    every = manual.merged([whole], save(tmp_path, "ada,twice,2,,2,", "ada,pages,2,,0,", "ada,half,1,,0,"))[0]
    assert every.status == "graded"
    assert manual.merged([whole], save(tmp_path))[0].status == status


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("learner;question;max;reason;points;comment\r\ndan;half;1;;0,5;für dich\r\n", "utf-8-sig"),
        ("learner;question;max;reason;points;comment\r\ndan;half;1;;0,5;für dich\r\n", "cp1252"),
        ("learner\tquestion\tmax\treason\tpoints\tcomment\ndan\thalf\t1\t\t0.5\tfür dich\n", "utf-8"),
        ("question,learner,points,comment,max,reason,,\nhalf,dan,0.5,für dich,,,,\n", "utf-8"),
        ('"learner","question","max","reason","points","comment"\n\n"dan","half",1,""," 0.5 ","für dich"', "utf-8-sig"),
    ],
    ids=["excel-eu", "excel-ansi", "tabs", "columns-moved", "all-quoted"],
)
def test_as_spreadsheets_save_it(tmp_path, text, encoding):
    (tmp_path / "manual.csv").write_bytes(text.encode(encoding))
    merged = manual.merged(small_class(), tmp_path / "manual.csv")[3]
    assert manual.marks(merged) == {"half": Mark(0, 0.5, "für dich")}


def test_a_spreadsheet_that_took_an_id_for_a_number(tmp_path):
    path = save(tmp_path, "123,half,1,,1,")
    lost = [result("00123", question("half", "died")), result("0456")]
    assert manual.merged(lost, path)[0].score == 5
    with pytest.raises(WorkbookError, match="nobody here is called '123'"):
        manual.merged([*lost, result("0123")], path)  # which of the two?


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (["dan,half,1,,two,"], "line 2: points are 'two'"),
        (["dan,half,1,,nan,"], "line 2: points are 'nan'"),
        (["dan,half,1,,-1,"], "line 2: points are '-1'"),
        (["dan,half,1,,1e0,"], "line 2: points are '1e0'"),
        (["dan,half,1,,1_0,"], "line 2: points are '1_0'"),
        (["dan,half,1,,50 %,"], "line 2: points are '50 %'"),
        (["", "dan,half,1,,1.5,"], "line 3: 1.5 points for 'half'"),
        (["dan,half,1,,1,", "dan,half,1,,1,"], "line 3: 'half' of 'dan' stands on line 2 already"),
        (['ben,half,1,,1,"two', 'lines"', "dan,hlaf,1,,1,"], "line 4: the lab has no question 'hlaf'"),
        (["dna,half,1,,1,"], "line 2: nobody here is called 'dna'"),
        (["dan,half,1,,1,well, almost"], "line 2: 7 cells"),
        (['dan,half,1,,1,"never closed', "eve,twice,2,,2,"], "line 2: not a row of cells"),
    ],
)
def test_what_is_refused(tmp_path, lines, told):
    path = save(tmp_path, *lines)
    before = path.read_bytes()
    for read in (lambda: manual.merged(small_class(), path), lambda: manual.write(small_class(), tmp_path)):
        with pytest.raises(WorkbookError) as caught:
            read()
        assert told in caught.value.what
        assert str(path) in caught.value.what
    assert path.read_bytes() == before  # what the instructor typed is still there


@pytest.mark.parametrize("header", ["learner,question,points", HEADER.strip() + ",marker", "ada,twice,2,,1,"])
def test_other_columns_are_refused(tmp_path, header):
    (tmp_path / "manual.csv").write_text(f"{header}\nada,twice,2,,1,\n")
    with pytest.raises(WorkbookError) as caught:
        manual.merged(small_class(), tmp_path / "manual.csv")
    assert "line 1: its columns are" in caught.value.what


def test_hostile_learners_can_be_marked(tmp_path):
    """What was written for them is read back to them, whatever they are called."""
    results = hostile_class()
    manual.write(results, tmp_path)
    header, *rows = table(tmp_path)
    assert len(rows) == 3 * len(NAMES)
    with (tmp_path / "manual.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([header, *([*row[:4], "0", "=seen"] for row in rows)])
    merged = manual.merged(results, tmp_path / "manual.csv")
    assert [one.score for one in merged] == [0] * len(NAMES)
    assert all(len(manual.marks(one)) == 3 for one in merged)


def test_names_alike_are_marked_apart(tmp_path):
    alike = [unreadable("ada"), replace(unreadable("ada\x00"), slug="ada-2")]
    path = save(tmp_path, "ada (ada-2),twice,2,,1,")
    assert [one.score for one in manual.merged(alike, path)] == [0, 1]
