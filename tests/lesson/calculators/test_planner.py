"""The planner's calculator: the plan of the command, a frontier without beaten plans, and an answer where none is."""

import itertools

import pytest

from helpers.catalog.errors import WorkbookError
from helpers.lesson.calculators import planner, planner_answer
from helpers.memory.plan import Cards, TrainGoal, plan_training

ANSWER = planner_answer("llama-3.1-8b", cards=64, billions=100, days=30)


def test_the_plan_is_the_first_of_the_command():
    goal = TrainGoal("llama-3.1-8b", tokens=10**11, deadline_s=30 * 86400, optimizers=("adamw-fused",))
    first = plan_training(goal, [Cards("h100-80gb", 64)]).plans[0]
    assert ANSWER.plan.cost.middle == pytest.approx(first.cost.middle, rel=0.01)
    assert ANSWER.plan.hours.middle * 3600 <= goal.deadline_s
    assert f"--tokens {10**11} --cards h100-80gb=64 --price h100-80gb=3.99 --deadline 30d" in ANSWER.command


def test_whatever_is_dearer_takes_less_time():
    plans = planner_answer("llama-3.1-70b").plans
    assert len(plans) > 2
    for before, after in itertools.pairwise(plans):
        assert before.cost.middle < after.cost.middle
        assert before.hours.middle > after.hours.middle


def test_the_point_moves_with_the_deadline_and_is_the_cheapest_in_time():
    slow = planner_answer("llama-3.1-70b", days=365)
    assert len(slow.plans) > 2
    assert slow.plan is slow.plans[0]
    days = int(slow.plan.hours.middle / 24)  # a day too short for the cheapest
    quick = planner_answer("llama-3.1-70b", days=days)
    at = quick.plans.index(quick.plan)
    assert at > 0
    assert all(plan.hours.middle > days * 24 for plan in quick.plans[:at])
    assert "which is too late" in quick.sentence


def test_a_deadline_that_nothing_meets_gets_the_fastest_and_says_so():
    late = planner_answer("llama-3.1-70b", cards=64, billions=15_000, days=1)
    assert (late.in_time, late.plan) == (False, late.plans[-1])
    assert late.title.endswith(", too late")
    assert "is done in 24 h" in late.sentence


def test_money_scales_with_the_price_and_time_with_the_tokens():
    dear = planner_answer("llama-3.1-8b", cards=64, billions=100, days=30, price="7.98")
    assert dear.figures["dollars"] == pytest.approx(2 * ANSWER.figures["dollars"])
    long = planner_answer("llama-3.1-8b", cards=64, billions=1000, days=365)
    assert long.plans[0].hours.middle == pytest.approx(10 * ANSWER.plans[0].hours.middle, rel=1e-3)


def test_where_nothing_fits_the_least_that_would_do_is_told():
    with pytest.raises(WorkbookError, match="the least that would do") as refused:
        planner_answer("llama-3.1-405b", cards=8)
    words = refused.value.do.split()
    assert words[0] == "take"
    enough = planner_answer("llama-3.1-405b", cards=int(words[1].replace(",", "")))
    assert enough.plans


@pytest.mark.parametrize("bad", [{"price": "cheap"}, {"price": -1}, {"cards": 0}, {"billions": 0}, {"gpu": "h1000"}])
def test_nonsense_is_refused(bad):
    with pytest.raises(WorkbookError):
        planner_answer(**{"model": "llama-3.1-8b", **bad})


def test_the_live_calculator_stands_on_the_same_answer():
    live = planner(model="llama-3.1-8b", cards=64, billions=100, days=30)
    assert str(live.answer()) == str(ANSWER)
