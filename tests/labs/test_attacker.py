"""The attacker finds what a careless lab offers, and in a careful one nothing."""

from __future__ import annotations

import pytest
from nbformat import v4

from helpers.course import notebook as nb
from tests.course.example_lab import answer, ask, check, code, save
from tests.labs.attacker import attacks, drawn, paid

IMPORTS = "from helpers.lesson import asked, draw"
CAREFUL = {
    "given": "SIZES = [1, 2]",
    "mean": "def mean(numbers):\n    return sum(numbers) / len(numbers)",
    "ask-mean": """rng = draw("lab-01/mean")
numbers = [rng.randrange(2, 10**6) for _ in range(5)]
got = asked(mean, numbers)""",
    "check-mean": 'assert got == sum(numbers) / 5, "it is the sum by the count"\nprint(numbers, got)',
}
# What pays, by the lab's fault: a given function that answers, a check that weighs little, an input that is the answer.
CARELESS = {
    "calls average(*arguments)": {"given": "def average(values):\n    return sum(values) / len(values)"},
    "returns 0": {"check-mean": 'assert got >= 0, "no mean is negative"\nprint(numbers)'},
    "replays what asks": {"ask-mean": "numbers = [1, 3, 8, 9, 9]\ngot = asked(mean, numbers)"},
    "returns arguments[0]": {
        "mean": "def mean(number):\n    return number * 1",
        "ask-mean": 'numbers = draw("lab-01/mean").random()\ngot = asked(mean, numbers)',
        "check-mean": 'assert got == numbers, "the mean of one number"\nprint(got)',
    },
}


def lab(tmp_path, **changed):
    """A worked lab of one question; `changed` are the sources of cells that are others."""
    sources = CAREFUL | changed
    cells = [
        code(IMPORTS, "setup"),
        code(sources["given"], "given"),
        answer("mean", sources["mean"]),
        ask("ask-mean", sources["ask-mean"]),
        check("check-mean", sources["check-mean"]),
    ]
    return save(v4.new_notebook(cells=cells), tmp_path / "solutions/01_mean.ipynb")


def test_a_careful_lab_pays_no_attack(tmp_path):
    path = lab(tmp_path)
    assert paid(path, attacks(nb.read(path)), seed="7") == []


@pytest.mark.parametrize("words", CARELESS)
def test_a_careless_lab_is_told(tmp_path, words):
    path = lab(tmp_path, **CARELESS[words])
    chosen = [one for one in attacks(nb.read(path)) if one.words == words]
    assert paid(path, chosen, seed="7") == [f"{words} is paid by check-mean"]


def test_what_an_asking_cell_leaves_in_a_given_list_is_out_of_reach(tmp_path):
    left = "LAST = [0.0]", CAREFUL["ask-mean"].replace("got", "LAST[0] = sum(numbers) / 5\ngot")
    path = lab(tmp_path, given=left[0], **{"ask-mean": left[1]})
    attack = "def mean(numbers):\n    return LAST[0]"
    chosen = [one.__class__(0, "reads what is left", attack) for one in attacks(nb.read(path))[:1]]
    assert paid(path, chosen, seed="7") == []


def test_worked_answers_that_are_not_paid_are_no_control(tmp_path):
    path = lab(tmp_path, mean="def mean(numbers):\n    return 0")
    with pytest.raises(AssertionError, match="worked answers"):
        paid(path, [], seed="7")


def test_a_few_of_each_question_others_with_every_seed(tmp_path):
    every = attacks(nb.read(lab(tmp_path)))
    assert len(drawn(every, "1", of_each=6)) == 6
    assert drawn(every, "1", of_each=6) != drawn(every, "2", of_each=6)
    assert drawn(every, "1", of_each=6) == drawn(every, "1", of_each=6)
