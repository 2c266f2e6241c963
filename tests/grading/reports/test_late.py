"""The due date: what a policy says, what being late costs, and what a policy that cannot be read is told."""

from __future__ import annotations

import doctest
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from helpers.catalog.errors import WorkbookError
from helpers.grading.reports import feedback, gradebook, late, summary
from helpers.grading.reports.late import LatePolicy, final_score, lateness, with_lateness
from tests.grading.reports.marked_class import question, result, small_class

DUE = datetime(2026, 10, 1, 21, 59, tzinfo=UTC)
POLICY = LatePolicy(DUE, timedelta(minutes=15), percent_per_day=10, most_percent=50)


def read(tmp_path: Path, text: str) -> LatePolicy:
    path = tmp_path / "due.toml"
    path.write_text(text, encoding="utf-8")
    return late.read(path)


def judged(after: timedelta, policy: LatePolicy = POLICY, **more: object) -> late.Lateness:
    one = result("ada", **more)
    found = lateness(with_lateness([one], {"ada": DUE + after}, policy)[0])
    assert found
    return found


@pytest.mark.parametrize(
    ("after", "taken", "note"),
    [
        (timedelta(0), 0, ""),
        (timedelta(days=-3), 0, ""),
        (timedelta(minutes=14, seconds=1), 0, "15 minutes late, within the 15 that are free"),
        (timedelta(minutes=15), 0, "15 minutes late, within the 15 that are free"),
        (timedelta(minutes=16), 0.5, "1 day late: 10 % less"),
        (timedelta(days=1), 0.5, "1 day late: 10 % less"),
        (timedelta(days=1, seconds=1), 1, "2 days late: 20 % less"),
        (timedelta(days=300), 2.5, "300 days late: 50 % less"),
    ],
)
def test_what_a_delay_costs(after, taken, note):
    found = judged(after)
    assert (found.taken, found.note) == (taken, note)


def test_a_table_of_days_ends_with_its_last_value():
    policy = LatePolicy(DUE, percent_by_day=(5, 25, 100))
    assert [policy.percent(days) for days in (0, 1, 2, 3, 9)] == [0, 5, 25, 100, 100]
    assert judged(timedelta(days=2.5), policy).taken == 5


def test_an_extension_moves_the_due_date_of_one_alone():
    policy = replace(POLICY, extensions={"Lovelace, Ada": DUE + timedelta(days=3)})
    class_ = [replace(result("Ada Lovelace"), slug="ada"), result("ben")]
    after = {one.slug: DUE + timedelta(days=4) for one in class_}
    ada, ben = with_lateness(class_, after, policy)
    assert final_score(ada) == 4.5
    assert lateness(ada).note == "1 day late, with an extension to 4 October 21:59: 10 % less"
    assert final_score(ben) == 3


def test_two_whom_one_name_can_mean_are_an_error():
    class_ = [replace(result("Li Wei"), slug="a"), replace(result("Wei Li"), slug="b")]
    with pytest.raises(WorkbookError, match="'Li Wei' in the due policy can be Li Wei or Wei Li"):
        with_lateness(class_, {}, replace(POLICY, extensions={"Li Wei": DUE}))


def test_where_the_time_is_unknown_nothing_is_deducted_and_that_is_said():
    one = with_lateness([result("ada")], {"ada": "nobody knows"}, POLICY)[0]
    assert final_score(one) == 5
    assert lateness(one).note == "nobody knows: nothing is deducted"
    assert late.unknown([one]) == {"nobody knows: nothing is deducted": 1}


def test_who_handed_nothing_in_is_not_late():
    assert lateness(with_lateness([result("ada")], {}, POLICY)[0]).note == ""


def test_clocks_that_change_make_no_day_longer():
    """25 October 2026 has 25 hours in Berlin; two times of one zone are subtracted as if it had 24."""
    berlin = ZoneInfo("Europe/Berlin")
    policy = LatePolicy(datetime(2026, 10, 24, 12, tzinfo=berlin), percent_per_day=10, zone=berlin)
    at = datetime(2026, 10, 25, 12, tzinfo=berlin)
    one = with_lateness([result("ada")], {"ada": at}, policy)[0]
    assert lateness(one).days == 2


def test_a_whole_policy_is_read(tmp_path):
    policy = read(
        tmp_path,
        """
        due = 2026-10-01T23:59:00+02:00
        grace_minutes = 15
        percent_by_day = [10, 25.5]
        most_percent = 60
        attempts = "best"
        [extensions]
        "Ada Lovelace" = 2026-10-05T23:59:00+02:00
        12345 = 3
        [handed_in]
        "alan@x.org" = 2026-10-02T08:00:00Z
        """,
    )
    assert policy.due == DUE
    assert policy.percent_by_day == (10, 25.5)
    assert policy.extensions["12345"] - policy.due == timedelta(days=3)
    assert policy.handed_in["alan@x.org"] == datetime(2026, 10, 2, 8, tzinfo=UTC)
    assert (policy.attempts, policy.most_percent, policy.grace) == ("best", 60, timedelta(minutes=15))


