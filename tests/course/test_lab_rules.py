"""The rules that keep right answers out of an answer's reach, each broken once."""

from __future__ import annotations

import pytest
from nbformat import v4

from helpers.course.lab_rules import broken
from tests.course.example_lab import answer, check

TWICE = "def twice(x):\n    ### BEGIN SOLUTION\n    return 2 * x\n    ### END SOLUTION"
ASK = "rng = draw('lab-05/twice')\nfound = [asked(twice, x) for x in (1, rng.randint(2, 9))]"
CHECK = "for one in found:\n    assert one % 2 == 0, 'it is even'\n    print(one)"


def rules(ask=ASK, weigh=CHECK, rubric=("1 point: it is even",), role="ask"):
    """The rules that a lab of one question breaks."""
    asking = v4.new_code_cell(ask, id="ask", metadata={"workbook": {"role": role}})
    checking = check("check", weigh)
    checking.metadata["workbook"]["rubric"] = list(rubric)
    return [rule for _, rule, _ in broken(v4.new_notebook(cells=[answer("twice", TWICE), asking, checking]))]


def test_a_question_that_is_asked_and_weighed_keeps_them_all():
    assert rules() == []


@pytest.mark.parametrize(
    ("changed", "rule"),
    [
        ({"role": "given"}, "role"),
        ({"role": ""}, "asks"),
        ({"ask": ASK.replace("draw", "random.Random")}, "asks"),
        ({"ask": f"{ASK}\nassert found, 'nothing'"}, "ask-asserts"),
        ({"ask": f"{ASK}\nright = reference(len, 'ab')"}, "ask-refers"),
        ({"ask": f"{ASK}\nmore = twice(3)"}, "ask-through"),
        ({"weigh": f"{CHECK}\nprint(twice(2))"}, "check-apart"),
        ({"weigh": f"{CHECK}\nprint(asked(len, 'ab'))"}, "check-apart"),
        ({"rubric": ("1 point: it is even", "1 point: it is twice as much")}, "check-part"),
        ({"rubric": ()}, "check-part"),
    ],
)
def test_each_rule_is_broken_by(changed, rule):
    assert rule in rules(**changed)


@pytest.mark.parametrize("role", ["apparatus", "reference", "demonstration"])
def test_a_cell_of_a_role_says_so_where_learners_read_it(role):
    cells = [v4.new_code_cell(source, metadata={"workbook": {"role": role}}) for source in (f"# {role}: it", "x = 1")]
    assert [rule for _, rule, _ in broken(v4.new_notebook(cells=cells))] == ["role-said"]


@pytest.mark.parametrize("driven", ["def run(x):\n    return twice(x)\n", "run = lambda x: twice(x)\n"])
def test_a_function_of_the_asking_cell_may_call_the_answer(driven):
    assert rules(ask=driven + ASK.replace("asked(twice", "asked(run")) == []
