"""When a notebook was handed in: no clock that shows something else is believed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from helpers.grading.intake.submissions import LearnerNotebook
from helpers.grading.reports import handed_in
from helpers.grading.reports.handed_in import CANVAS_LATE, COPIED, MOODLE, UNKNOWN, times

DUE = datetime(2026, 10, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def notebook(folder: str, at: datetime | str = "", number: str = "") -> LearnerNotebook:
    time = at if isinstance(at, str) else at.isoformat()
    return LearnerNotebook("x", None, number=number, handed_in=time, folder=folder)


def test_files_that_were_saved_at_different_times_are_believed():
    class_ = {"a": notebook("a.ipynb", DUE - HOUR), "b": notebook("b.ipynb", DUE + HOUR)}
    assert times(class_, {}, DUE) == {"a": DUE - HOUR, "b": DUE + HOUR}


def test_a_class_of_one_time_was_copied():
    second = DUE + timedelta(minutes=2)
    class_ = {"a": notebook("a.ipynb", DUE), "b": notebook("b.ipynb", second)}
    assert times(class_, {}, DUE) == {"a": COPIED, "b": COPIED}
    assert times(class_, {"a": DUE + HOUR}, DUE) == {"a": DUE + HOUR, "b": second}


def test_who_was_copied_later_does_not_make_the_others_late():
    """A class of twenty that was unpacked, and one notebook that came by mail the day after."""
    copied = DUE + HOUR
    class_ = {f"s{n}": notebook(f"s{n}.ipynb", copied + timedelta(seconds=n)) for n in range(20)}
    found = times(class_ | {"late": notebook("late.ipynb", copied + 24 * HOUR)}, {}, DUE)
    assert found.pop("late") == copied + 24 * HOUR
    assert set(found.values()) == {COPIED}


def test_half_a_class_may_hand_in_together():
    class_ = {
        "a": notebook("a", DUE),
        "b": notebook("b", DUE),
        "c": notebook("c", DUE - HOUR),
        "d": notebook("d", DUE + HOUR),
    }
    assert COPIED not in times(class_, {}, DUE).values()


def test_a_lone_file_has_its_own_time():
    assert times({"a": notebook("a.ipynb", DUE + HOUR)}, {}, DUE) == {"a": DUE + HOUR}


def test_moodle_says_it_in_its_worksheet_alone():
    class_ = {name: notebook(f"{name}_1_assignsubmission_file", DUE + HOUR, "1") for name in "ab"}
    assert times(class_, {"a": DUE - HOUR}, DUE) == {"a": DUE - HOUR, "b": MOODLE}


def test_canvas_says_who_was_late_and_not_by_how_much():
    class_ = {
        "a": notebook("lovelaceada_123_456_lab.ipynb", DUE + HOUR, "123"),
        "b": notebook("turingalan_LATE_124_457_lab.ipynb", DUE + HOUR, "124"),
        "c": notebook("late_anon_Ab12C_458_lab.ipynb", DUE + HOUR, "anon_Ab12C"),
        "e": notebook("_odd_name_123_460_late_1_2_lab.ipynb", "", "123"),
        "d": notebook("anon_Ab12D_459_lab.ipynb", DUE + HOUR, "anon_Ab12D"),
    }
    assert times(class_, {}, DUE) == {"a": DUE, "b": CANVAS_LATE, "c": CANVAS_LATE, "d": DUE, "e": DUE}


def test_nothing_known_and_nothing_handed_in():
    class_ = {"a": notebook("a.ipynb"), "b": notebook("b.ipynb", "not a time"), "c": notebook("")}
    assert times(class_, {}, DUE) == {"a": UNKNOWN, "b": UNKNOWN}
    assert handed_in.__doc__
