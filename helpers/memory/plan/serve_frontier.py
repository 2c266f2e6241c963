"""What more money buys a service: of all replicas that hold the users, those that no other beats in cost and latency.

    found = serve_frontier(ServeGoal("llama-3.1-70b", users=200), Cards("h100", 16))
    for plan in found.plans: print(plan.ranks, plan.between_tokens.middle)
    found.cheapest_within(0.05)                         # the first plan of plan_serving with this limit

The limit on the time between tokens does not move the frontier, and a replica's bytes depend neither on the price nor
on the number of users: what was computed for a model on its cards is remembered.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from ...catalog.errors import WorkbookError
from ...catalog.pareto import unbeaten
from .goal import ServeGoal
from .machine import Cards
from .seconds import Efficiency, Seconds
from .serve_search import PIPELINE, TENSOR, ServePlan, plan_of, replicas
from .serving import Replica


@dataclass(frozen=True)
class ReplicaChoice:
    """`number` replicas that hold the goal's users, with the seconds between tokens; a plan without its bytes."""

    replica: Replica
    number: int
    between_tokens: Seconds

    @property
    def ranks(self) -> int:
        return self.number * self.replica.layout.ranks

    @property
    def order(self) -> tuple[int, int, float, str]:
        """As `plan_serving` sorts plans on cards of one type."""
        layout = self.replica.layout
        return self.ranks, len(layout.compromises), self.between_tokens.middle, repr(layout)


@dataclass(frozen=True)
class ServeFrontier:
    """`plans` from the cheapest to the quickest, and every choice that they were taken from."""

    goal: ServeGoal
    cards: Cards
    plans: tuple[ServePlan, ...]
    choices: tuple[ReplicaChoice, ...]

    def cheapest_within(self, latency_s: float) -> ServePlan | None:
        """What `plan_serving` lists first: the fewest cards, then the fewest compromises, then the quickest; None where
        all are slower. With fewer compromises it may be slower than the frontier's plan on as many cards."""
        in_time = [one for one in self.choices if one.between_tokens.middle <= latency_s]
        return _plan(self.goal, self.cards, min(in_time, key=lambda one: one.order)) if in_time else None


def serve_frontier(goal: ServeGoal, cards: Cards, rates: Efficiency | None = None) -> ServeFrontier:
    """The goal's limits on time are not asked for. WorkbookError where nothing holds the users, with what would do."""
    at_leisure = replace(goal, latency_s=None, ttft_s=None)
    found = _searched(at_leisure, cards.with_price(1.0), rates or Efficiency())
    if not found.plans:
        least = _least_cards(at_leisure, cards.with_price(1.0), rates or Efficiency())
        what = f"no plan for {goal.users:,} users of {goal.model.name} on up to {cards.count:,} x {cards.device.title}"
        do = f"take {least:,} cards, the least that would do" if least else "take larger cards, or fewer bits"
        raise WorkbookError(what, "cards that hold its weights and the users' KV caches", do)
    return replace(found, cards=cards, plans=tuple(replace(plan, cards=cards) for plan in found.plans))


@lru_cache(maxsize=64)
def _searched(goal: ServeGoal, cards: Cards, rates: Efficiency) -> ServeFrontier:
    """On cards that cost one dollar an hour; without plans where nothing holds the users."""
    known = _replicas(replace(goal, users=1), cards, rates)
    choices = tuple(one for replica in known for one in _choices(replica, goal.users, cards.count))
    in_order = sorted(choices, key=lambda one: one.order)  # of two that cost the same the first of these is kept
    best = unbeaten(in_order, lambda one: (one.ranks, one.between_tokens.middle))
    return ServeFrontier(goal, cards, tuple(_plan(goal, cards, one) for one in best), choices)


@lru_cache(maxsize=64)
def _least_cards(goal: ServeGoal, cards: Cards, rates: Efficiency) -> int:
    """Of this type; 0 where not even the largest replica that is tried holds one user."""
    known = _replicas(replace(goal, users=1), cards.with_count(max(TENSOR) * max(PIPELINE)), rates)
    return min((-(-goal.users // one.most_users) * one.layout.ranks for one in known if one.most_users), default=0)


@lru_cache(maxsize=64)
def _replicas(goal: ServeGoal, cards: Cards, rates: Efficiency) -> tuple[Replica, ...]:
    """For anybody's number of users and limits on time."""
    return tuple(replicas(goal, cards, rates))


def _choices(replica: Replica, users: int, cards: int) -> Iterator[ReplicaChoice]:
    """Each number of replicas that holds the users and leaves none of them without work."""
    if not replica.most_users:
        return
    fewest, most = -(-users // replica.most_users), min(cards // replica.layout.ranks, users)
    for number in range(fewest, most + 1):
        yield ReplicaChoice(replica, number, replica.between_tokens(-(-users // number)))


def _plan(goal: ServeGoal, cards: Cards, choice: ReplicaChoice) -> ServePlan:
    return replace(plan_of(goal, choice.replica, choice.number), cards=cards)
