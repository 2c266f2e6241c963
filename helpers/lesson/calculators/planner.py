"""The planner's calculator: what a training run costs, how long it takes, and what more money would buy.

The line is the frontier: for each number of cards the best plan, less those that another beats in both. The full dot is
the cheapest plan that is done in time; it moves with the deadline, the price and the tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from ...catalog.errors import WorkbookError
from ...catalog.prices import Price
from ...catalog.prices import price as listed_price
from ...memory.breakdown import format_bytes
from ...memory.plan import Cards, TrainGoal, TrainPlan, cheapest_within, frontier
from ...memory.plan.report import dollars, duration, interval
from ...questions.parameter import Parameter
from ...questions.parameters import GPU, MODEL
from ...questions.planned import PLANNED_RUN
from ...questions.question import Question
from ..drawing.marks import FAINT, LINES
from ..drawing.pareto import Measure, ParetoPoint, bargain
from ..drawing.pictures import Card
from .answers import CalculatorAnswer, row
from .calculator import Calculator

MODELS = ("llama-3.1-8b", "qwen3-32b", "mixtral-8x7b", "llama-3.1-70b", "llama-3.1-405b", "deepseek-v3")
GPUS = ("a100-80gb", "h100-80gb", "h200-141gb", "b200-180gb")
CARDS = (8, 16, 64, 256, 1024)
BILLIONS = (1, 10, 100, 1000, 2000, 15_000)
DAYS = (1, 3, 7, 14, 30, 60, 90, 180, 365)
LISTED = "listed"
PRICES = (LISTED, "1.00", "2.00", "3.00", "4.00", "6.00", "8.00")
DAY = 86400
MOST_NAMED = 6  # dots with their cards beside them


@dataclass(frozen=True)
class PlannerAnswer(CalculatorAnswer):
    """Plans from the cheapest to the fastest; `plan` is the one for the deadline, or the fastest where all are late."""

    goal: TrainGoal
    had: Cards
    plans: tuple[TrainPlan, ...]
    deadline_s: float

    @property
    def in_time(self) -> bool:
        return cheapest_within(self.plans, self.deadline_s) is not None

    @property
    def plan(self) -> TrainPlan:
        return cheapest_within(self.plans, self.deadline_s) or self.plans[-1]

    @property
    def title(self) -> str:
        plan = self.plan
        what = f"{dollars(_cost(plan))}, {duration(_seconds(plan))} on {plan.ranks:,} x {plan.cards.device.name}"
        return f"{self.goal.model.name}: {what}" + ("" if self.in_time else ", too late")

    @property
    def question(self) -> Question:
        return PLAN_TRAIN

    @property
    def asked(self) -> dict[str, Any]:
        name = self.had.device.name
        return {
            "model": self.goal.model,
            "tokens": self.goal.tokens,
            "cards": f"{name}={self.had.count}",
            "price": f"{name}={self.had.per_hour:g}",
            "deadline": f"{round(self.deadline_s / DAY)}d",
            "optimizers": self.goal.optimizers,
        }

    def lines(self) -> Iterator[str]:
        plan, goal = self.plan, self.goal
        batch = plan.layout.sequences * goal.sequence
        yield row("divided as", str(plan.layout.ranks), str(plan.layout))
        yield row("steps", f"{plan.steps:,}", f"{goal.tokens:,} tokens / {batch:,} of a batch")
        yield row("a step", duration(plan.step.total.middle), f"{interval(plan.step.total)}: {plan.step.limit} first")
        yield row("in all", duration(_seconds(plan)), f"{plan.steps:,} steps, {interval(plan.hours.times(3600))}")
        hours = f"{plan.hours.middle:,.1f} h x {plan.ranks:,} cards x ${self.had.per_hour:,.2f}"
        yield row("cost", dollars(_cost(plan)), hours)
        room = format_bytes(plan.cards.room_of(plan.layout.ranks).for_tensors_bytes)
        yield row("a rank", format_bytes(plan.need.total), f"of {room}, at its fullest ({plan.need.moment})")

    def sentences(self) -> Iterator[str]:
        plan, at = self.plan, self.plans.index(self.plan)
        if not self.in_time:
            yield (
                f"No plan on up to {self.had.count:,} cards is done in {duration(self.deadline_s)}; "
                f"this is the fastest, {duration(_seconds(plan))}."
            )
        elif at:
            cheaper = self.plans[at - 1]
            yield (
                f"With {cheaper.ranks:,} cards it would cost {dollars(_cost(cheaper))} and take "
                f"{duration(_seconds(cheaper))}, which is too late."
            )
        else:
            yield "It is the cheapest of all plans, and in time."
        if at + 1 < len(self.plans):
            faster = self.plans[at + 1]
            more = _cost(faster) / _cost(plan) - 1
            yield f"{more:.0%} more money takes {faster.ranks:,} cards and {duration(_seconds(faster))}."
        yield "Times are rooflines with assumed efficiencies, and no measurements."

    @property
    def cards(self) -> tuple[Card, ...]:
        chosen, named = self.plan, self._named()
        points = [
            ParetoPoint(
                f"{plan.ranks:,} cards" if plan in named else "",
                _cost(plan),
                _seconds(plan) / DAY,
                LINES[1] if plan is chosen else FAINT,
                plan is chosen,
                plan is chosen,
                f"{plan.ranks:,} cards, {plan.layout}: {dollars(_cost(plan))}, {duration(_seconds(plan))}",
            )
            for plan in self.plans
        ]
        curve = [(_cost(plan), _seconds(plan) / DAY) for plan in self.plans]
        x, y = Measure("cost (log scale)", dollars, log=True), Measure("days (log scale)", "{:g}".format, log=True)
        limit = (self.deadline_s / DAY, f"the deadline, {duration(self.deadline_s)}")
        return (bargain(self.title, points, x, y, curve, steps=True, limit=limit),)

    def _named(self) -> list[TrainPlan]:
        """The chosen plan, both ends, and some between."""
        every = max(1, -(-len(self.plans) // MOST_NAMED))
        return [*self.plans[::every], self.plans[-1], self.plan]

    @property
    def figures(self) -> dict[str, Any]:
        plan = self.plan
        return {
            "cards": plan.ranks,
            "dollars": _cost(plan),
            "seconds": _seconds(plan),
            "in_time": self.in_time,
            "peak_bytes": plan.need.total,
            "frontier": [[one.ranks, _cost(one), _seconds(one)] for one in self.plans],
        }


def planner_answer(
    model: str,
    gpu: str = "h100-80gb",
    cards: int = 256,
    billions: int = 1000,
    days: int = 90,
    price: str | float = LISTED,
) -> PlannerAnswer:
    """Train `model` on so many billions of tokens within `days`, on up to `cards` of one type. Raises WorkbookError.

    `price` is in dollars for an hour of a card. The first answer for a model and its cards takes a second or two.
    """
    had = Cards(gpu, cards, hourly_price(gpu, price))
    goal = TrainGoal(model, tokens=billions * 10**9, deadline_s=days * DAY, optimizers=("adamw-fused",))
    return PlannerAnswer(goal, had, frontier(goal, had), days * DAY)


def planner(**start: object) -> Calculator:
    """The live calculator. `start` moves its controls: `planner(model="mixtral-8x7b", cards=64, days=30)`."""
    return Calculator(PLAN_TRAIN, start)


def hourly_price(gpu: str, price: str | float) -> float:
    """Dollars: the catalogue's where `price` is LISTED, else `price` itself. Raises WorkbookError."""
    if price == LISTED:
        known = listed_price(gpu)
        if known is None:
            raise WorkbookError(f"no price of {gpu} is known", "dollars for an hour of a card", "choose a price")
        return known.per_hour
    try:
        return Price(float(price), "your own", "today").per_hour
    except ValueError:
        raise WorkbookError(f"a price of {price!r}", "dollars for an hour of a card", "as in 2.50") from None


def _cost(plan: TrainPlan) -> float:
    return plan.card_hours.middle * (plan.cards.per_hour or 1.0)


def _seconds(plan: TrainPlan) -> float:
    return plan.hours.middle * 3600


PRICED = Parameter("price").with_control("$ a card-hour", PRICES, LISTED)
PLAN_TRAIN = Question(
    "train",
    "train every weight on so many tokens",
    planner_answer,
    PLANNED_RUN,
    family=("plan",),
    title="The planner",
    asks="Which cards and which split train this model at the least cost?",
    invites="Shorten the deadline until the plan changes. What does a faster run cost?",
    controls=("model", "gpu", "cards", "billions", "days", "price"),
    front=("model", "gpu", "cards", "billions", "days"),
    shown=(
        replace(MODEL, steps=MODELS, start="llama-3.1-70b"),
        replace(GPU, steps=GPUS, start="h100-80gb"),
        Parameter("cards").with_control("cards at most", CARDS, 256),
        Parameter("billions").with_control("tokens, 10⁹", BILLIONS, 1000),
        Parameter("days").with_control("days at most", DAYS, 90),
        PRICED,
    ),
)
