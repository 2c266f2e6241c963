"""The planner's calculator for a service: what its users cost an hour, and what fewer milliseconds a token would cost.

The line is the frontier: for each number of cards the quickest way to divide them, less those that another beats in
both. The full dot is the cheapest plan within the limit, the one that `workbook plan serve` lists first. It lies above
the line where more bits are as cheap and quick enough.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ...catalog.errors import require_name
from ...memory.breakdown import format_bytes
from ...memory.plan import Cards, Seconds, ServeGoal
from ...memory.plan.goal import SERVED_KV, SERVED_WEIGHTS
from ...memory.plan.report import dollars, duration
from ...memory.plan.serve_frontier import ServeFrontier, serve_frontier
from ...memory.plan.serve_search import ServePlan
from ...questions.parameter import Parameter
from ...questions.parameters import GPU, MODEL
from ...questions.planned import PLANNED_SERVICE
from ...questions.question import Question
from ..drawing.marks import FAINT, LINES
from ..drawing.pareto import Measure, ParetoPoint, bargain
from ..drawing.pictures import Card
from .answers import CalculatorAnswer, row
from .calculator import Calculator
from .planner import LISTED, MODELS, MOST_NAMED, PRICED, hourly_price

GPUS = ("l40s-48gb", "a100-80gb", "h100-80gb", "h200-141gb", "b200-180gb")
CARDS = (1, 2, 4, 8, 16, 32, 64)
USERS = (1, 10, 50, 100, 200, 500, 1000)
CONTEXTS = (2048, 4096, 8192, 16384, 32768, 65536, 131072)
LATENCIES = (10, 15, 20, 30, 40, 50, 75, 100, 200, 500)
FORMATS = {  # weights and KV caches that may be used
    "16 bits": (("bf16",), ("bf16",)),
    "8 bits too": (SERVED_WEIGHTS[:2], SERVED_KV),
    "4 bits too": (SERVED_WEIGHTS, SERVED_KV),
}


@dataclass(frozen=True)
class ServicePlannerAnswer(CalculatorAnswer):
    """`plan` is the cheapest within the limit, or the quickest where all are slower."""

    goal: ServeGoal
    had: Cards
    found: ServeFrontier
    limit_ms: int

    @cached_property
    def _cheapest(self) -> ServePlan | None:
        return self.found.cheapest_within(self.limit_ms / 1000)

    @property
    def in_time(self) -> bool:
        return self._cheapest is not None

    @property
    def plan(self) -> ServePlan:
        return self._cheapest or self.found.plans[-1]

    @property
    def title(self) -> str:
        plan = self.plan
        what = f"{dollars(_cost(plan))} an hour, {duration(_seconds(plan))} a token on {_cards(plan)}"
        return f"{self.goal.model.name}: {what}" + ("" if self.in_time else ", too slow")

    @property
    def question(self) -> Question:
        return PLAN_SERVE

    @property
    def asked(self) -> dict[str, Any]:
        name = self.had.device.name
        return {
            "model": self.goal.model,
            "users": self.goal.users,
            "context": self.goal.context,
            "latency": f"{self.limit_ms}ms",
            "cards": f"{name}={self.had.count}",
            "price": f"{name}={self.had.per_hour:g}",
            "weights": self.goal.weights,
            "kv": self.goal.kv,
        }

    def lines(self) -> Iterator[str]:
        plan, layout = self.plan, self.plan.layout
        yield row("a replica", str(layout), f"weights in {layout.weights}, KV cache in {layout.kv}")
        yield row("replicas", f"{plan.replicas:,}", f"{plan.users:,} users each, of {plan.most_users:,} that fit")
        room = format_bytes(plan.cards.room_of(plan.layout.ranks).for_tensors_bytes)
        yield row("a rank", format_bytes(plan.parts.total), f"of {room}, with all contexts full")
        yield row("first token", duration(plan.first_token.middle), f"{_spread(plan.first_token)}, if nobody waits")
        yield row("a token", duration(_seconds(plan)), f"{_spread(plan.between_tokens)}, beside others' prompts")
        yield row("an hour", dollars(_cost(plan)), f"{plan.ranks:,} cards x ${self.had.per_hour:,.2f}")
        a_million = dollars(_cost(plan) / (3600 * plan.tokens_per_s) * 1e6)
        yield row("a million", a_million, f"generated tokens, at {plan.tokens_per_s:,.0f} a second under full load")

    def sentences(self) -> Iterator[str]:
        plan, limit = self.plan, duration(self.limit_ms / 1000)
        if not self.in_time:
            yield (
                f"No plan on up to {self.had.count:,} cards gives each user a token within {limit}; this is the "
                f"quickest, {1000 * _seconds(plan):.1f} ms."
            )
        else:
            yield from self._cheaper(plan)
        yield from self._quicker(plan)
        if plan.layout.compromises:
            yield f"It gives up accuracy for bytes: {', '.join(plan.layout.compromises)}."
        yield "Times are rooflines with assumed efficiencies, and no measurements."

    def _cheaper(self, plan: ServePlan) -> Iterator[str]:
        """Why it is this one: what costs less, or that nothing does."""
        cheaper = [one for one in self.found.plans if one.ranks < plan.ranks]
        if cheaper:
            last = cheaper[-1]
            yield (
                f"On {_cards(last)} it would cost {dollars(_cost(last))} an hour, and a token would take "
                f"{duration(_seconds(last))}, which is too long."
            )
        else:
            yield "No fewer cards hold these users, and it is quick enough."

    def _quicker(self, plan: ServePlan) -> Iterator[str]:
        """What fewer bits gain at the same price, and what more money does."""
        for one in self.found.plans:
            if one.ranks == plan.ranks and _seconds(one) < _seconds(plan):
                formats = f"weights in {one.layout.weights} and a KV cache in {one.layout.kv}"
                yield f"At the same price {formats} take {duration(_seconds(one))}."
            if one.ranks > plan.ranks:
                more = _cost(one) / _cost(plan) - 1
                yield f"{more:.0%} more money takes {one.ranks:,} cards and {duration(_seconds(one))}."
                return

    @property
    def cards(self) -> tuple[Card, ...]:
        plans, chosen = self.found.plans, self.plan
        every = max(1, -(-len(plans) // MOST_NAMED))
        named = [*plans[::every], plans[-1], chosen]
        points = [
            ParetoPoint(
                f"{plan.ranks:,} {'card' if plan.ranks == 1 else 'cards'}" if plan in named else "",
                _cost(plan),
                1000 * _seconds(plan),
                LINES[1] if plan == chosen else FAINT,
                plan == chosen,
                plan == chosen,
                f"{plan.ranks:,} cards, {plan.replicas} of {plan.layout}, {plan.layout.weights}: "
                f"{dollars(_cost(plan))} an hour, {duration(_seconds(plan))}",
            )
            for plan in (plans if chosen in plans else (*plans, chosen))
        ]
        curve = [(_cost(plan), 1000 * _seconds(plan)) for plan in plans]
        x = Measure("cost an hour (log scale)", dollars, log=True)
        y = Measure("ms between tokens (log scale)", "{:g}".format, log=True)
        limit = (float(self.limit_ms), f"the limit, {self.limit_ms} ms")
        return (bargain(self.title, points, x, y, curve, steps=True, limit=limit),)

    @property
    def figures(self) -> dict[str, Any]:
        plan = self.plan
        return {
            "cards": plan.ranks,
            "dollars_per_hour": _cost(plan),
            "next_token_s": _seconds(plan),
            "first_token_s": plan.first_token.middle,
            "in_time": self.in_time,
            "rank_bytes": plan.parts.total,
            "frontier": [[one.ranks, _cost(one), _seconds(one)] for one in self.found.plans],
        }


def service_planner_answer(
    model: str,
    gpu: str = "h100-80gb",
    cards: int = 16,
    users: int = 200,
    context: int = 8192,
    latency: int = 50,
    formats: str = "4 bits too",
    price: str | float = LISTED,
) -> ServicePlannerAnswer:
    """Serve `model` to `users` at once, `latency` ms a token at most, on up to `cards` of one type.

    Three quarters of a context are the prompt. `price` is in dollars for an hour of a card. The first answer for a
    model, its cards, context and formats takes about half a second. Raises WorkbookError.
    """
    weights, kv = FORMATS[require_name("choice of formats", formats, FORMATS)]
    goal = ServeGoal(model, users=users, context=context, latency_s=latency / 1000, weights=weights, kv=kv)
    had = Cards(gpu, cards, hourly_price(gpu, price))
    return ServicePlannerAnswer(goal, had, serve_frontier(goal, had), latency)


def service_planner(**start: object) -> Calculator:
    """The live calculator. `start` moves its controls: `service_planner(model="llama-3.1-8b", users=500, cards=8)`."""
    return Calculator(PLAN_SERVE, start)


def _cost(plan: ServePlan) -> float:
    return plan.per_hour or float(plan.ranks)


def _seconds(plan: ServePlan) -> float:
    return plan.between_tokens.middle


def _spread(time: Seconds) -> str:
    return f"{duration(time.low)} to {duration(time.high)}"


def _cards(plan: ServePlan) -> str:
    return f"{plan.ranks:,} x {plan.cards.device.name}"


PLAN_SERVE = Question(
    "serve",
    "serve so many users, each with so many tokens",
    service_planner_answer,
    PLANNED_SERVICE,
    family=("plan",),
    title="The planner of a service",
    asks="Which cards serve these users within so many ms a token?",
    invites="Tighten the milliseconds until the plan changes. What does a quicker answer cost?",
    controls=("model", "gpu", "cards", "users", "context", "latency", "formats", "price"),
    front=("model", "gpu", "cards", "users", "latency"),
    shown=(
        replace(MODEL, steps=MODELS, start="llama-3.1-70b"),
        replace(GPU, steps=GPUS, start="h100-80gb"),
        Parameter("cards").with_control("cards at most", CARDS, 16),
        Parameter("users").with_control("users at once", USERS, 200),
        Parameter("context").with_control("context, tokens", CONTEXTS, 8192),
        Parameter("latency").with_control("ms a token", LATENCIES, 50),
        Parameter("formats").with_control("formats", tuple(FORMATS), "4 bits too"),
        PRICED,
    ),
)
