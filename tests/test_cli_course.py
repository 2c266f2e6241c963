"""Commands that need the course's files, where there are none; and what a bare `pip install` leaves out."""

from __future__ import annotations

import sys

import pytest

import helpers.course
from helpers.cli import course, main

OUTSIDE = (
    "build",
    "build 02",
    "release",
    "release --nbgrader there",
    "publish --check",
    "check 02",
    "check mine.ipynb",
    "sample-class 02 --out there",
    "record",
    "record --list",
    "grade 02 mine --out there",
)


@pytest.mark.parametrize("command", OUTSIDE)
def test_outside_a_clone_it_says_so_before_anything_is_imported(command, monkeypatch, capsys):
    monkeypatch.setattr(course, "find_root", lambda: None)
    for name in ("nbformat", "nbclient", "nbval", "jinja2"):  # as where the package was installed alone
        monkeypatch.setitem(sys.modules, name, None)
    assert main(command.split()) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("workbook: no workbook here: this command needs the course's notebooks\n")
    assert len(told.err.splitlines()) == 3


def test_a_package_that_is_not_installed_is_named(monkeypatch, capsys):
    monkeypatch.setattr(helpers, "course", helpers.course)  # what is imported anew takes its place there, too
    for name in [name for name in sys.modules if name.startswith("helpers.course")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "nbformat", None)
    assert main(["release", "--check"]) == 2
    assert "nbformat is not installed" in capsys.readouterr().err


def test_a_package_that_no_extra_brings_is_named(monkeypatch, capsys):
    def absent(*words):
        raise ModuleNotFoundError("No module named 'elsewhere'", name="elsewhere")

    monkeypatch.setattr("helpers.cli._parser", absent)
    assert main(["cards"]) == 2
    assert "expected: the package elsewhere" in capsys.readouterr().err


def test_a_missing_module_of_ours_is_a_bug_and_no_advice(monkeypatch):
    monkeypatch.setitem(sys.modules, "helpers.course.release", None)
    with pytest.raises(ModuleNotFoundError, match=r"helpers\.course\.release"):
        main(["release", "--check"])
