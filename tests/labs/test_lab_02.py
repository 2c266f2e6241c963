"""What lab 02 says in words is what its code does."""

from __future__ import annotations

import re

import pytest

from tests.labs.common import checks_passed, lab_path, printed, source

LAB = lab_path("02")


@pytest.mark.parametrize(
    ("question", "shown", "figures"),
    [
        ("q1", "count-parameters-whole", ["1,235,814,400"]),
        ("q1", "count-parameters-frozen", ["486,574,080"]),
        ("q3", "saved-by-child-once", ["8,192", "32,768"]),
    ],
)
def test_every_figure_of_a_target_is_printed(lab, question, shown, figures):
    target = re.search(r"\*\*Target:\*\*.*", source(lab, question))[0]
    assert [figure for figure in figures if figure not in target or figure not in printed(lab, shown)] == []


def test_the_bytes_of_the_second_target_are_those_of_the_worked_answer(lab, names):
    target = re.search(r"\*\*Target:\*\*.*", source(lab, "q2"))[0]
    cost = names["state_bytes"](1_000_001, 100_001, 4, 64, 256)
    assert [f"{name} {size:,}" in target for name, size in cost.items()] == [True] * 3


def test_the_target_of_the_fifth_question_is_the_largest_that_goes_through_on_the_device(lab, names):
    target = re.search(r"\*\*Target:\*\*.*", source(lab, "q5"))[0]
    cap, tokens = float(re.search(r"([\d.]+) GiB", target)[1]), int(re.search(r"(\d+) tokens", target)[1])
    assert (tokens, f" {names['largest_on_device'](2, cap)}" in target) == (128, True)


# What is not measured, or not asked, is not paid; each is named by words of its docstring.
UNPAID = ("Measures nothing: a table", "Asks nobody: reads the numbers")


@pytest.mark.slow
def test_whoever_measures_nothing_is_paid_nothing():
    assert checks_passed(LAB, UNPAID) == {words: set() for words in UNPAID}
