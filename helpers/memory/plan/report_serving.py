"""A serving answer as text: a table of plans, then the first one in full sentences, or the least that would do."""

from __future__ import annotations

from collections.abc import Iterator

from ...catalog.engines import engine
from ...catalog.serve_setup import ServeSetup
from .. import budget
from ..breakdown import Part, format_bytes
from ..serve.engines.weights import longest_context
from ..serve.weights import weight_bytes
from .engine_replica import replica_of
from .minimum import least_for_serving
from .report import dollars, duration, interval, offers_told, parts_told, table
from .serve_search import ServeAnswer, ServeFailure, ServePlan, ServeShortage

COLUMNS = ("", "cards", "a replica", "weights", "KV", "users each", "a rank", "first token", "next token", "an hour")


def serving_report(answer: ServeAnswer) -> str:
    lines = [_goal(answer), ""]
    if not answer.plans:
        return "\n".join([*lines, *_impossible(answer)])
    return "\n".join([*lines, *table(COLUMNS, map(_row, answer.plans)), "", *_story(answer)])


def _row(plan: ServePlan) -> tuple[str, ...]:
    hourly = "no price" if plan.per_hour is None else dollars(plan.per_hour)
    return (
        f"{plan.ranks:,} x {plan.cards.device.name}",
        f"{plan.replicas} of {plan.layout}",
        plan.layout.weights,
        plan.layout.kv,
        f"{plan.users:,} of {plan.most_users:,}",
        format_bytes(plan.parts.total),
        duration(plan.first_token.middle),
        duration(plan.between_tokens.middle),
        hourly,
    )


def _goal(answer: ServeAnswer) -> str:
    goal = answer.goal
    had = " or ".join(f"{cards.count:,} x {cards.device.title}" for cards in answer.fleet)
    limits = [f"{duration(goal.latency_s)} between tokens"] if goal.latency_s else []
    limits += [f"{duration(goal.ttft_s)} to the first token"] if goal.ttft_s else []
    within = f", within {' and '.join(limits)}" if limits else ""
    assumed = "" if goal.prompt else " (assumed; --prompt says another)"
    people = "1 user" if goal.users == 1 else f"{goal.users:,} users at once"
    most = longest_context(goal.model)
    beyond = f" It was made for {most:,} tokens: vLLM does not start with more." if most and goal.context > most else ""
    return (
        f"{goal.model.name} for {people}, each with {goal.context:,} tokens, {goal.prompt_tokens:,} of them in the "
        f"prompt{assumed}{within}, on up to {had}.{beyond}"
    )


def _story(answer: ServeAnswer) -> Iterator[str]:
    plan, _goal = answer.plans[0], answer.goal
    layout, cards = plan.layout, plan.cards
    replicas = "one replica" if plan.replicas == 1 else f"{plan.replicas} replicas"
    weights = ServeSetup(answer.goal.model, layout.served).weights_told
    yield (
        f"The cheapest plan takes {plan.ranks:,} x {cards.device.title} as {replicas} of {layout}, with weights "
        f"{weights} and the KV cache in {layout.kv}; each serves {plan.users:,} users at once."
    )
    yield f"A rank holds {format_bytes(plan.parts.total)}: {parts_told(plan.parts)}. {_left(answer, plan)}"
    yield (
        f"The first token comes after {interval(plan.first_token)} where nobody waits, the next ones every "
        f"{interval(plan.between_tokens)} while others' prompts are computed in between; all users together get "
        f"{plan.tokens_per_s:,.0f} tokens a second. These are rooflines with assumed efficiencies, and no measurements."
    )
    if plan.per_hour is not None:
        a_million = dollars(plan.per_hour / (3600 * plan.tokens_per_s) * 1e6)
        yield (
            f"At {cards.per_hour:,.2f} dollars a card and hour that is {dollars(plan.per_hour)} an hour, {a_million} "
            "for a million generated tokens under full load."
        )
    else:
        yield f"Nobody has said what an hour of the {cards.device.title} costs: pass --price {cards.device.name}=2.50."
    yield _limit(answer, plan)
    if layout.compromises:
        given_up = ", ".join(layout.compromises)
        yield f"What it gives up: {given_up}. Measure the answers' quality, or pass --weights bf16 --kv bf16."
    failed = answer.next_cheaper
    if failed is None:
        yield "Nothing cheaper was left to try."
    else:
        yield f"The next cheaper layout fails: {serve_failure_told(failed)}"


