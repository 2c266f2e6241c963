"""The search for a training plan: enumerate, price by arithmetic, and ask for bytes from the cheapest on.

    found = plan_training(TrainGoal("llama-3-70b", tokens=10**12), [Cards("h100", 1024)])
    found.plans[0], found.cheaper                      # the cheapest that works, and what was cheaper and failed

Seconds cost microseconds to compute and bytes a millisecond, so every layout is timed, the list is sorted by cost, and
bytes are counted in that order until enough plans are found. What came before the first plan and failed is the answer
to "why not cheaper". The same input gives the same answer: nothing is drawn, and ties are broken by the layout's text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import log

from ...catalog.train_setup import TrainSetup
from ..breakdown import TextEnum
from ..step.refusals import require_closed_form
from .goal import TrainGoal
from .layouts import training_layouts
from .machine import Cards, require_comparable
from .seconds import Efficiency, Seconds
from .step import StepSeconds, step_time
from .training import Job, Layout, Need, attention_of

MOST_PLANS = 10
WORTH_A_COMPROMISE = 0.95  # what gives something up is listed where it costs less than this share of the best without


class LayoutRefusal(TextEnum):
    """Why a layout is no plan."""

    BYTES = "bytes"
    DEADLINE = "deadline"


@dataclass(frozen=True)
class TrainPlan:
    """One feasible way, whole: on which cards, how, the bytes of the fullest rank, seconds, and what it costs."""

    cards: Cards
    layout: Layout
    need: Need
    step: StepSeconds
    steps: int

    @property
    def ranks(self) -> int:
        return self.layout.ranks

    @property
    def hours(self) -> Seconds:
        return self.step.total.times(self.steps / 3600)

    @property
    def card_hours(self) -> Seconds:
        return self.hours.times(self.layout.ranks)

    @property
    def cost(self) -> Seconds | None:
        """US dollars, as an interval; None without a price."""
        return None if self.cards.per_hour is None else self.card_hours.times(self.cards.per_hour)

    @property
    def spare_bytes(self) -> int:
        """What is left of the card beside the reserve."""
        return self.cards.room_of(self.layout.ranks).for_tensors_bytes - self.need.total


@dataclass(frozen=True)
class Failure:
    """A layout that is no plan; `need` is None where what is always held (`held_bytes`) is too much already."""

    cards: Cards
    layout: Layout
    step: StepSeconds
    hours: Seconds
    reason: LayoutRefusal
    held_bytes: int
    need: Need | None = None

    @property
    def need_bytes(self) -> int:
        return self.need.total if self.need else self.held_bytes

    @property
    def price(self) -> float:
        """What the search sorts by: dollars, or card hours where no price is known."""
        return self.hours.middle * self.layout.ranks * (self.cards.per_hour or 1.0)


@dataclass(frozen=True)
class TrainAnswer:
    """`plans`, cheapest first; `failures` in the order they were tried; how many layouts were looked at."""

    goal: TrainGoal
    fleet: tuple[Cards, ...]
    rates: Efficiency
    plans: tuple[TrainPlan, ...]
    failures: tuple[Failure, ...]
    considered: int

    @property
    def next_cheaper(self) -> Failure | None:
        """The dearest of what was cheaper than the first plan and failed."""
        if not self.plans:
            return None
        first = self.plans[0]
        limit = first.card_hours.middle * (first.cards.per_hour or 1.0)
        cheaper = [one for one in self.failures if one.price <= limit]
        return max(cheaper, key=lambda one: one.price, default=None)


@dataclass(frozen=True)
class Timed:
    """A layout with its time, before anybody counted bytes."""

    cards: Cards
    layout: Layout
    step: StepSeconds
    steps: int

    @property
    def hours(self) -> Seconds:
        return self.step.total.times(self.steps / 3600)

    @property
    def price(self) -> float:
        return self.hours.middle * self.layout.ranks * (self.cards.per_hour or 1.0)

    @property
    def order(self) -> tuple[float, bool, float, str]:
        """By price; where prices agree to a percent, gradients added in FP32 come first, then the least at worst."""
        return (
            round(log(self.price), 2),
            self.layout.reduced != "fp32",
            self.step.total.high * self.steps * self.layout.ranks,
            repr(self.layout),
        )


def plan_training(goal: TrainGoal, fleet: Sequence[Cards], rates: Efficiency | None = None) -> TrainAnswer:
    """The feasible plans of `goal` on `fleet`, cheapest first, ten at most, one for each way to divide the model.

    WorkbookError for a model without a closed form, and for cards that cannot be compared. A goal that nothing on the
    fleet meets has an answer without plans; `least.least_that_would_do` says what would.
    """
    require_comparable(list(fleet))
    require_plannable(goal)
    rates = rates or Efficiency()
    job = Job(goal.model, goal.sequence)
    ways = sorted(timed(goal, fleet, job, rates), key=lambda one: one.order)
    plans, failures = _sifted(goal, job, ways)
    return TrainAnswer(goal, tuple(fleet), rates, tuple(plans), tuple(failures), len(ways))


def require_plannable(goal: TrainGoal) -> None:
    """Refuse a model whose step has no closed form."""
    require_closed_form(TrainSetup(goal.model, sequence=goal.sequence, attention=attention_of(goal.model)))


def timed(goal: TrainGoal, fleet: Iterable[Cards], job: Job, rates: Efficiency) -> Iterator[Timed]:
    """Every layout with its time."""
    for cards in fleet:
        for layout in training_layouts(goal, cards):
            steps = -(-goal.tokens // (layout.sequences * goal.sequence))
            yield Timed(cards, layout, step_time(job, layout, cards, rates), steps)


def _sifted(goal: TrainGoal, job: Job, ways: Sequence[Timed]) -> tuple[list[TrainPlan], list[Failure]]:
    """Bytes are counted from the cheapest on, until there are enough plans.

    The cheapest that gives nothing up is looked for first: what does give something up is listed where it costs less
    than `WORTH_A_COMPROMISE` of it.
    """
    whole = (one for one in ways if not one.layout.compromises)
    best = next((one for one in whole if isinstance(tried(goal, job, one), TrainPlan)), None)
    limit = best.price * WORTH_A_COMPROMISE if best else float("inf")
    plans: list[TrainPlan] = []
    failures: list[Failure] = []
    for one in ways:
        if len(plans) == MOST_PLANS:
            break
        if (one.layout.compromises and one.price > limit) or any(_same_way(plan, one) for plan in plans):
            continue
        found = tried(goal, job, one)
        if isinstance(found, TrainPlan):
            plans.append(found)
        else:
            failures.append(found)
    return plans, failures


def tried(goal: TrainGoal, job: Job, one: Timed) -> TrainPlan | Failure:
    """A layout with its bytes: a plan, or why it is none."""
    room = one.cards.room_of(one.layout.ranks).for_tensors_bytes
    held = job.held_bytes(one.layout)
    if goal.deadline_s is not None and one.hours.middle * 3600 > goal.deadline_s:
        return Failure(one.cards, one.layout, one.step, one.hours, LayoutRefusal.DEADLINE, held)
    if held > room:
        return Failure(one.cards, one.layout, one.step, one.hours, LayoutRefusal.BYTES, held)
    need = job.need(one.layout, one.cards.device)
    if need.total > room:
        return Failure(one.cards, one.layout, one.step, one.hours, LayoutRefusal.BYTES, held, need)
    return TrainPlan(one.cards, one.layout, need, one.step, one.steps)


def _same_way(plan: TrainPlan, one: Timed) -> bool:
    """Whether both are one row for a reader: the same engine and stage on as many of the same cards."""
    return plan.cards == one.cards and _way(plan.layout) == _way(one.layout)


def _way(layout: Layout) -> tuple:
    return layout.ranks, layout.engine, layout.expert, layout.zero, layout.offload, layout.compromises
