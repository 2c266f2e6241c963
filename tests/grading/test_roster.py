"""Who is on the roster, who handed in nothing, and who is nobody's: without running a notebook."""

from __future__ import annotations

import csv
import unicodedata
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.catalog.errors import WorkbookError
from helpers.grading import publish, roster
from helpers.grading.batch import Options, grade
from helpers.grading.intake.owners import slug
from helpers.grading.intake.submissions import LearnerNotebook
from helpers.grading.judging.marking import blank, not_submitted
from helpers.grading.judging.results import GRADED, NOT_SUBMITTED
from helpers.grading.reports import manual
from tests.grading.test_publish import marked, reference


def written(tmp_path: Path, text: str, encoding: str = "utf-8") -> Path:
    path = tmp_path / "class.csv"
    path.write_text(text, encoding=encoding)
    return path


def handed_in(learner: str, number: str = "", email: str = "") -> LearnerNotebook:
    return LearnerNotebook(learner, Path("x"), number=number, email=email, folder=learner, slug=slug(learner, number))


def member(name: str, *numbers: str, email: str = "", login: str = "", line: int = 2) -> roster.Member:
    return roster.Member(line, name, numbers, email, login)


CANVAS = (
    "Student,ID,SIS User ID,SIS Login ID,Section,Lab 2 (12)\n,,,,,Manual Posting\n    Points Possible,,,,,20\n"
    '"Lovelace, Ada",7,S007,ada,A,\n"Student, Test",99,,x,A,\n'
)
MOODLE = "Identifier,Full name,Email address,Status\nParticipant 7,Ada Lovelace,ada@x.org,Submitted\n"
EXPORTS = {
    "Canvas": (CANVAS, member("Lovelace, Ada", "7", "S007", login="ada", line=4)),
    "Moodle's worksheet": (MOODLE, member("Ada Lovelace", "7", email="ada@x.org")),
    "Moodle's participants": (
        "First name;Surname;ID number;Email address\nAda;Lovelace;007;ada@x.org\n",
        member("Ada Lovelace", "007", email="ada@x.org"),
    ),
    "Brightspace": (
        "OrgDefinedId,Username,Last Name,First Name,Email,End-of-Line Indicator\n#7,#ada,Lovelace,Ada,ada@x.org,#\n",
        member("Ada Lovelace", "7", email="ada@x.org", login="ada"),
    ),
    "Gradescope": ("Name,SID,Email\nAda Lovelace,7,ada@x.org\n", member("Ada Lovelace", "7", email="ada@x.org")),
    "a list of names": ("\ufeffname\n\nAda\n", member("Ada", line=3)),
    "logins alone": ("Login\nada\n", member("", login="ada")),
    "a tab, and a name on two lines": ('id\tname\n7\t"Ada\nLovelace"\n8\tBob\n', member("Ada | Lovelace", "7")),
}


@pytest.mark.parametrize("name", EXPORTS)
def test_each_export_is_read(tmp_path, name):
    text, first = EXPORTS[name]
    assert roster.read(written(tmp_path, text))[0] == first


def test_a_line_is_counted_in_the_file_and_not_in_rows(tmp_path):
    text, _ = EXPORTS["a tab, and a name on two lines"]
    assert [one.line for one in roster.read(written(tmp_path, text))] == [2, 4]
    assert roster.read(written(tmp_path, "name\nJosé\n", "cp1252")) == [member("José")]


SLIPS = {
    "": "is empty",
    "\n,,\n": "is empty",
    "name\n": "nobody below",
    "points,status\n1,2\n": "line 1: its columns are points, status",
    "first name\nAda\n": "line 1: its columns",
    "name,id\nAda,7\nBob,7\n": "line 3: '7' stands on line 2 already",
    "name,email\nAda,a@x.org\nBob,A@X.org\n": "line 3: 'a@x.org' stands on line 2 already",
    "name,login\nAda,a\nBob,A\n": "line 3: 'a' stands",
    "name\nAda\nBob\nAda\n": "line 4: 'Ada' stands on line 2 already",
    'name\n"Ada\n': "every quote closed",
    "PK\x00": "no CSV",
}


@pytest.mark.parametrize("text", SLIPS)
def test_a_roster_that_does_not_fit_is_told_with_its_line(tmp_path, text):
    with pytest.raises(WorkbookError) as told:
        roster.read(written(tmp_path, text))
    assert SLIPS[text] in str(told.value)


def test_a_roster_that_is_not_there_is_told_before_anything_runs(tmp_path, built_root):
    with pytest.raises(WorkbookError, match="cannot be read"):
        grade("05", tmp_path, tmp_path / "out", built_root, Options(roster=tmp_path / "none.csv"))
    assert not (tmp_path / "out").exists()


def test_namesakes_are_two_where_something_tells_them_apart(tmp_path):
    found = roster.read(written(tmp_path, "name,id\nAda,7\nAda,8\n"))
    placed = roster.placed([handed_in("Ada", "8")], found, "class.csv")
    assert [(one.learner, one.number, one.is_absent) for one in placed] == [("Ada", "8", False), ("Ada (7)", "7", True)]


