"""A guess stands alone in its cell and meets its answer in a later one: each way to break that is seen red."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from nbformat import v4

from helpers.course import guesses
from helpers.course.lint import findings

GUESS, MEET = "g = predict('x', guess=None)", "compare(3, you=g)"


def broken(*sources: str) -> list[tuple[str, str]]:
    """The broken rules of a chapter with these cells, as (rule, the cell's number)."""
    cells = [(str(number), ast.parse(source).body) for number, source in enumerate(sources)]
    return [(rule, message.split()[1].rstrip(":")) for rule, message in guesses.broken(cells)]


@pytest.mark.parametrize(
    "sources",
    [
        [GUESS, MEET],
        [GUESS, "x = 1", "for _ in x:\n    compare(x, unit='s', you=g, formula=2)", GUESS, MEET],
        ["g = predict('x')\nh = predict('y')", "compare(1, you=g)\ncompare(2, you=h)"],
        ["gs = [predict(name) for name in ('a', 'b')]", "compare(1, you=gs[0])"],
        ["x = 1", "print(x)"],
        ["v = claims.read('adam-12', guess=None)", "claims.trial('adam-12', {'a': True}, you=v)"],
        ["v = claims.read('adam-12')", GUESS, "claims.trial('adam-12', evidence, you=v)\ncompare(3, you=g)"],
    ],
)
def test_a_guess_that_is_met(sources):
    assert broken(*sources) == []


@pytest.mark.parametrize(
    ("sources", "cells"),
    [
        (["g, h = predict('x'), predict('y')", MEET], "0"),
        (["predict('x')", "predict('y')", MEET], "01"),
        ([GUESS, "print(g)"], "0"),
        ([GUESS, "compare(3, formula=2)"], "0"),
        ([GUESS, GUESS, MEET], "0"),
        ([MEET, GUESS], "1"),
        ([GUESS, MEET, "h = predict('y')"], "2"),
        (["claims.read('adam-12')", "claims.trial('adam-12', evidence)"], "0"),
        (["v = claims.read('adam-12')", "claims.trial('adam-12', evidence)"], "0"),
    ],
)
def test_a_guess_that_is_not(sources, cells):
    assert broken(*sources) == [("predict-compared", cell) for cell in cells]


@pytest.mark.parametrize(
    "source",
    [
        GUESS + "\nprint(measure())",
        "setup = 1\n" + GUESS,
        "import os\n" + GUESS,
        "g = predict('x', guess=measure())",
        "g = [predict(x) for x in names()]",
        "g = claims.read('adam-12')\nprint(measure())",
    ],
)
def test_a_guess_beside_something_else(source):
    assert broken(source, MEET) == [("predict-alone", "0")]


def test_a_guess_in_the_cell_of_its_answer_breaks_both_rules():
    assert broken(GUESS + "\n" + MEET) == [("predict-alone", "0"), ("predict-compared", "0")]


@pytest.mark.parametrize("folder", ["notebooks", "solutions"])
def test_chapters_are_held_to_it_and_a_lab_may_have_a_predict_of_its_own(folder):
    notebook = v4.new_notebook(cells=[v4.new_code_cell(GUESS)])
    rules = {found.rule for found in findings(notebook, Path("elsewhere") / folder / "05_x.ipynb")}
    assert ("predict-compared" in rules) == (folder == "notebooks")
