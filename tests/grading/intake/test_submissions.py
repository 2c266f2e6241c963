"""Who handed in what: every broken submission at once, archives, layouts, arguments."""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
import zipfile
from pathlib import Path

import pytest

from helpers.catalog.errors import WorkbookError
from helpers.grading.intake.reading import Submitted, Unreadable, read
from helpers.grading.intake.submissions import Submission, find
from tests.grading.broken_archives import HOSTILE, LMS, of, zipped
from tests.grading.broken_files import BROKEN, put, write_class
from tests.grading.intake.test_reading import LAB

NAME = "05_numbers"
OTHER = {**LAB, "metadata": {"workbook": {"source": "solutions/03_the_allocator.ipynb"}}}
UNMARKED = {**LAB, "metadata": {}}
SCRATCH = {**UNMARKED, "cells": LAB["cells"][:1]}
CASES = {str(case): case for case in BROKEN}


def taken(root: Path, into: Path) -> dict[str, Submission]:
    return {one.learner: one for one in find(root, NAME, into)}


def outcome(submission: Submission) -> Submitted | str:
    """What the grader will have: the notebook, or why there is none."""
    if submission.path is None:
        return submission.reason
    try:
        return read(submission.path)
    except Unreadable as error:
        return str(error)


def tree(root: Path) -> set[str]:
    return {os.path.join(folder, name) for folder, folders, files in os.walk(root) for name in (*folders, *files)}


@pytest.fixture(scope="module")
def broken_class(tmp_path_factory):
    """Every broken submission in one class, taken in once: the cases, the folder before and after, the rows."""
    root, into = (tmp_path_factory.mktemp(name) for name in ("class", "into"))
    written = write_class(root, LAB)
    before = tree(root)
    rows = taken(root, into)
    return written, before, tree(root), rows, into


@pytest.mark.parametrize("name", CASES)
def test_a_broken_file_is_read_or_is_a_reason(broken_class, name):
    written, _, _, rows, _ = broken_class
    case = CASES[name]
    if case not in written:
        pytest.skip("root reads what nobody may read")
    row = rows[case.row]
    found = outcome(row)
    if case.reason:
        assert isinstance(found, str), f"was read: {found}"
        assert case.reason in found
        assert found.isprintable()
        return
    assert isinstance(found, Submitted), f"was refused: {found}"
    sources = iter([cell.source for cell in found.cells])
    assert all("".join(cell["source"]) in sources for cell in LAB["cells"]), "lost, or in another order"
    warnings = " | ".join((*row.warnings, *found.warnings))
    assert case.warning in warnings if case.warning else not warnings


def test_every_broken_submission_has_a_row_and_leaves_nothing_behind(broken_class):
    written, before, after, rows, into = broken_class
    assert sorted(rows) == sorted(case.row for case in written)
    assert after == before, "something was written, or imported, among the submissions"
    copies = {row.path.name for row in rows.values() if row.path}
    assert {path.name for path in into.iterdir()} == copies
    assert all(re.fullmatch(r"\d{4}\.ipynb", name) for name in copies)
    for row in rows.values():
        assert bool(row.path) != bool(row.reason)
        assert row.digest == (hashlib.sha256(row.path.read_bytes()).hexdigest() if row.path else "")
        row.learner.encode()


ITEMS = """invalid JSON · empty · BOM · UTF-16 · nbformat 3 · 4.0 without ids · 6 · wrong kernelspec · lone surrogate
· NUL · terminal escapes · deep nesting · 200 MB · 50,000 cells · Colab widgets without state · symlink to the solution
· FIFO · folder named x.ipynb · unreadable · "lab (1).ipynb" · two files · odd ids · zip-slip · zip bomb · conftest.py
· script in an output · or a name · a name that is a spreadsheet formula"""


def test_the_corpus_has_every_item_of_the_specification_and_no_name_twice():
    assert {" ".join(item.split()) for item in ITEMS.split("·")} == {case.item for case in (*BROKEN, *HOSTILE)}
    for names in (
        [case.row for case in BROKEN],
        [case.name for case in BROKEN],
        [one.name for one in (*LMS, *HOSTILE)],
    ):
        assert len(names) == len(set(names))


@pytest.mark.parametrize("case", [*LMS, *HOSTILE], ids=str)
def test_an_archive_gives_each_learner_a_row(tmp_path, case):
    notebook = json.dumps(LAB, indent=1).encode()
    case.build(tmp_path / "class.zip", notebook)
    rows = taken(tmp_path / "class.zip", tmp_path / "into")
    assert sorted(rows) == sorted(case.rows)
    for learner, reason in case.rows.items():
        row = rows[learner]
        assert reason in row.reason
        assert bool(reason) == (row.path is None), row.reason
        assert row.path is None or row.path.read_bytes() == notebook
    warnings = " | ".join(warning for row in rows.values() for warning in row.warnings)
    assert case.warning in warnings if case.warning else not warnings
    assert {path.name for path in tmp_path.iterdir()} == {"class.zip", "into"}


