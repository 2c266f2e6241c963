"""What counts as a plan, how it is recorded, and how it is replayed."""

from __future__ import annotations

import json
import os

import pytest
import torch
from helpers.lesson.judged import MARK, MOST_CHARS, REPLAY

from helpers.catalog.errors import WorkbookError
from helpers.lesson import judged

DEEP: list = []
for _ in range(100_000):  # Python 3.13 writes 5,000 levels
    DEEP = [DEEP]


def gives(found):
    """An answer that returns `found`."""
    return lambda *_: found


@pytest.fixture
def replaying(monkeypatch):
    """replaying([line, ...]): from now on these are the recorded answers."""
    return lambda lines: monkeypatch.setenv(REPLAY, json.dumps(lines))


@pytest.mark.parametrize(
    ("found", "line", "kept"),
    [
        ([1, 2.5, "a", None, True], '[1, 2.5, "a", null, true]', [1, 2.5, "a", None, True]),
        ((1, (2, 3)), "[1, [2, 3]]", [1, [2, 3]]),
        ({"keep": (0,), 3: "x"}, '{"keep": [0], "3": "x"}', {"keep": [0], "3": "x"}),
        ("two\nlines \u2028 é", '"two\\nlines \\u2028 \\u00e9"', "two\nlines \u2028 é"),
        (None, "null", None),
        ("x" * (MOST_CHARS - 2), f'"{"x" * (MOST_CHARS - 2)}"', "x" * (MOST_CHARS - 2)),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_an_answer_is_one_line_and_is_weighed_as_the_line_says(capsys, replaying, found, line, kept):
    assert judged(gives(found), 1, 2) == kept
    assert capsys.readouterr().out == f"{MARK}{line}\n"
    assert len(line.splitlines()) == 1
    replaying([line])
    assert judged(None) == kept
    assert capsys.readouterr().out == f"{MARK}{line}\n"


def test_the_answer_gets_the_arguments():
    assert judged(lambda *arguments: arguments, 1, [2]) == [1, [2]]


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (torch.ones(2), r"plan returned Tensor .*turn tensors into numbers"),
        ({1, 2}, r"plan returned set .*sets into lists"),
        ([float("nan")], r"plan returned list "),
        ([float("inf")], r"plan returned list "),
        ({(1, 2): 3}, r"plan returned dict "),
        (DEEP, r"plan returned list "),
        ("x" * (MOST_CHARS - 1), r"20,001 characters"),
    ],
    ids=lambda value: f"{type(value).__name__}",
)
def test_what_is_no_plan_is_refused_and_not_recorded(capsys, found, words):
    def plan():
        return found

    with pytest.raises(WorkbookError, match=f"(?s){words}"):
        judged(plan)
    assert capsys.readouterr().out == ""


def test_an_error_of_the_answer_is_the_answers():
    with pytest.raises(ZeroDivisionError):
        judged(lambda: 1 / 0)


def test_a_replay_calls_nothing_and_takes_the_answers_in_order(capsys, replaying):
    replaying(["[1]", "[2]", "[3]"])
    assert [judged(lambda: pytest.fail("called")), judged(None)] == [[1], [2]]
    assert json.loads(os.environ[REPLAY]) == ["[3]"]
    assert capsys.readouterr().out == f"{MARK}[1]\n{MARK}[2]\n"


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([], "fewer answers"),
        (["[NaN]"], "NaN"),
        (["[-Infinity]"], "Infinity"),
        (["[1e999]"], "no plain data"),
        (["plan"], "no plain data"),
        (["1" * 5000], "no plain data"),
        (["[" * MOST_CHARS], "no plain data"),
        ([f'"{"x" * MOST_CHARS}"'], "20,002 characters"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_recorded_line_that_judged_never_prints_fails_the_check(replaying, lines, words):
    replaying(lines)
    with pytest.raises(AssertionError, match=words):
        judged(None)
