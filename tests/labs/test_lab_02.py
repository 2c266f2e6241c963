"""What lab 02 says in words is what its code does; and its checks take every right answer, and weigh judged ones."""

from __future__ import annotations

import json
import re

import pytest

from tests.labs.common import answers, lab_path, printed, source, weighed
from tests.labs.otherwise import answered_otherwise, differences, others

LAB = lab_path("02")


@pytest.mark.parametrize(
    ("question", "shown", "figures"),
    [
        ("q1", "count-parameters-check", ["1,235,814,400", "486,574,080"]),
        ("q3", "saved-by-child-check", ["8,192", "32,768"]),
        ("q5", "largest-micro-batch-check", ["128 tokens", "0.0875 GiB", " 5"]),
    ],
)
def test_every_figure_of_a_target_is_printed(lab, question, shown, figures):
    target = re.search(r"\*\*Target:\*\*.*", source(lab, question))[0]
    assert [figure for figure in figures if figure not in target or figure not in printed(lab, shown)] == []


def test_the_bytes_of_the_second_target_are_those_of_the_worked_answer(lab, names):
    target = re.search(r"\*\*Target:\*\*.*", source(lab, "q2"))[0]
    cost = names["state_bytes"](1_000_001, 100_001, 4, 64, 256)
    assert [f"{name} {size:,}" in target for name, size in cost.items()] == [True] * 3


@pytest.mark.all
@pytest.mark.parametrize("seed", ["0", "7"])
@pytest.mark.parametrize("other", others("02"))
def test_a_right_answer_written_otherwise_passes(lab, names, other, seed):
    assert differences(lab, names, "02", other, seed) == []


def test_every_answer_was_written_otherwise(lab):
    assert len(answered_otherwise(lab, "02")) == 6


@pytest.mark.parametrize(
    ("check", "changed", "words"),
    [
        ("peak-bytes-check", lambda one: int(one * 1.03), "you predict"),
        ("peak-bytes-check", float, "whole numbers"),
        ("accumulate-check", lambda one: one | {"gradient": [x * 1.01 for x in one["gradient"]]}, "is off"),
        ("accumulate-check", lambda one: one | {"gradient": one["gradient"][1:]}, "longer"),
        ("accumulate-check", lambda one: one | {"peak": 1.11}, "your peak is"),
    ],
)
def test_a_judge_refuses_a_recorded_answer_that_is_wrong(lab, names, check, changed, words):
    first, *rest = answers(printed(lab, check))
    with pytest.raises((AssertionError, ValueError), match=words):
        weighed(lab, names, check, [json.dumps(changed(json.loads(first))), *rest])
