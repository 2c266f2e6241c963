"""A training answer as text: a table of plans, then the first one in full sentences, or the least that would do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..breakdown import Breakdown, format_bytes
from .goal import FINE_TUNING_BATCH, PRETRAINING_BATCH
from .minimum import Offer, least_for_training
from .search import Failure, LayoutRefusal, TrainAnswer, TrainPlan
from .seconds import Seconds
from .training import Job, Layout, StepEngine

PRECISIONS = {
    "megatron-bf16": "BF16 weights, FP32 masters",
    "autocast-bf16": "FP32 weights, BF16 products",
    "bf16": "BF16 alone",
}
REDUCTIONS = {  # of gradients over the ranks, in FSDP2
    "fp32": "FP32 shards and sums, BF16 products",
    "bf16": "FP32 shards, BF16 products and sums",
}
STATES = {"adamw-fused": "AdamW", "adamw-8bit": "AdamW in 8 bits"}
CHECKPOINTS = {"none": "no checkpointing", "full": "full checkpointing"}


def training_report(answer: TrainAnswer) -> str:
    """All of it."""
    lines = [_goal(answer), ""]
    if not answer.plans:
        return "\n".join([*lines, *_impossible(answer)])
    return "\n".join([*lines, *table(TRAIN_COLUMNS, map(_row, answer.plans)), "", *_story(answer)])


TRAIN_COLUMNS = ("", "cards", "divided", "kept as", "micro-batch", "a rank", "a step", "in all", "cost")


def _row(plan: TrainPlan) -> tuple[str, ...]:
    layout = plan.layout
    cost = "no price" if plan.cost is None else dollars(plan.cost.middle)
    return (
        f"{layout.ranks:,} x {plan.cards.device.name}",
        str(layout) + (", states on the host" if layout.offload else ""),
        _kept(layout),
        f"{layout.micro_batch} x {layout.micro_batches:,}"
        + (", checkpointed" if layout.checkpointing != "none" else ""),
        format_bytes(plan.need.total),
        duration(plan.step.total.middle),
        duration(plan.hours.middle * 3600),
        cost,
    )


def _kept(layout: Layout) -> str:
    if layout.method != "full":
        return layout.method.upper().replace("LORA", "LoRA")
    if layout.engine is StepEngine.FSDP2:
        return REDUCTIONS[layout.reduced]
    return PRECISIONS.get(layout.precision, layout.precision) + (", 8-bit AdamW" if "8bit" in layout.optimizer else "")


def _goal(answer: TrainAnswer) -> str:
    goal = answer.goal
    had = " and ".join(f"{cards.count:,} x {cards.device.title}" for cards in answer.fleet)
    usual = goal.batch_tokens in (PRETRAINING_BATCH, FINE_TUNING_BATCH)
    batch = f"batches of {goal.sequences * goal.sequence:,} tokens" + (
        " (the usual; --batch says another)" if usual else ""
    )
    within = f" within {duration(goal.deadline_s)}" if goal.deadline_s else ""
    return (
        f"{goal.model.name} trained on {goal.tokens:,} tokens{within}, in sequences of {goal.sequence:,} and {batch}, "
        f"on up to {had}. {answer.considered:,} layouts were looked at."
    )


def _story(answer: TrainAnswer) -> Iterator[str]:
    """The first plan, in sentences: what, bytes, time, money, limit, what breaks first, why nothing cheaper."""
    plan = answer.plans[0]
    layout, cards, room = plan.layout, plan.cards, plan.cards.room_of(plan.layout.ranks)
    yield (
        f"The cheapest plan takes {layout.ranks:,} x {cards.device.title}"
        + (f", divided as {layout}" if layout.ranks > 1 else "")
        + f": {_kept(layout)}, "
        f"{CHECKPOINTS[layout.checkpointing]}; a step is {layout.micro_batches:,} micro-batches of "
        f"{layout.micro_batch} x {answer.goal.sequence:,} tokens"
        + (f" on each of {layout.data:,} data-parallel groups." if layout.data > 1 else ".")
    )
    where = f" of stage {plan.need.stage + 1}" if layout.pipeline > 1 else ""
    yield (
        f"A rank{where} holds {format_bytes(plan.need.total)} at its fullest ({plan.need.moment}): "
        f"{parts_told(plan.need.parts)}. {format_bytes(plan.spare_bytes)} are to spare beside "
        f"{room.kept_told} kept for {room.reserve.told}."
    )
    yield from room.holes(plan.need.total)
    if layout.offload:
        yield f"On the host each rank keeps {format_bytes(plan.need.host.total)}: {parts_told(plan.need.host)}."
    yield (
        f"A step takes {interval(plan.step.total)}, and {plan.steps:,} steps {interval(plan.hours.times(3600))}. "
        f"These are rooflines with assumed efficiencies, and no measurements."
    )
    if plan.cost:
        low, middle, high = map(dollars, plan.cost)
        yield f"At {cards.per_hour:,.2f} dollars a card and hour that is {middle} ({low} to {high})."
    else:
        yield f"Nobody has said what an hour of the {cards.device.title} costs: pass --price {cards.device.name}=2.50."
    share = {name: time.middle / plan.step.total.middle for name, time in plan.step.parts.items()}
    others = ", ".join(
        f"{name} {part:.0%}" for name, part in share.items() if part >= 0.005 and name != plan.step.limit
    )
    yield f"What limits it: {plan.step.limit} take {share[plan.step.limit]:.0%} of a step" + (
        f"; {others}." if others else "."
    )
    yield breaks_first(answer, plan)
    if layout.compromises:
        yield f"What it gives up: {'; '.join(layout.compromises)}."
    yield _why_not_cheaper(answer)


def breaks_first(answer: TrainAnswer, plan: TrainPlan) -> str:
    """The nearest change that no longer fits: a larger micro-batch, or longer sequences."""
    goal, room = answer.goal, plan.cards.room_of(plan.layout.ranks).for_tensors_bytes
    for factor in (2, 4, 8):
        longer = Job(goal.model, goal.sequence * factor).need(plan.layout, plan.cards.device)
        wider = replace(plan.layout, micro_batch=plan.layout.micro_batch * factor)
        larger = Job(goal.model, goal.sequence).need(wider, plan.cards.device)
        for what, need in (
            (f"micro-batches of {wider.micro_batch}", larger),
            (f"sequences of {goal.sequence * factor:,}", longer),
        ):
            if need.total > room:
                part = max(need.parts, key=lambda name: need.parts[name] - plan.need.parts.get(name, 0))
                return (
                    f"What breaks first: {what} would need {format_bytes(need.total)}, {part} being what grows; "
                    f"{format_bytes(room)} are there."
                )
    return "What breaks first: nothing near; eight times the micro-batch or the sequence still fits."


def _why_not_cheaper(answer: TrainAnswer) -> str:
    failed = answer.next_cheaper
    if failed is None:
        return "Nothing cheaper was left to try."
    return f"The next cheaper layout fails: {failure_told(failed, answer)}"


def failure_told(failed: Failure, answer: TrainAnswer) -> str:
    """Which layout, and why it is no plan."""
    layout = failed.layout
    cards = f"{layout.ranks:,} x {failed.cards.device.name}"
    host = ", states on the host" if layout.offload else ""
    name = f"{layout}{host} on {cards} with {_kept(layout)} and {CHECKPOINTS[layout.checkpointing]}"
    if failed.reason is LayoutRefusal.DEADLINE:
        deadline = answer.goal.deadline_s or 0
        return f"{name} takes {duration(failed.hours.middle * 3600)} and the deadline is {duration(deadline)}."
    room, needed = failed.cards.room_of(layout.ranks), format_bytes(failed.need_bytes)
    there = format_bytes(room.for_tensors_bytes)
    if failed.need is None:
        return f"{name} needs {needed} a rank for weights, gradients and states alone, and {there} are there."
    return f"{name} needs {needed} a rank ({parts_told(failed.need.parts)}), and {there} are there."


def _impossible(answer: TrainAnswer) -> Iterator[str]:
    nearest = nearest_failure(answer)
    yield (
        f"No plan. Nearest was this one: {failure_told(nearest, answer)}"
        if nearest
        else "No plan: no layout makes up this batch on these cards."
    )
    yield from offers_told(least_for_training(answer))


def nearest_failure(answer: TrainAnswer) -> Failure | None:
    """What misses the deadline by least, or else needs the fewest bytes."""
    late = [one for one in answer.failures if one.reason is LayoutRefusal.DEADLINE]
    late = [one for one in late if one.held_bytes <= one.cards.room_of(one.layout.ranks).for_tensors_bytes]
    if late:
        return min(late, key=lambda one: one.hours.middle)
    counted = [one for one in answer.failures if one.need] or list(answer.failures)
    return min(counted, key=lambda one: one.need_bytes / one.cards.device.capacity_bytes, default=None)


def offers_told(offers: list[Offer]) -> Iterator[str]:
    if not offers:
        yield "Nothing that was tried would do: more of these cards up to 4,096, larger cards, fewer bits."
        return
    yield "The least that would do:"
    for offer in offers:
        gives = f"; it gives up: {', '.join(offer.plan.layout.compromises)}" if offer.plan.layout.compromises else ""
        yield f"  - {offer.words} ({offer.plan.layout}{_host_told(offer)}{gives})"


def _host_told(offer: Offer) -> str:
    """What an offer asks of the machines' own memory, where states lie there."""
    plan = offer.plan
    if not (isinstance(plan, TrainPlan) and plan.layout.offload):
        return ""
    return f"; states on the host, {format_bytes(plan.need.host.total * min(plan.ranks, plan.cards.node))} in a machine"


