"""A service's frontier: no plan on it is beaten, and for each limit the cheapest is the first of the search."""

import pytest

from helpers.catalog.errors import WorkbookError
from helpers.memory.plan import Cards, ServeGoal, plan_serving
from helpers.memory.plan.serve_frontier import serve_frontier

GOALS = {
    "many users": ServeGoal("llama-3.1-8b", users=500),
    "one user": ServeGoal("llama-3.1-8b"),
    "an expert model": ServeGoal("mixtral-8x7b", users=64, weights=("bf16", "fp8-e4m3")),
}
CARDS = Cards("h100", 16, 2.0)


@pytest.mark.parametrize("goal", GOALS.values(), ids=GOALS)
@pytest.mark.parametrize("latency_s", [0.005, 0.02, 0.05, 0.2])
def test_the_cheapest_within_a_limit_is_the_first_plan_of_the_search(goal, latency_s):
    limited = ServeGoal(goal.model, goal.users, goal.context, latency_s=latency_s, weights=goal.weights)
    plans = plan_serving(limited, [CARDS]).plans
    found = serve_frontier(goal, CARDS).cheapest_within(latency_s)
    assert found == (plans[0] if plans else None)


@pytest.mark.parametrize("goal", GOALS.values(), ids=GOALS)
def test_no_choice_beats_a_plan_of_the_frontier(goal):
    found = serve_frontier(goal, CARDS)
    assert found.choices
    for plan in found.plans:
        as_cheap = [one.between_tokens.middle for one in found.choices if one.ranks <= plan.ranks]
        assert min(as_cheap) == plan.between_tokens.middle
        assert plan.cards == CARDS
        assert plan.parts.total <= CARDS.room.for_tensors_bytes


def test_the_limit_on_time_does_not_move_the_frontier():
    limited = ServeGoal("llama-3.1-8b", users=500, latency_s=0.02)
    assert serve_frontier(limited, CARDS).plans == serve_frontier(GOALS["many users"], CARDS).plans


def test_what_is_larger_than_every_replica_is_refused_with_other_advice():
    with pytest.raises(WorkbookError, match="larger cards, or fewer bits"):
        serve_frontier(ServeGoal("llama-3.1-405b", context=2**20, weights=("bf16",), kv=("bf16",)), Cards("l4", 8))
