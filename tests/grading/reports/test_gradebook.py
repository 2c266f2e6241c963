"""The gradebook's two tables: their bytes, their order, and what a spreadsheet must never run."""

from __future__ import annotations

import csv
import doctest
import re
from dataclasses import replace
from pathlib import Path

import pytest

from helpers.grading import text as shown_text
from helpers.grading.reports import gradebook
from tests.grading.reports.marked_class import NAMES, hostile_class, question, result, small_class

FORMULA = re.compile(r"[=+\-@\t\r\n＝＋－＠]")
UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200f\u202a-\u202e\u2066-\u2069]")


def rows(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        return list(csv.reader(file))


def test_the_wide_table(tmp_path):
    gradebook.write(small_class(), tmp_path)
    assert (tmp_path / "gradebook.csv").read_bytes().decode("utf-8") == (
        "\ufefflearner,number,email,score,max,status,twice,pages,half\n"
        "ada,,,5,5,graded,2,2,1\n"
        "ben,,,3,5,graded,2,0,1\n"
        "cleo,,,2,5,graded,0,1,1\n"
        "dan,,,4,5,attention,2,2,0\n"
        "eve,,,0,5,unreadable,0,0,0\n"
    )


def test_the_long_table(tmp_path):
    gradebook.write(small_class(), tmp_path)
    header, *body = rows(tmp_path / "gradebook_long.csv")
    assert header == ["learner", "question", "title", "earned", "points", "outcome", "message"]
    assert len(body) == 15
    assert body[4] == ["ben", "pages", "2 · Pages", "0", "2", "wrong", "5 tokens | expected: 2 | yours: 1"]


def test_rows_come_in_the_order_given(tmp_path):
    gradebook.write(small_class()[::-1], tmp_path)
    assert [row[0] for row in rows(tmp_path / "gradebook.csv")[1:]] == ["eve", "dan", "cleo", "ben", "ada"]
    assert [row[0] for row in rows(tmp_path / "gradebook_long.csv")[1::3]] == ["eve", "dan", "cleo", "ben", "ada"]


def test_same_results_same_bytes_whatever_they_took(tmp_path):
    """No seconds, no time of day, nothing that another machine would write otherwise."""
    again = [replace(one, seconds=99.0, fingerprint="other") for one in small_class()]
    for folder, results in (("a", small_class()), ("b", again)):
        gradebook.write(results, tmp_path / folder)
    for name in ("gradebook.csv", "gradebook_long.csv"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_nothing_hostile_reaches_a_spreadsheet_or_a_terminal(tmp_path):
    gradebook.write(hostile_class(), tmp_path)
    for name, texts in (("gradebook.csv", (0, 1, 2, 5)), ("gradebook_long.csv", (0, 1, 2, 5, 6))):
        written = (tmp_path / name).read_bytes().decode("utf-8")
        assert not UNSEEN.search(written)
        assert written.count("\n") == len(rows(tmp_path / name))  # a row is a line
        for row in rows(tmp_path / name)[1:]:
            assert not [row[at] for at in texts if FORMULA.match(row[at])]


def test_numbers_stay_numbers(tmp_path):
    gradebook.write([result("ada", question("half", "wrong", earned=1 / 3))], tmp_path)
    assert rows(tmp_path / "gradebook.csv")[1] == ["ada", "", "", "4.3333", "5", "graded", "2", "2", "0.3333"]


def test_an_empty_class_is_a_header(tmp_path):
    gradebook.write([], tmp_path)
    assert rows(tmp_path / "gradebook.csv") == [["learner", "number", "email", "score", "max", "status"]]


def test_a_learner_without_questions_has_empty_cells(tmp_path):
    gradebook.write([replace(result("ada"), questions=()), result("ben")], tmp_path)
    assert rows(tmp_path / "gradebook.csv")[1] == ["ada", "", "", "0", "0", "graded", "", "", ""]


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("=1+1", "'=1+1"),
        ("+1", "'+1"),
        ("-1", "'-1"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("＝1", "'＝1"),
        ("\t=1", "'\t=1"),
        ("a;=1", "a;'=1"),
        ("a; @b;-c", "a; '@b;'-c"),
        ("a=b, c-d", "a=b, c-d"),
        ("", ""),
    ],
)
def test_formulas_are_guarded_and_given_back(text, written):
    assert gradebook.guard_formula(text) == written
    assert gradebook.unguarded(written) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;http://x\x1b\\link", "link"),
        ("\x1b]never closed", "never closed"),
        ("\x9b31mred", "red"),
        ("a\r\nb\rc\u2028d", "a\nb\nc\nd"),
        ("abc\u202egnp.exe", "abcgnp.exe"),
        ("\ud800", "\ufffd"),
        ("tab\tstays, \x00NUL goes", "tab\tstays, NUL goes"),
        ("نام‌ها 👩‍💻", "نام‌ها 👩‍💻"),  # the joiners are part of the spelling
    ],
)
def test_plain_text(text, shown):
    assert shown_text.plain(text) == shown
    shown.encode("utf-8")


@pytest.mark.parametrize(
    ("learners", "shown"),
    [
        (["ada\x00", "ada", "ben"], ["ada (s0)", "ada", "ben"]),  # nobody takes another's name from them
        (["ada\x00", "ada\x01"], ["ada", "ada (s1)"]),
        (["ada\x00", "ada", "ada (s0)"], ["ada (s0) (s0)", "ada", "ada (s0)"]),
        (["'=x", "=x"], ["'=x", "=x (s1)"]),  # a sheet writes both with an apostrophe
        ([" ", ""], ["s0", "s1"]),
    ],
)
def test_names_are_told_apart(learners, shown):
    """Two that differ only in what is not shown would be one learner in every table."""
    results = [replace(result(name), slug=f"s{number}") for number, name in enumerate(learners)]
    assert [gradebook.names(results)[one.slug] for one in results] == shown


def test_hostile_names_are_told_apart():
    assert len(set(gradebook.names(hostile_class()).values())) == len(NAMES)


def test_a_crash_leaves_the_old_table(tmp_path, monkeypatch):
    path = tmp_path / "gradebook.csv"
    gradebook.store(path, "old")

    def full(self: Path, data: bytes) -> None:
        self.open("wb").close()
        raise OSError("no space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="no space"):
        gradebook.store(path, "new")
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [("gradebook.csv", "old")]


def test_an_unchanged_file_is_not_touched(tmp_path):
    """A spreadsheet that has it open would complain."""
    gradebook.store(tmp_path / "x", "same")
    before = (tmp_path / "x").stat()
    gradebook.store(tmp_path / "x", "same")
    assert (tmp_path / "x").stat().st_ino == before.st_ino


@pytest.mark.parametrize("module", [gradebook])
def test_examples(module):
    failed, tried = doctest.testmod(module)
    assert tried
    assert not failed