def _left(answer: ServeAnswer, plan: ServePlan) -> str:
    if answer.goal.engine:
        found = engine(answer.goal.engine)
        return (
            f"{found.name} takes {found.share:g} of the card at once, as its version {found.version} does by default."
        )
    room = plan.cards.room_of(plan.layout.ranks)
    return f"{format_bytes(plan.spare_bytes)} are to spare beside {room.kept_told} kept for {room.reserve.told}."


def _limit(answer: ServeAnswer, plan: ServePlan) -> str:
    """What breaks first as users come: memory, or the limits on time."""
    goal = answer.goal
    replica = replica_of(goal, plan.layout, plan.cards, answer.rates)
    if not goal.latency_s or replica.between_tokens(plan.most_users).middle <= goal.latency_s:
        full = f"{plan.most_users:,} users"
        return f"What breaks first: the KV cache of a replica is full with {full}; it has {plan.users:,}."
    spare, limit = goal.latency_s / plan.between_tokens.middle - 1, duration(goal.latency_s)
    return (
        f"What breaks first: time, for memory has room for {plan.most_users:,} users a replica. {spare:.0%} are left "
        f"to the limit of {limit}; at the interval's end a token takes {duration(plan.between_tokens.high)}."
    )


def serve_failure_told(failed: ServeFailure) -> str:
    """Which layout, and what it lacks."""
    layout = failed.layout
    needed, there = format_bytes(failed.needed), f"{format_bytes(failed.limit)} are there"
    name = f"{layout} of {failed.cards.device.name} with {layout.weights} weights and a {layout.kv} KV cache"
    match failed.shortage:
        case ServeShortage.WEIGHTS:
            return f"{name}: the weights alone take {needed} a rank, and {there}."
        case ServeShortage.KV_CACHE:
            return f"{name}: one user takes {needed} a rank with the weights, and {there}."
        case ServeShortage.CARDS:
            return f"{name}: its replicas would need {failed.needed:,.0f} cards, and there are {failed.limit:,.0f}."
    took, limit = duration(failed.needed), duration(failed.limit)
    return f"{name}: {failed.shortage} is {took} for one user already, and the limit is {limit}."


def _impossible(answer: ServeAnswer) -> Iterator[str]:
    goal, cards = answer.goal, max(answer.fleet, key=lambda one: one.count * one.device.capacity_bytes)
    short = [one for one in answer.failures if one.shortage in (ServeShortage.WEIGHTS, ServeShortage.KV_CACHE)]
    if len(short) == len(answer.failures) and short:
        format_name = min(goal.weights, key=lambda name: weight_bytes(ServeSetup(goal.model, name)))
        held = budget.serve(ServeSetup(goal.model, format_name, goal.kv[-1], context=goal.context)).held
        yield (
            f"No plan. In {format_name} the weights alone are {format_bytes(held[Part.PARAMETERS])}, and a user's KV "
            f"cache takes {format_bytes(held[Part.KV_CACHE])}; {cards.count:,} x {cards.device.title} have "
            f"{format_bytes(cards.room.for_tensors_bytes * cards.count)} to give."
        )
    elif answer.failures:
        nearest = min(
            answer.failures, key=lambda one: (one.shortage is not ServeShortage.CARDS, one.needed / one.limit)
        )
        yield f"No plan. Nearest was this one: {serve_failure_told(nearest)}"
    else:
        yield f"No plan: {goal.model.name} cannot be divided over these cards."
    yield from offers_told(least_for_serving(answer))
