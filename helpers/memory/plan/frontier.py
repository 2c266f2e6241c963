"""What more money buys: for each number of cards the best plan, and of these the ones that no other beats.

    for plan in frontier(TrainGoal("llama-3.1-70b", tokens=10**12), Cards("h100", 256)): print(plan.ranks, plan.hours)

Nothing here depends on the price or on the number of tokens but by a factor, and the search is remembered: a second
question about the same model on the same cards costs a millisecond.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from ...catalog.errors import WorkbookError
from ...catalog.pareto import unbeaten
from .goal import TrainGoal
from .machine import Cards
from .minimum import least_for_training
from .search import TrainPlan, plan_training, require_plannable, timed, tried
from .seconds import Efficiency
from .training import Job


def frontier(goal: TrainGoal, cards: Cards, rates: Efficiency | None = None) -> tuple[TrainPlan, ...]:
    """Plans from the cheapest to the fastest; whatever comes later is dearer and takes less time. The goal's deadline
    is not asked for. WorkbookError where nothing on these cards works, with the least that would do."""
    once = replace(goal, tokens=goal.sequences * goal.sequence, deadline_s=None)
    found, least = _searched(once, cards.with_price(1.0), rates or Efficiency())
    if not found:
        what = f"no plan for {goal.model.name} on up to {cards.count:,} x {cards.device.title}"
        raise WorkbookError(what, "cards that hold its weights, gradients and states", least)
    return tuple(replace(plan, cards=cards, steps=_steps(goal, plan)) for plan in found)


def cheapest_within(plans: Sequence[TrainPlan], deadline_s: float) -> TrainPlan | None:
    """The first of a frontier's plans that is done in time; None where the fastest is late."""
    return next((plan for plan in plans if plan.hours.middle * 3600 <= deadline_s), None)


def _steps(goal: TrainGoal, plan: TrainPlan) -> int:
    return -(-goal.tokens // (plan.layout.sequences * goal.sequence))


@lru_cache(maxsize=64)
def _searched(goal: TrainGoal, cards: Cards, rates: Efficiency) -> tuple[tuple[TrainPlan, ...], str]:
    """A step's worth of tokens on cards that cost one dollar an hour; and what would do, where nothing does."""
    require_plannable(goal)
    job = Job(goal.model, goal.sequence)
    best: dict[int, TrainPlan] = {}
    for one in sorted(timed(goal, [cards], job, rates), key=lambda one: one.order):
        if one.layout.ranks in best or one.layout.compromises:
            continue
        found = tried(goal, job, one)
        if isinstance(found, TrainPlan):
            best[one.layout.ranks] = found
    if not best:
        offers = least_for_training(plan_training(goal, [cards], rates))
        return (), f"take {offers[0].words}, the least that would do" if offers else "take many more cards, or larger"
    return tuple(unbeaten(best.values(), lambda plan: (plan.card_hours.middle, plan.hours.middle))), ""