def parts_told(parts: Breakdown) -> str:
    """Bytes by part, the largest first.

    >>> parts_told(Breakdown(parameters=2**30, kv_cache=2**31))
    'KV cache 2.00 GiB, parameters 1.00 GiB'
    """
    ranked = sorted(parts.items(), key=lambda item: -item[1])
    return ", ".join(f"{name.replace('kv_cache', 'KV cache')} {format_bytes(size)}" for name, size in ranked if size)


def interval(time: Seconds) -> str:
    """
    >>> interval(Seconds(50.0, 60.0, 90.0))
    '1.0 min (50 s to 1.5 min)'
    """
    return f"{duration(time.middle)} ({duration(time.low)} to {duration(time.high)})"


def duration(seconds: float) -> str:
    """Two figures or so, in the unit that people use.

    >>> duration(0.0182), duration(75.0), duration(90 * 3600)
    ('18 ms', '1.2 min', '3.8 days')
    """
    if seconds < 1:
        return f"{seconds * 1e3:.0f} ms" if seconds >= 0.01 else f"{seconds * 1e3:.1f} ms"
    for unit, size, most in (("s", 1, 60), ("min", 60, 60), ("h", 3600, 48), ("days", 86400, 1e9)):
        if seconds / size < most:
            value = seconds / size
            return f"{value:,.1f} {unit}" if value < 10 or (unit == "days" and value < 100) else f"{value:,.0f} {unit}"
    raise AssertionError(seconds)


def dollars(amount: float) -> str:
    """
    >>> dollars(0.035), dollars(0.5), dollars(1234.5), dollars(7_494_619)
    ('$0.035', '$0.50', '$1,234', '$7.5 million')
    """
    if amount >= 1e6:
        return f"${amount / 1e6:,.1f} million"
    digits = 0 if amount >= 100 else 2 if amount >= 0.0995 or amount == 0 else 3
    return f"${amount:,.{digits}f}"


def table(columns: tuple[str, ...], rows) -> Iterator[str]:
    """Rows under their headings, numbered, each column as wide as it must be."""
    numbered = [columns, *((str(at), *row) for at, row in enumerate(rows, 1))]
    widths = [max(len(row[at]) for row in numbered) for at in range(len(columns))]
    for row in numbered:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
