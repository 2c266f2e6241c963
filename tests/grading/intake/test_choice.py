"""Which of several notebooks is graded, and what the learner is told."""

from __future__ import annotations

import json

import pytest

from helpers.grading.intake import submissions
from helpers.grading.intake.owners import copy_of
from helpers.grading.intake.submissions import find
from tests.grading.broken_files import put
from tests.grading.intake.test_reading import LAB

NAME = "05_numbers"
OLDER = {**LAB, "metadata": {"workbook": {"source": "solutions/05_old_name.ipynb"}}}
OTHER = {**LAB, "metadata": {"workbook": {"source": "solutions/03_the_allocator.ipynb"}}}
UNMARKED = {**LAB, "metadata": {}}
SCRATCH = {**UNMARKED, "cells": LAB["cells"][:1]}


def row_of_ada(root, into):
    put(root / "bob.ipynb", LAB)  # a folder alone could be one around the class
    return next(one for one in find(root, NAME, into) if one.learner == "ada")


# One learner's files; then which is taken, and words of the warnings.
CHOICES = {
    "its mark before its name": ({"a.ipynb": LAB, "05_numbers.ipynb": UNMARKED}, "a.ipynb", ()),
    "an older revision's mark": ({"a.ipynb": OLDER, "b.ipynb": SCRATCH}, "a.ipynb", ()),
    "its name before any other": ({"05_numbers.ipynb": UNMARKED, "a.ipynb": SCRATCH}, "05_numbers.ipynb", ()),
    "its number is a name": ({"lab 05.ipynb": UNMARKED, "lab 03.ipynb": SCRATCH}, "lab 05.ipynb", ()),
    "other labs beside it": ({"05_numbers.ipynb": LAB, "03_the_allocator.ipynb": OTHER}, "05_numbers.ipynb", ()),
    "another lab's mark": ({"05_numbers.ipynb": OTHER}, "05_numbers.ipynb", ("is it the right file",)),
    "the newest copy": (
        {"05_numbers.ipynb": LAB, "05_numbers (1).ipynb": OLDER, "05_numbers (10).ipynb": {**LAB, "x": 1}},
        "05_numbers (10).ipynb",
        ("'05_numbers (10).ipynb' was graded; '05_numbers (1).ipynb', '05_numbers.ipynb' could be",),
    ),
    "two of no name": ({"b.ipynb": SCRATCH, "a.ipynb": UNMARKED}, "a.ipynb", ("'a.ipynb' was graded; 'b.ipynb'",)),
    "above what is deeper": ({"x.ipynb": LAB, "old/a.ipynb": OLDER}, "x.ipynb", ("'old/a.ipynb' could",)),
    "five alike": (
        {f"{n}.ipynb": {**LAB, "n": n} for n in range(5)},
        "0.ipynb",
        ("'1.ipynb', '2.ipynb', '3.ipynb' and 1 more could be",),
    ),
    "a large one beside it": (
        {"05_numbers.ipynb": b" " * 100_000_001, "mine.ipynb": LAB},
        "mine.ipynb",
        ("passed over: 05_numbers.ipynb has 100 MB, more than",),
    ),
    "a mark in a cell's text is none": (
        {"a.ipynb": SCRATCH, "b.ipynb": {**UNMARKED, "cells": [{"source": json.dumps(LAB["metadata"])}]}},
        "a.ipynb",
        ("could be",),
    ),
}


@pytest.mark.parametrize("name", CHOICES)
def test_of_several_notebooks_one_is_taken_and_doubts_are_told(tmp_path, name):
    contents, wanted, warnings = CHOICES[name]
    for path, content in contents.items():
        put(tmp_path / "class/ada" / path, content)
    row = row_of_ada(tmp_path / "class", tmp_path / "into")
    assert row.path, row.reason
    assert row.path.read_bytes() == (tmp_path / "class/ada" / wanted).read_bytes()
    assert len(row.warnings) == len(warnings), row.warnings
    for told, words in zip(row.warnings, warnings, strict=True):
        assert words in told


def test_no_more_than_some_notebooks_of_one_learner_are_looked_into(tmp_path, monkeypatch):
    monkeypatch.setattr(submissions, "MOST_NOTEBOOKS", 2)
    for name in ("1", "05_numbers"):
        put(tmp_path / "class/ada" / f"{name}.ipynb", LAB)
    (tmp_path / "class/ada/2.ipynb").symlink_to("1.ipynb")  # which would be told, if it were looked at
    row = row_of_ada(tmp_path / "class", tmp_path / "into")
    assert row.warnings == ("only 2 of 3 notebooks were looked into",)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("lab.ipynb", ("lab", 0)),
        ("lab (2).ipynb", ("lab", 2)),
        ("lab(3).IPYNB", ("lab", 3)),
        ("lab-1.ipynb", ("lab", 1)),
        ("lab-Copy1.ipynb", ("lab", 1)),
        ("lab - Copy.ipynb", ("lab", 1)),
        ("lab - Copy (2).ipynb", ("lab", 2)),
        ("lab copy 4.ipynb", ("lab", 4)),
        ("Copy of lab.ipynb", ("lab", 1)),
        ("Copy of lab (2).ipynb", ("lab", 2)),
        ("photocopy.ipynb", ("photocopy", 0)),
        ("05_numbers.ipynb", ("05_numbers", 0)),
        ("lab (99999).ipynb", ("lab (99999)", 0)),
    ],
)
def test_the_names_of_copies_are_known(name, expected):
    assert copy_of(name) == expected
