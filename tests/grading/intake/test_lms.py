"""Whose is which: times, attempts, numbers and the names of result files, as LMSs tell them."""

from __future__ import annotations

import json
import os
import time
import unicodedata

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from helpers.grading.intake import lms
from helpers.grading.intake.owners import MOST_SLUG_CHARACTERS, slug
from helpers.grading.intake.submissions import find
from tests.grading.broken_archives import GRADESCOPE, of, zipped
from tests.grading.broken_files import put
from tests.grading.intake.test_reading import LAB

NAME = "05_numbers"
RIGHT = json.dumps(LAB).encode()


@pytest.fixture(autouse=True)
def east_of_greenwich(monkeypatch):
    """This machine's clock is two hours ahead of UTC: where a time without a zone counts."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Etc/GMT-2")
        time.tzset()
        yield
    time.tzset()


def taken(tmp_path, build):
    build(tmp_path / "class.zip", RIGHT)
    return {one.learner: one for one in find(tmp_path / "class.zip", NAME, tmp_path / "into")}


@pytest.mark.parametrize(
    ("top", "handed_in"),
    [
        ("L_ada_attempt_2026-10-01-12-00-05_x.ipynb", "2026-10-01T10:00:05+00:00"),
        ("L_ada_attempt_2026-13-01-12-00-05_x.ipynb", ""),
        ("1-2 - Ada - Oct 1, 2026 1200 PM - x.ipynb", "2026-10-01T10:00:00+00:00"),
        ("1-2 - Ada - October 31, 2026 1200 AM - x.ipynb", "2026-10-30T22:00:00+00:00"),
        ("1-2 - Ada - 05 March 2026 612 PM/x.ipynb", "2026-03-05T16:12:00+00:00"),
        ("1-2 - Ada - 5 Mar, 2026 1812/x.ipynb", "2026-03-05T16:12:00+00:00"),
        ("1-2 - Ada - 5 mars 2026 2512/x.ipynb", ""),
        ("1-2 - Ada - 5 xyz 2026 1212/x.ipynb", ""),
        ("1-2 - Ada - Feb 31, 2026 1200 PM/x.ipynb", ""),
        ("ada_1_2_05_numbers.ipynb", ""),  # the time of Canvas's archive is that of the download
        ("Ada_12_assignsubmission_file/x.ipynb", ""),  # and of Moodle's
    ],
)
def test_a_time_is_what_the_lms_says_or_nothing(tmp_path, top, handed_in):
    found = taken(tmp_path, of(top))
    assert [(one.handed_in, one.folder) for one in found.values()] == [(handed_in, top.partition("/")[0])]


def test_attempts_are_kept_and_the_last_with_a_notebook_is_graded(tmp_path):
    def at(hour: int, rest: str) -> str:
        return f"Lab_ada_attempt_2026-10-01-{hour:02d}-00-00{rest}"

    build = zipped(
        (at(12, "_05_numbers.ipynb"), b"{}"),
        (at(9, "_05_numbers.ipynb"), b"[]"),
        (at(14, "_essay.pdf"), b""),
        (at(14, ".txt"), b""),
        ("Lab_bob_attempt_2026-10-01-09-00-00_x.ipynb", None),
    )
    found = taken(tmp_path, build)
    ada, bob = found["ada"], found["bob"]
    assert (bob.attempts, bob.warnings) == ((), ())
    assert [one.handed_in[11:13] for one in ada.attempts] == ["07", "10", "12"]
    assert [one.path and one.path.read_bytes() for one in ada.attempts] == [b"[]", b"{}", None]
    assert (ada.handed_in, ada.path) == (ada.attempts[1].handed_in, ada.attempts[1].path)
    assert {(one.learner, one.slug) for one in ada.attempts} == {("ada", ada.slug)}
    assert ada.warnings == ("it was handed in 3 times; number 2, the last with a notebook, is graded",)


def test_attempts_in_folders_are_told_apart(tmp_path):
    when = ("Oct 1, 2026 1159 AM", "Oct 2, 2026 100 AM", "Sep 30, 2026 100 PM")
    found = taken(
        tmp_path, of(*(f"1-2 - Ada - {one}/x.ipynb" for one in when), "2-2 - Ada - Oct 1, 2026 100 PM/x.ipynb")
    )
    assert {name: len(one.attempts) for name, one in found.items()} == {"Ada (1)": 3, "Ada (2)": 0}
    assert found["Ada (1)"].folder == "1-2 - Ada - Oct 2, 2026 100 AM"
    assert "it was handed in 3 times; the last is graded" in found["Ada (1)"].warnings


def test_gradescope_names_its_submitters(tmp_path):
    found = taken(tmp_path, zipped((lms.GRADESCOPE, GRADESCOPE), ("submission_11/l.ipynb", None)))
    assert {name: (one.number, one.email, one.handed_in, one.folder) for name, one in found.items()} == {
        "Ada": ("007", "ada@x.org", "2026-10-01T12:00:00+00:00", "submission_11"),
        "Bob": ("8", "", "2026-10-01T12:00:00+00:00", "submission_11"),
    }
    assert found["Ada"].digest == found["Bob"].digest


@given(st.binary() | st.sampled_from([b"- 1", b"a: {b: 1}", b"a:\n  :submitters: [1]", b"[" * 5000]))
@example(b"a: &a [*a]")
def test_whatever_gradescopes_file_holds_it_raises_nothing(metadata):
    assert isinstance(lms.gradescope(metadata), dict)


names = st.text(min_size=1, max_size=80) | st.from_regex(r"[a-zA-Z0-9 ._@+()-]{1,12}", fullmatch=True)


@given(names, st.sampled_from(["", "7"]))
@example("con", "").via("no file's name on Windows")
@example("a" * 300, "")
@example("..", "")
def test_a_slug_is_a_safe_name_for_a_file(name, number):
    found = slug(name, number)
    assert found == "".join(one for one in found if one.isascii() and (one.isalnum() or one in "._@+-"))
    assert found[0].isalnum()
    assert found[-1].isalnum()
    assert len(found) <= MOST_SLUG_CHARACTERS
    assert slug(found) == found or "-" in found


@given(names, names)
@example("Ada", "ada")
@example("Ada Lovelace", "Ada-Lovelace")
@example("李雷", "韩梅")
@example("ada lovelace", slug("ada lovelace"))
@example("Ада", "Ада ")
def test_no_two_learners_have_one_slug(one, other):
    assume(unicodedata.normalize("NFC", one) != unicodedata.normalize("NFC", other))
    assert slug(one).lower() != slug(other).lower()
    assert slug(one, "1").lower() != slug(one, "2").lower() != slug(one).lower()


@given(names)
def test_a_slug_is_the_same_however_the_accents_are_spelt(name):
    assert len({slug(unicodedata.normalize(form, name)) for form in ("NFC", "NFD")}) == 1


def test_a_slug_stays_when_others_join_and_leave(tmp_path):
    def slugs(folder: str, *learners: str) -> dict[str, str]:
        for learner in learners:
            put(tmp_path / folder / f"{learner}.ipynb", LAB)
        return {one.learner: one.slug for one in find(tmp_path / folder, NAME, tmp_path / "into")}

    few = slugs("few", "李雷", "Ада", "ada.lovelace")
    many = slugs("many", "丁一", "李雷", "Ада", "Ада ", "Борис", "ada.lovelace", "Ada.Lovelace")
    assert few.items() <= many.items()
    assert len({one.lower() for one in many.values()}) == 7
    assert few["ada.lovelace"] == "ada.lovelace"
    assert few["李雷"].startswith("learner-")


def test_namesakes_keep_their_slugs_when_one_leaves(tmp_path):
    both = taken(tmp_path, of(*(f"Ada_{number}_assignsubmission_file/x.ipynb" for number in (9, 12))))
    alone = taken(tmp_path, of("Ada_12_assignsubmission_file/x.ipynb"))
    assert alone["Ada"].slug == both["Ada (12)"].slug != both["Ada (9)"].slug


def test_a_zip_was_handed_in_when_it_came_whatever_the_times_in_it(tmp_path):
    of("work/05_numbers.ipynb")(tmp_path / "lab.zip", RIGHT)
    packed = put(tmp_path / "class/ada/lab.zip", (tmp_path / "lab.zip").read_bytes())
    os.utime(packed, (0, 1_000_000_000))
    put(tmp_path / "class/bob/x.ipynb", LAB)
    ada, _ = find(tmp_path / "class", NAME, tmp_path / "into")
    assert (ada.handed_in, ada.folder, ada.path.read_bytes()) == ("2001-09-09T01:46:40+00:00", "ada", RIGHT)