def test_a_zone_makes_its_dates_whole(tmp_path):
    policy = read(tmp_path, 'due = 2026-10-24T12:00:00\nzone = "Europe/Berlin"\n[extensions]\nada = 1\n')
    assert policy.due == datetime(2026, 10, 24, 12, tzinfo=timezone(timedelta(hours=2)))
    assert policy.extensions["ada"] == datetime(2026, 10, 25, 12, tzinfo=timezone(timedelta(hours=1)))


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("grace_minutes = 5", "", "due is missing"),
        ("due = 2026-10-01", "line 1", "due is '2026-10-01'"),
        ("due = '1 October'", "line 1", "due is '1 October'"),
        ("due = 2026-10-01T23:59:00", "line 1", "of no zone"),
        ("due = 2026-10-01T23:59:00Z\nzone = 'Berlin'", "line 2", "zone is 'Berlin'"),
        ("due = 2026-10-01T23:59:00Z\ngrace = 5", "line 2", "unknown key 'grace'"),
        ("due = 2026-10-01T23:59:00Z\ngrace_minutes = '5'", "line 2", "grace_minutes is '5'"),
        ("due = 2026-10-01T23:59:00Z\npercent_per_day = 101", "line 2", "percent_per_day is 101"),
        ("due = 2026-10-01T23:59:00Z\npercent_per_day = nan", "line 2", "percent_per_day is nan"),
        ("due = 2026-10-01T23:59:00Z\npercent_per_day = true", "line 2", "percent_per_day is True"),
        ("due = 2026-10-01T23:59:00Z\npercent_by_day = []", "line 2", "percent_by_day is []"),
        ("due = 2026-10-01T23:59:00Z\npercent_by_day = [1, 'x']", "line 2", "percent_by_day is 'x'"),
        ("due = 2026-10-01T23:59:00Z\npercent_by_day = [1]\npercent_per_day = 1", "line 2", "stands there too"),
        ("due = 2026-10-01T23:59:00Z\nattempts = 'first'", "line 2", "attempts is 'first'"),
        ("due = 2026-10-01T23:59:00Z\nextensions = 3", "line 2", "extensions is 3"),
        ("due = 2026-10-01T23:59:00Z\n[extensions]\n'Ada L' = 'soon'", "line 3", "the extension of 'Ada L' is 'soon'"),
        ("due = 2026-10-01T23:59:00Z\n[handed_in]\nada = 3", "line 3", "ada is '3'"),
        ("due = ", "line 1", "Invalid value"),
    ],
)
def test_a_policy_that_cannot_be_read_names_the_line(tmp_path, text, line, words):
    with pytest.raises(WorkbookError) as told:
        read(tmp_path, text)
    assert line in told.value.what
    assert words in told.value.what
    assert told.value.expected
    assert told.value.do


def test_a_policy_that_is_not_there():
    with pytest.raises(WorkbookError, match=r"nowhere.toml cannot be read"):
        late.read(Path("nowhere.toml"))


def test_points_earned_and_points_that_count_stand_in_every_report(tmp_path):
    times = {one.slug: DUE + timedelta(days=2) for one in small_class()} | {"ben": DUE, "cleo": "nobody knows"}
    class_ = with_lateness(small_class(), times, POLICY)
    gradebook.write(class_, tmp_path)
    feedback.write(class_, tmp_path, lab="05_numbers", title="Lab")
    summary.write(class_, tmp_path, {"lab": "05"})
    table = (tmp_path / "gradebook.csv").read_text(encoding="utf-8-sig")
    assert table.splitlines()[:2] == [
        "learner,number,email,score,max,status,earned,late,twice,pages,half",
        "ada,,,4,5,graded,5,2 days late: 20 % less,2,2,1",
    ]
    page = (tmp_path / "feedback/ada.html").read_text()
    assert "<strong>4</strong> of 5 points" in page
    assert "5 points earned. 2 days late: 20 % less." in page
    assert "late" not in (tmp_path / "feedback/ben.html").read_text().partition("<main>")[2]
    assert "nobody knows" not in (tmp_path / "feedback/cleo.html").read_text()
    shown = (tmp_path / "summary.html").read_text()
    assert "2 days late: 20 % less" in shown
    assert "1 learner: nobody knows: nothing is deducted." in shown


def test_points_by_hand_are_deducted_from_as_well():
    one = with_lateness([result("ada", question("half", earned=0.5))], {"ada": DUE + timedelta(days=1)}, POLICY)[0]
    assert final_score(one) == pytest.approx(4.05)


def test_examples():
    assert doctest.testmod(late).failed == 0
