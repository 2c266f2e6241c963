"""What is the least that would do, for a goal that nothing at hand meets: more of the same cards, other cards, or less.

    least_for_serving(plan_serving(goal, fleet))       # [Offer('16 x H100 ...'), Offer('awq-int4 weights on ...')]

Each offer was planned like any other goal, so it works; it is the first that did, in an order from the nearest change.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ...catalog.devices import DEVICES, Device
from ...catalog.errors import WorkbookError
from .goal import METHODS, SERVED_KV, SERVED_WEIGHTS, ServeGoal, TrainGoal
from .machine import MOST_CARDS, Cards
from .search import Reason, TrainAnswer, TrainPlan, plan_training
from .serve_search import ServeAnswer, ServePlan, plan_serving

LARGER = ("h200-141gb", "b200-180gb")  # that most clouds offer
MOST_OFFERED = 4096  # cards; a search for more takes longer than it is worth


@dataclass(frozen=True)
class Offer:
    """A change that makes the goal possible, in words, and the cheapest plan that it leads to."""

    words: str
    plan: TrainPlan | ServePlan


def least_for_training(answer: TrainAnswer) -> list[Offer]:
    """More of each card, then larger cards, then less to train: the first of each that works."""
    goal = answer.goal
    found = [*_more(answer.fleet, lambda cards: plan_training(goal, [cards], answer.rates).plans)]
    offers = [Offer(words, plan) for words, plan in found]
    if all(one.reason is Reason.BYTES for one in answer.failures):
        for method in METHODS[1:]:
            if method in goal.methods:
                continue
            plans = _plans(lambda method=method: plan_training(replace(goal, methods=(method,)), answer.fleet, answer.rates))
            offers += [Offer(f"{method.upper().replace('LORA', 'LoRA')} on the same cards", plans[0])] if plans else []
    return offers


def least_for_serving(answer: ServeAnswer) -> list[Offer]:
    """More of each card, then larger cards, then fewer bits on the same cards, then fewer users."""
    goal, rates = answer.goal, answer.rates
    found = _more(answer.fleet, lambda cards: plan_serving(goal, [cards], rates).plans)
    offers = [Offer(words, plan) for words, plan in found]
    for weights, kv in ((SERVED_WEIGHTS[1], goal.kv[0]), (SERVED_WEIGHTS[1], SERVED_KV[1]), (SERVED_WEIGHTS[2], goal.kv[0])):
        if weights in goal.weights and kv in goal.kv:
            continue
        fewer = replace(goal, weights=(weights,), kv=(kv,))
        plans = _plans(lambda fewer=fewer: plan_serving(fewer, answer.fleet, rates))
        if plans:
            offers.append(Offer(f"{weights} weights and a {kv} KV cache on the same cards", plans[0]))
            break
    return [*offers, *_fewer_users(answer)]


def _fewer_users(answer: ServeAnswer) -> Iterator[Offer]:
    """The most users that the cards serve within the limits, where one at least is served."""
    goal = answer.goal

    def plans(users: int) -> tuple:
        return _plans(lambda: plan_serving(replace(goal, users=users), answer.fleet, answer.rates))

    if goal.users == 1 or not plans(1):
        return
    low, high = 1, goal.users
    while high - low > max(1, low // 20):  # to a twentieth
        middle = (low + high) // 2
        low, high = (middle, high) if plans(middle) else (low, middle)
    yield Offer(f"{low:,} users on the same cards", plans(low)[0])


def _more(fleet: tuple[Cards, ...], plans_on) -> Iterator[tuple[str, TrainPlan | ServePlan]]:  # noqa: ANN001
    """The fewest cards of each type of the fleet, in doublings; then those of the larger types."""
    for cards in fleet:
        yield from _fewest(cards, 2 * cards.count, plans_on)
    owned = {cards.device.name for cards in fleet}
    smallest = max(cards.device.capacity_bytes for cards in fleet)
    for name in LARGER:
        if name not in owned and DEVICES[name].capacity_bytes > smallest:
            yield from _fewest(_like(fleet[0], DEVICES[name]), 1, plans_on)


def _like(cards: Cards, device: Device) -> Cards:
    return Cards(device, 1, None, cards.node, cards.network_bytes_per_s, cards.reserve_bytes)


def _fewest(cards: Cards, count: int, plans_on) -> Iterator[tuple[str, TrainPlan | ServePlan]]:  # noqa: ANN001
    while count <= min(MOST_OFFERED, MOST_CARDS):
        more = cards.with_count(count)
        plans = _plans(lambda more=more: plans_on(more))
        if plans:
            yield f"{count:,} x {cards.device.title}", plans[0]
            return
        count *= 2


def _plans(make) -> tuple:  # noqa: ANN001
    """Plans, none where a card or a format is refused."""
    try:
        found = make()
    except WorkbookError:
        return ()
    return found if isinstance(found, tuple) else found.plans