@pytest.mark.parametrize(
    "one",
    [
        handed_in("x", "S007"),
        handed_in("x", email="ADA@x.org"),
        handed_in("ada@x.org"),
        handed_in("ADA.L"),
        handed_in("S007"),
        handed_in("Lovelace, Ada"),
        handed_in("ADA LOVELACE"),
        handed_in("lovelaceada"),
        handed_in(unicodedata.normalize("NFD", "Adá Lovelace")),
    ],
    ids=str,
)
def test_a_learner_is_found_by_whatever_the_roster_has(one):
    listed = [member("Ada Lovelace", "7", "S007", email="ada@x.org", login="ada.l"), member("Alan Turing", "8")]
    found, absent = sorted(roster.placed([one], listed, "class.csv"), key=lambda one: one.is_absent)
    assert (found.learner, found.slug, found.notes) == (one.learner, one.slug, ())
    assert (found.number, found.email) == (one.number or "7", one.email or "ada@x.org")
    assert (absent.learner, absent.number, absent.is_absent) == ("Alan Turing", "8", True)


@pytest.mark.parametrize(("theirs", "listed"), [("00123", "123"), ("123", "00123")])
def test_zeros_that_a_spreadsheet_lost_do_no_harm(theirs, listed):
    (found,) = roster.placed([handed_in(theirs)], [member("Ada", listed)], "class.csv")
    assert not found.notes
    assert not found.is_absent


def test_whom_the_roster_does_not_have_is_named_for_attention():
    listed = [member("Ada", "7"), member("Bob", "8", line=3), member("Cleo", "9", line=4), member("Cleo", "10", line=5)]
    mixed = [handed_in("Zoe"), handed_in("Cleo"), handed_in("Bob", "7")]
    placed = {(one.learner, one.is_absent): one for one in roster.placed(mixed, listed, "class.csv")}
    assert placed["Zoe", False].notes == ("nobody in class.csv is called so",)
    assert placed["Cleo", False].notes == ("in class.csv it could be 'Cleo' (line 4) or 'Cleo' (line 5)",)
    (why,) = placed["Bob", False].notes
    assert why == "in class.csv the number is that of 'Ada' (line 2), the name that of line 3"
    assert sorted(name for name, is_absent in placed if is_absent) == ["Ada", "Bob (8)", "Cleo (10)", "Cleo (9)"]
    assert len({one.slug.lower() for one in placed.values()}) == 7


def test_a_page_of_one_who_is_absent_is_nobody_elses():
    stranger = replace(handed_in("Zoe"), slug=slug("Ada", "7").upper())
    placed = roster.placed([stranger], [member("Ada", "7")], "class.csv")
    assert len({one.slug.lower() for one in placed}) == 2


names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)


@given(
    st.lists(st.tuples(names, st.sampled_from(["", "1", "2"])), unique=True, max_size=5), st.lists(names, max_size=5)
)
def test_everybody_has_one_row_and_nobody_is_lost(listed, learners):
    members = [member(name, *filter(None, [number]), line=at) for at, (name, number) in enumerate(listed, start=2)]
    here = [handed_in(one) for one in dict.fromkeys(unicodedata.normalize("NFC", one) for one in learners)]
    placed = roster.placed(here, members, "class.csv")
    assert {one.learner for one in here} == {one.learner for one in placed if not one.is_absent}
    known = [one for one in placed if not one.is_absent and not one.notes]
    assert len(known) + sum(one.is_absent for one in placed) == len(members)
    assert len({one.learner for one in placed}) == len({one.slug.lower() for one in placed}) == len(placed)


def test_who_handed_in_nothing_has_a_row_of_no_points_that_nobody_need_look_at(tmp_path):
    out = tmp_path / "out"
    ada, zoe = handed_in("Ada", "7"), handed_in("Zoe")
    placed = roster.placed([ada, zoe], [member("Ada", "7"), member("Bob <b>", "8", email="b@x.org")], "class.csv")
    found = {one.slug: one for one in placed}
    results = [not_submitted(reference(), one) if one.is_absent else marked(one) for one in placed]
    blanks = [blank(reference(), one, one.slug) for one in placed]
    results, _ = publish.publish(results, blanks, found, reference(), out, publish.Wanted(), {})
    assert {one.learner: (one.status, one.score > 0) for one in results} == {
        "Ada": (GRADED, True),
        "Bob <b>": (NOT_SUBMITTED, False),
        "Zoe": ("attention", True),
    }
    with (out / "gradebook.csv").open(encoding="utf-8-sig") as file:
        bob = {row["learner"]: row for row in csv.DictReader(file)}["Bob <b>"]
    assert (bob["number"], bob["email"], bob["score"], bob["status"]) == ("8", "b@x.org", "0", "not submitted")
    assert "Bob" not in (out / "manual.csv").read_text(encoding="utf-8-sig")
    assert "nobody in class.csv is called so" in (out / "manual.csv").read_text(encoding="utf-8-sig")
    page = (out / "feedback" / f"{results[1].slug}.html").read_text()
    assert "Nothing was handed in." in page
    assert "What to do next" not in page
    summary = (out / "summary.html").read_text()
    assert "<h2>Not submitted</h2>" in summary
    assert "Bob &lt;b&gt;" in summary
    assert "<dt>mean of 5</dt><dd>4</dd>" in summary


@pytest.mark.parametrize(("points", "status"), [("", NOT_SUBMITTED), ("1", GRADED)])
def test_a_comment_alone_hands_nothing_in(tmp_path, points, status):
    (bob,) = roster.placed([], [member("Bob", "8")], "class.csv")
    row = not_submitted(reference(), bob)
    key = row.questions[0].key
    path = written(tmp_path, f"learner,question,max,reason,points,comment\nBob,{key},2,,{points},he was ill\n")
    assert [one.status for one in manual.merged([row], path)] == [status]
