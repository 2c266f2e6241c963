"""What is the least that would do, for a goal that nothing at hand meets: more of the same cards, other cards, or less.

    least_for_serving(plan_serving(goal, fleet))       # [Offer('16 x H100 ...'), Offer('awq-int4 weights on ...')]

Each offer was planned like any other goal, so it works; it is the first that did, in an order from the nearest change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from ...catalog.devices import DEVICES, Device
from ...catalog.errors import WorkbookError
from .goal import METHODS, SERVED_KV, SERVED_WEIGHTS, ServeGoal, TrainGoal
from .machine import MOST_CARDS, Cards
from .search import LayoutRefusal, TrainAnswer, TrainPlan, plan_training
from .serve_search import ServeAnswer, ServePlan, ServeShortage, plan_serving

LARGER = ("h200-141gb", "b200-180gb")  # that most clouds offer
FEWER_BITS = tuple((weights, kv) for weights in SERVED_WEIGHTS[1:] for kv in SERVED_KV)
MOST_OFFERED = 4096  # cards; a search for more takes longer than it is worth

Plans = tuple[TrainPlan, ...] | tuple[ServePlan, ...]
PlansOn = Callable[[Cards], Plans]


@dataclass(frozen=True)
class Offer:
    """A change that makes the goal possible, in words, and the cheapest plan that it leads to."""

    words: str
    plan: TrainPlan | ServePlan


def least_for_training(answer: TrainAnswer) -> list[Offer]:
    """More of each card, then larger cards, then less to train: the first of each that works."""
    goal = answer.goal
    late = [one.hours.middle * 3600 / goal.deadline_s for one in answer.failures if goal.deadline_s]

    def plans_on(cards: Cards) -> Plans:
        return plan_training(goal, [cards], answer.rates).plans

    offers = list(_more(answer.fleet, plans_on, min(late, default=1)))
    if all(one.reason is LayoutRefusal.BYTES for one in answer.failures):
        for method in METHODS[1:]:
            if method in goal.methods:
                continue
            other = replace(goal, methods=(method,))
            plans = _plans(partial(_trained, other, answer))
            if plans:
                offers.append(Offer(f"{method.upper().replace('LORA', 'LoRA')} on the same cards", plans[0]))
    return offers


def least_for_serving(answer: ServeAnswer) -> list[Offer]:
    """More of each card, then larger cards, then fewer bits on the same cards, then fewer users."""
    goal, rates = answer.goal, answer.rates
    short = [one.needed / one.limit for one in answer.failures if one.shortage is ServeShortage.CARDS]

    def plans_on(cards: Cards) -> Plans:
        return plan_serving(goal, [cards], rates).plans

    offers = list(_more(answer.fleet, plans_on, min(short, default=1)))
    for weights, kv in FEWER_BITS:
        if weights in goal.weights and kv in goal.kv:
            continue
        fewer = replace(goal, weights=(weights,), kv=(kv,))
        plans = _plans(partial(_served, fewer, answer))
        if plans:
            offers.append(Offer(f"{weights} weights and a {kv} KV cache on the same cards", plans[0]))
            break
    return [*offers, *_fewer_users(answer)]


def _trained(goal: TrainGoal, answer: TrainAnswer) -> Plans:
    return plan_training(goal, answer.fleet, answer.rates).plans


def _served(goal: ServeGoal, answer: ServeAnswer) -> Plans:
    return plan_serving(goal, answer.fleet, answer.rates).plans


def _fewer_users(answer: ServeAnswer) -> Iterator[Offer]:
    """The most users that the cards serve within the limits, where one at least is served."""
    goal = answer.goal

    def plans(users: int) -> Plans:
        return _plans(partial(_served, replace(goal, users=users), answer))

    if goal.users == 1 or not plans(1):
        return
    low, high = 1, goal.users
    while high - low > max(1, low // 20):  # to a twentieth
        middle = (low + high) // 2
        low, high = (middle, high) if plans(middle) else (low, middle)
    yield Offer(f"{low:,} users on the same cards", plans(low)[0])


def _more(fleet: tuple[Cards, ...], plans_on: PlansOn, times: float) -> Iterator[Offer]:
    """The fewest cards of each type of the fleet, then of larger types, in doublings; `times` as many is a first guess.

    A larger card may do with an eighth of them: it has up to 2.4 times the memory and 2.3 times the FLOPs of an H100.
    """
    for cards in fleet:
        yield from _fewest(cards, max(2 * cards.count, _doubled(cards.count * times / 2)), plans_on)
    owned = {cards.device.name for cards in fleet}
    largest = max(fleet, key=lambda cards: cards.device.capacity_bytes)
    for name in LARGER:
        if name not in owned and DEVICES[name].capacity_bytes > largest.device.capacity_bytes:
            yield from _fewest(_like(largest, DEVICES[name]), _doubled(largest.count * times / 8), plans_on)


def _doubled(count: float) -> int:
    """The power of two below `count`, 1 at least."""
    return 1 << max(0, int(count).bit_length() - 1)


def _like(cards: Cards, device: Device) -> Cards:
    return Cards(device, 1, None, cards.node, cards.network_bytes_per_s, cards.reserve_bytes)


def _fewest(cards: Cards, count: int, plans_on: PlansOn) -> Iterator[Offer]:
    while count <= min(MOST_OFFERED, MOST_CARDS):
        plans = _plans(partial(plans_on, cards.with_count(count)))
        if plans:
            yield Offer(f"{plans[0].ranks:,} x {cards.device.title}", plans[0])
            return
        count *= 2


def _plans(make: Callable[[], Plans]) -> Plans:
    """Plans, none where a card or a format is refused."""
    try:
        return make()
    except WorkbookError:
        return ()