def test_the_number_by_which_an_lms_knows_the_learner_is_kept(tmp_path):
    of("lovelaceada_123_456_05_numbers.ipynb", "ada.ipynb")(tmp_path / "class.zip", b"")
    found = find(tmp_path / "class.zip", NAME, tmp_path / "into")
    assert [(one.learner, one.number) for one in found] == [("ada", ""), ("lovelaceada", "123")]


# Files with their contents; then what is taken for each learner: a file's path, or part of a reason.
LAYOUTS = {
    "a folder of notebooks": (
        {"bob.ipynb": LAB, "ada.ipynb": SCRATCH, "README.md": "", "conftest.py": "1 / 0"},
        {"ada": "ada.ipynb", "bob": "bob.ipynb"},
    ),
    "a folder per learner": (
        {"ada/any name.ipynb": SCRATCH, "bob/work/lab.ipynb": LAB, "cleo/answers.pdf": ""},
        {"ada": "ada/any name.ipynb", "bob": "bob/work/lab.ipynb", "cleo": "there are answers.pdf"},
    ),
    "both": (
        {"ada.ipynb": LAB, "bob/lab.ipynb": LAB, "cleo.zip": "", "dan.ipynb.txt": LAB},
        {"ada": "ada.ipynb", "bob": "bob/lab.ipynb", "cleo": "cannot be read as a zip", "dan": "must be named .ipynb"},
    ),
    "nbgrader's course": (
        {
            "submitted/ada/05_numbers/05_numbers.ipynb": LAB,
            "submitted/ada/03_the_allocator/03_the_allocator.ipynb": OTHER,
            "submitted/bob/03_the_allocator/03_the_allocator.ipynb": OTHER,
            "source/05_numbers/05_numbers.ipynb": UNMARKED,
            "nbgrader_config.py": "1 / 0",
        },
        {"ada": "submitted/ada/05_numbers/05_numbers.ipynb", "bob": "says that it is the lab '03_the_allocator'"},
    ),
    "nbgrader's submitted": (
        {"ada/05_numbers/x.ipynb": SCRATCH, "ada/06_x/05_numbers.ipynb": LAB, "bob/05_numbers/x.ipynb": LAB},
        {"ada": "ada/05_numbers/x.ipynb", "bob": "bob/05_numbers/x.ipynb"},
    ),
    "nbgrader's folder without this lab": (
        {"ada/05_numbers/timestamp.txt": "", "ada/05_numbers.ipynb": LAB, "bob/05_numbers/x.ipynb": LAB},
        {"ada": "there are 05_numbers/timestamp.txt", "bob": "bob/05_numbers/x.ipynb"},
    ),
    "a learner called submitted": (
        {"submitted/lab.ipynb": LAB, "ada/lab.ipynb": LAB},
        {"ada": "ada/lab.ipynb", "submitted": "submitted/lab.ipynb"},
    ),
    "one folder around the class": (
        {"class/ada.ipynb": LAB, "class/bob/lab.ipynb": LAB},
        {"ada": "class/ada.ipynb", "bob": "class/bob/lab.ipynb"},
    ),
    "one learner alone": ({"ada/05_numbers.ipynb": LAB, "ada/scratch.ipynb": SCRATCH}, {"ada": "ada/05_numbers.ipynb"}),
    "one learner and one notebook": ({"ada/lab.ipynb": UNMARKED}, {"ada": "ada/lab.ipynb"}),
    "one learner who handed in nothing": ({"ada/notes.txt": ""}, {"ada": "there are notes.txt"}),
    "one learner with a folder for each lab": (
        {"ada/05_numbers/x.ipynb": SCRATCH, "ada/03_the_allocator/y.ipynb": OTHER},
        {"ada": "ada/05_numbers/x.ipynb"},
    ),
    "one name twice": (
        {"ada.ipynb": LAB, "ada/lab.ipynb": SCRATCH, "ada (2).ipynb": UNMARKED},
        {"ada": "ada/lab.ipynb", "ada (3)": "ada.ipynb", "ada (2)": "ada (2).ipynb"},
    ),
    "left behind": (
        {"ada/.ipynb_checkpoints/05_numbers.ipynb": LAB, "ada/.venv/x.ipynb": LAB, "ada/._l.ipynb": "", "b.ipynb": LAB},
        {"ada": "there are no files", "b": "b.ipynb"},
    ),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_each_layout_gives_its_learners(tmp_path, name):
    contents, expected = LAYOUTS[name]
    for path, content in contents.items():
        put(tmp_path / "class" / path, content)
    rows = taken(tmp_path / "class", tmp_path / "into")
    assert list(rows) == sorted(expected)
    for learner, wanted in expected.items():
        row = rows[learner]
        if wanted in contents:
            assert row.path, row.reason
            assert row.path.read_bytes() == (tmp_path / "class" / wanted).read_bytes()
        else:
            assert row.path is None
            assert wanted in row.reason


def test_two_learners_of_one_name_are_told(tmp_path):
    for path in ("ada.ipynb", "ada/lab.ipynb", "bob (1).ipynb", "bob.ipynb", "c (1).ipynb"):
        put(tmp_path / "class" / path, LAB)
    rows = taken(tmp_path / "class", tmp_path / "into")
    told = {learner: " ".join(row.warnings) for learner, row in rows.items() if row.warnings}
    assert set(told) == {"ada", "ada (2)", "bob (1)"}
    assert "2 submissions came under the name 'ada'; this is 'ada (2)'" in told["ada (2)"]
    assert told["bob (1)"] == "it may be a second copy of the submission of 'bob'"


def test_one_notebook_a_link_to_it_and_links_to_the_others_are_submissions(tmp_path):
    notebook = put(tmp_path / "class/ada.ipynb", LAB)
    of("ada.ipynb")(tmp_path / "class.zip", notebook.read_bytes())
    for number, target in enumerate(("class/ada.ipynb", "class", "class.zip")):
        link = tmp_path / f"link-{Path(target).name}"
        link.symlink_to(tmp_path / target)
        for path in (tmp_path / target, link):
            (row,) = find(path, NAME, tmp_path / f"into-{number}")
            assert row.path.read_bytes() == notebook.read_bytes()
            assert row.learner in ("ada", "link-ada")


def test_the_rows_are_sorted_and_the_same_every_time(tmp_path):
    for name in ("bob", "Ada", "ada", "Çelik", "eve"):
        put(tmp_path / "class" / f"{name}.ipynb", LAB)
    found = find(tmp_path / "class", NAME, tmp_path / "into")
    assert [one.learner for one in found] == ["Ada", "ada", "bob", "eve", "Çelik"]
    assert find(tmp_path / "class", NAME, tmp_path / "into") == found


ARGUMENTS = {
    "missing": (lambda at: None, "does not exist"),
    "an empty folder": (lambda at: at.mkdir(), "holds no submissions"),
    "nothing of learners": (lambda at: put(at / "README.md", ""), "holds no submissions"),
    "another file": (lambda at: put(at, ""), "neither a folder"),
    "a FIFO": (os.mkfifo, "neither a folder"),
    "a dangling link": (lambda at: at.symlink_to("nowhere"), "does not exist"),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_an_argument_that_is_no_submissions_is_told(tmp_path, name):
    build, what = ARGUMENTS[name]
    build(tmp_path / "given")
    with pytest.raises(WorkbookError) as caught:
        find(tmp_path / "given", NAME, tmp_path / "into")
    assert what in caught.value.what


@pytest.mark.parametrize(
    "content", [b"", b"PK", b"PK\x05\x06" + bytes(18)], ids=["empty", "cut off", "without a member"]
)
def test_a_zip_that_is_none_is_told(tmp_path, content):
    put(tmp_path / "class.zip", content)
    with pytest.raises(WorkbookError):
        find(tmp_path / "class.zip", NAME, tmp_path / "into")


def test_the_copies_may_not_lie_among_the_submissions(tmp_path):
    put(tmp_path / "class/ada.ipynb", LAB)
    for into in ("class", "class/into", "into/../class/x"):
        with pytest.raises(WorkbookError) as caught:
            find(tmp_path / "class", NAME, tmp_path / into)
        assert "where the results are to go" in caught.value.what


@pytest.fixture
def east_of_greenwich(monkeypatch):
    """This machine's clock is two hours ahead: where a zip's times count."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Etc/GMT-2")
        time.tzset()
        yield
    time.tzset()


def test_the_time_and_the_folder_that_the_lms_gave_are_kept(tmp_path, east_of_greenwich):
    info = zipfile.ZipInfo("class/Ada/work/05_numbers.ipynb", (2026, 10, 1, 12, 0, 2))
    zipped((info, None), ("class/bob.ipynb", None))(tmp_path / "class.zip", b"{}")
    notebook = put(tmp_path / "class/cleo.ipynb", LAB)
    os.utime(notebook, (0, 1_000_000_000))
    ada, bob = find(tmp_path / "class.zip", NAME, tmp_path / "into")
    assert (ada.folder, ada.handed_in) == ("Ada", "2026-10-01T10:00:02+00:00")
    assert bob.folder == "bob.ipynb"
    for root in (tmp_path / "class", notebook):
        (cleo,) = find(root, NAME, tmp_path / "into")
        assert (cleo.folder, cleo.handed_in, cleo.email) == ("cleo.ipynb", "2001-09-09T01:46:40+00:00", "")
