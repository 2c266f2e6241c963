"""What Canvas and Moodle import: their own export with one column filled, or a table with their columns."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from helpers.catalog.errors import WorkbookError
from helpers.grading.judging.results import ATTENTION, Result
from helpers.grading.reports.late import LatePolicy, with_lateness
from helpers.grading.upload import gradebooks
from helpers.grading.upload.gradebooks import read_export, stated_times, write
from tests.grading.reports.marked_class import question, result

LAB = "05_numbers"
CANVAS = (
    "Student,ID,SIS User ID,SIS Login ID,Section,Homework 1 (11),Lab 05: numbers (12),Lab 06 (13),Current Score\r\n"
    ",,,,,,Manual Posting,,\r\n"
    "    Points Possible,,,,,10,5.00,5,(read only)\r\n"
    '"Lovelace, Ada",101,u1,ada@x.org,"Monday, A",9.5,,4,80\r\n'
    '"Turing, Alan",102,u2,alan,"Monday, A",,1.00,,\r\n'
    '"Hopper, Grace",103,u3,grace,"Monday, A",="7",2.00,,\r\n'
    '"Student, Test",104,,t,"Monday, A",,,,\r\n'
)
MOODLE = (
    "\ufeffIdentifier,Full name,Email address,Status,Grade,Maximum Grade,Grade can be changed,"
    "Last modified (submission),Last modified (grade),Feedback comments\n"
    "Participant 7,Ada Lovelace,ada@x.org,Submitted for grading,,5.00,Yes,"
    '"Thursday, 1 October 2026, 2:14 PM",-,"well, done"\n'
    'Participant 8,Alan Turing,alan@x.org,No submission,,5.00,Yes,-,"Friday, October 2, 2026, 9:00 AM",\n'
)


def save(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "export.csv"
    path.write_bytes(text.encode())
    return path


def learner(name: str, number: str, *changed, **more: object) -> Result:
    return replace(result(name, *changed, **more), number=number)


ADA = learner("lovelaceada", "101", question("pages", "wrong", earned=1 / 3))
ALAN, GRACE = learner("turingalan", "102"), learner("hoppergrace", "103", status=ATTENTION, reasons=("look",))


def test_of_canvas_one_column_is_filled_and_nothing_else_changes(tmp_path):
    export = read_export(save(tmp_path, CANVAS), LAB)
    said = write([ADA, ALAN, GRACE, learner("strangerno", "999")], tmp_path, "canvas", export, "")
    expected = CANVAS.replace('A",9.5,,4', 'A",9.5,3.3333,4').replace('A",,1.00,', 'A",,5,')
    assert (tmp_path / "gradebook_canvas.csv").read_bytes() == expected.encode()
    assert said == [
        "not in gradebook_canvas.csv, whose points are not final: hoppergrace",
        "not in gradebook_canvas.csv, who have no row in export.csv: strangerno",
    ]


def test_of_moodle_one_column_is_filled_and_nothing_else_changes(tmp_path):
    export = read_export(save(tmp_path, MOODLE), LAB)
    class_ = [learner("Ada Lovelace", "7"), replace(result("Alan T"), email="ALAN@x.org")]
    assert write(class_, tmp_path, "moodle", export, "") == []
    expected = MOODLE.replace("grading,,5", "grading,5,5").replace("submission,,5", "submission,5,5")
    assert (tmp_path / "gradebook_moodle.csv").read_bytes() == expected.encode()


def test_what_is_left_after_being_late_is_what_the_lms_gets(tmp_path):
    due = datetime(2026, 10, 1, tzinfo=UTC)
    late = with_lateness([ALAN], {ALAN.slug: due + timedelta(hours=1)}, LatePolicy(due, percent_per_day=10))
    write(late, tmp_path, "canvas", read_export(save(tmp_path, CANVAS), LAB), "")
    assert 'A",,4.5,' in (tmp_path / "gradebook_canvas.csv").read_text()


def test_a_moodle_table_made_from_nothing(tmp_path):
    class_ = [replace(learner("=Ada", "7"), email="ada@x.org"), result("nobody")]
    assert write(class_, tmp_path, "moodle", None, "Lab") == [
        "not in gradebook_moodle.csv, whom Moodle could not find without a number: nobody"
    ]
    assert (tmp_path / "gradebook_moodle.csv").read_text() == (
        "Identifier,Full name,Email address,Status,Grade,Maximum Grade,Grade can be changed,"
        "Last modified (submission),Last modified (grade)\n"
        "Participant 7,'=Ada,ada@x.org,,5,5,Yes,,\n"
    )


def test_a_canvas_table_made_from_nothing(tmp_path):
    assert write([ADA, GRACE], tmp_path, "canvas", None, "Lab 05 (12)") == [
        "not in gradebook_canvas.csv, whose points are not final: hoppergrace"
    ]
    assert (tmp_path / "gradebook_canvas.csv").read_text() == (
        "Student,ID,SIS User ID,SIS Login ID,Section,Lab 05 (12)\n"
        "    Points Possible,,,,,5\n"
        "lovelaceada,101,,,,3.3333\n"
    )


def test_what_was_made_from_nothing_can_be_filled_in_again(tmp_path):
    for kind, assignment in (("canvas", "Lab 05 (12)"), ("moodle", "Lab 05")):
        write([ADA, ALAN], tmp_path, kind, None, assignment)
        path = tmp_path / f"gradebook_{kind}.csv"
        before = path.read_bytes()
        export = read_export(path, LAB)
        assert (export.kind, len(export.people)) == (kind, 2)
        assert write([ADA, ALAN], tmp_path, kind, export, "") == []
        assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        (CANVAS, {"lab": "07_other"}, "has 0 columns for lab 07"),
        (CANVAS, {"assignment": "Lab 9"}, "has 0 columns for Lab 9"),
        (CANVAS.replace("Homework 1", "Lab 5 again"), {}, "has 2 columns for lab 05"),
        (CANVAS, {"kind": "moodle"}, "this is no export of Moodle"),
        (MOODLE, {"kind": "canvas"}, "this is no export of Canvas"),
        ("name,points\nada,3\n", {}, "no column 'Grade'"),
        ("ID,Bewertung\nTeilnehmer 7,\n", {}, "no column 'Grade'"),
        ("", {}, "no column 'Grade'; its first line is empty"),
    ],
)
def test_an_export_that_does_not_fit_is_told_with_its_columns(tmp_path, text, options, words):
    with pytest.raises(WorkbookError) as told:
        read_export(save(tmp_path, text), **{"lab": LAB} | options)
    assert words in told.value.what
    assert told.value.expected


def test_an_assignment_is_found_by_its_number_or_named(tmp_path):
    path = save(tmp_path, CANVAS)
    assert read_export(path, LAB).column == 6
    assert read_export(path, "06_other").column == 7
    for name in ("Homework 1", "Homework 1 (11)"):
        assert read_export(path, LAB, assignment=name).column == 5


def test_a_lone_column_of_another_lab_is_not_taken(tmp_path):
    for title, found in (("GPU memory (1)", True), ("Lab 06 (1)", False)):
        path = save(tmp_path, f"Student,ID,SIS Login ID,Section,{title}\nAda,1,ada,A,\n")
        if found:
            assert read_export(path, LAB).column == 4
        else:
            with pytest.raises(WorkbookError, match="0 columns for lab 05"):
                read_export(path, LAB)


def test_a_worksheet_in_german_needs_the_name_of_its_column(tmp_path):
    path = save(tmp_path, "ID,Vollständiger Name,Bewertung\nTeilnehmer/in 7,Ada,\n")
    export = read_export(path, LAB, assignment="Bewertung")
    write([learner("Ada Lovelace", "7")], tmp_path, "moodle", export, "")
    assert (tmp_path / "gradebook_moodle.csv").read_text().endswith("Teilnehmer/in 7,Ada,5\n")


def test_an_assignment_of_other_points_is_refused(tmp_path):
    read_export(save(tmp_path, CANVAS), LAB).require_points(5)
    for text in (CANVAS.replace("5.00", "100"), MOODLE.replace("5.00", "100,00".join('""'))):
        with pytest.raises(WorkbookError, match="counts to 100 points, and the lab has 5"):
            read_export(save(tmp_path, text), LAB).require_points(5)


def test_moodle_says_when_work_was_handed_in(tmp_path):
    export = read_export(save(tmp_path, MOODLE.replace("Yes,-,", 'Yes,"Friday, October 2, 2026, 14:05",')), LAB)
    class_ = [learner("Ada Lovelace", "7"), learner("Alan Turing", "8"), learner("Grace", "9")]
    assert stated_times(export, class_, UTC) == {
        class_[0].slug: datetime(2026, 10, 1, 14, 14, tzinfo=UTC),
        class_[1].slug: datetime(2026, 10, 2, 14, 5, tzinfo=UTC),
    }
    assert stated_times(read_export(save(tmp_path, CANVAS), LAB), class_, UTC) == {}
    assert gradebooks.KINDS
