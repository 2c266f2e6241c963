"""What a regrade changed: whose points, in which question, and why."""

from __future__ import annotations

import csv
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from helpers.grading.judging.results import Result
from helpers.grading.reports import changes, manual
from helpers.grading.reports.changes import AGAIN, BY_HAND, GONE, IN_TIME, NOTEBOOK, REFERENCE, TAKEN_BACK, told
from helpers.grading.reports.late import LatePolicy, with_lateness
from tests.grading.reports.marked_class import question, result

ADA, BEN = result("ada"), result("ben", question("pages", "wrong"))
DIGESTS = {"ada": "1", "ben": "1"}


def record(out: Path, *class_: Result, waiting=(), digests=DIGESTS, reference="r1", now="t1") -> list[tuple]:
    found = changes.record(class_, waiting, digests, reference, out, now)
    return [(one.learner, one.question, one.before, one.after, one.why) for one in found]


@pytest.fixture
def out(tmp_path) -> Path:
    assert record(tmp_path, ADA, BEN) == [], "the first time nothing is a change"
    assert not (tmp_path / "changes.csv").exists()
    return tmp_path


def test_nothing_changed(out):
    assert record(out, ADA, BEN) == []
    assert told([]) == []


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"digests": {"ada": "1", "ben": "2"}}, NOTEBOOK),
        ({"reference": "r2"}, REFERENCE),
        ({"digests": {"ben": "2"}, "reference": "r2"}, NOTEBOOK),
        ({}, AGAIN),
    ],
)
def test_points_that_changed_come_with_the_reason(out, more, why):
    assert record(out, ADA, result("ben", question("half", "wrong")), **more) == [
        ("ben", "pages", "0", "2", why),
        ("ben", "half", "1", "0", why),
        ("ben", "total", "3", "4", why),
    ]


def test_points_by_hand_and_taken_back(out):
    (out / "manual.csv").write_text("learner,question,max,reason,points,comment\nben,pages,2,,1.5,\n")
    by_hand = manual.merged([ADA, BEN], out / "manual.csv")
    assert record(out, *by_hand) == [("ben", "pages", "0", "1.5", BY_HAND), ("ben", "total", "3", "4.5", BY_HAND)]
    assert record(out, ADA, BEN) == [("ben", "pages", "1.5", "0", TAKEN_BACK), ("ben", "total", "4.5", "3", TAKEN_BACK)]


def test_a_deduction(out):
    due = datetime(2026, 10, 1, tzinfo=UTC)
    late = with_lateness([ADA, BEN], {"ada": due + timedelta(hours=1), "ben": due}, LatePolicy(due, percent_per_day=10))
    assert record(out, *late) == [("ada", "total", "5", "4.5", "1 day late: 10 % less")]
    assert record(out, ADA, BEN) == [("ada", "total", "4.5", "5", IN_TIME)]


def test_who_left_who_joined_and_who_waits(out):
    assert record(out, ADA, result("cleo")) == [("ben", "total", "3", "", GONE)]
    assert record(out, result("cleo"), waiting=[ADA]) == []
    assert record(out, replace(ADA, questions=BEN.questions), result("cleo"))[-1][:4] == ("ada", "total", "5", "3")


def test_every_change_stays_in_the_table(out):
    record(out, ADA, result("ben"), now="t2")
    record(out, ADA, BEN, now="t3")
    (out / "changes.csv").write_text("saved by a spreadsheet in its own way")
    record(out, ADA, BEN, now="t4")
    with (out / "changes.csv").open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["when"], row["question"], row["after"]) for row in rows] == [
        ("t2", "pages", "2"),
        ("t2", "total", "5"),
        ("t3", "pages", "0"),
        ("t3", "total", "3"),
    ]


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"learners": {"ada": {}}, "changes": []}', "\x00"])
def test_a_damaged_store_is_a_first_time(out, damage):
    (out / "published.json").write_text(damage)
    assert record(out, ADA, result("ben")) == []
    assert record(out, ADA, BEN)[-1] == ("ben", "total", "5", "3", AGAIN)


def test_what_is_printed(out):
    found = changes.record([ADA, result("ben")], [], DIGESTS, "r2", out, "t")
    assert told(found) == ["1 learner has other points than before (changes.csv)", f"  ben: 3 → 5: {REFERENCE}"]
    assert told(found * 30)[-1] == "  and 10 more"
