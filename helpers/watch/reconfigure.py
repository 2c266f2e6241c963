"""Reconfiguring a service as its load changes, simulated on a day: the best mode that fits now, and when to go back.

A mode is a batch limit that follows from formats: weights, KV cache, and the share of the cache that lies on the host.
Modes stand in a ladder, the one that costs least quality and speed first. When users no longer fit, the policy moves
down to the first mode that holds them, at once; it moves up only when the better mode would hold them with room to
spare, `margin`, for `hold` ticks. Without the two, a load near a limit would switch at every tick.

Bytes are those of `budget.serve`. Seconds are floors: what one decode step must read, over the card's bandwidth, and
the offloaded share over the host's link; loading other weights takes their bytes over the same link, and nobody is
served meanwhile. Sequences are taken to end within a tick, so a change of the cache's format costs nothing here.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from ..catalog.devices import Device, device
from ..catalog.errors import WorkbookError, require_whole
from ..catalog.serve_setup import ServeSetup
from ..memory import budget
from ..memory.breakdown import Part
from ..memory.serve.serving import ServeBudget

HOST_LINK = "pcie"
MOST_USERS = 2**14
DAY_TICKS, TICK_S = 288, 300  # five minutes


@dataclass(frozen=True)
class Mode:
    """How the service runs; `offloaded` is the share of the KV cache that lies in host memory, from 0 to 1."""

    weights: str = "bf16"
    kv: str = "bf16"
    offloaded: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.offloaded < 1:
            raise WorkbookError(f"offloaded is {self.offloaded!r}", "a share from 0 to below 1", "pass offloaded=0.5")

    def __str__(self) -> str:
        moved = f", {self.offloaded:.0%} of it on the host" if self.offloaded else ""
        return f"{self.weights} weights, {self.kv} cache{moved}"


LADDER = (Mode(), Mode(kv="fp8-e4m3"), Mode("fp8-e4m3", "fp8-e4m3"), Mode("fp8-e4m3", "fp8-e4m3", 0.5))


@dataclass(frozen=True)
class ServedModel:
    """What is served: a model, tokens that each user holds at most, the card, and bytes kept free on it."""

    model: str
    context: int
    gpu: str
    reserve_bytes: int = 2 * 2**30
    prefill_tokens: int = 2048

    def bytes_on_gpu(self, mode: Mode, users: int) -> int:
        """The predicted peak with so many users, less the share of the cache that is on the host."""
        found = self._budget(mode, users)
        return found.peak_bytes - int(mode.offloaded * found.held[Part.KV_CACHE])

    def most_users(self, mode: Mode) -> int:
        """Users that fit, 0 if none does; found by halving, for bytes never fall as users are added."""
        return _most_users(self, mode)

    def step_s(self, mode: Mode, users: int) -> float:
        """Seconds that one decode step takes at least: what it reads, from the card and over the host's link."""
        card = self._card()
        held = self._budget(mode, users).held
        away = mode.offloaded * held[Part.KV_CACHE]
        return (held.total - away) / card.memory_bytes_per_s + away / card.link_bytes_per_s(HOST_LINK)

    def switch_s(self, before: Mode, after: Mode) -> float:
        """Seconds without service: those of loading the weights, where they change."""
        if before.weights == after.weights:
            return 0.0
        loaded = self._budget(after, 1).held[Part.PARAMETERS]
        return loaded / self._card().link_bytes_per_s(HOST_LINK)

    def room_bytes(self) -> int:
        return self._card().capacity_bytes - self.reserve_bytes

    def _card(self) -> Device:
        return device(self.gpu)

    def _budget(self, mode: Mode, users: int) -> ServeBudget:
        return _budget(self, mode.weights, mode.kv, users)


@lru_cache(maxsize=4096)
def _budget(service: ServedModel, weights: str, kv: str, users: int) -> ServeBudget:
    setup = ServeSetup(
        service.model, weights, kv, users=users, context=service.context, prefill_tokens=service.prefill_tokens
    )
    return budget.serve(setup, service.gpu)


@lru_cache(maxsize=256)
def _most_users(service: ServedModel, mode: Mode) -> int:
    fits, too_many = 0, MOST_USERS
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        if service.bytes_on_gpu(mode, middle) <= service.room_bytes():
            fits = middle
        else:
            too_many = middle
    return fits


@dataclass(frozen=True)
class RecoveryPolicy:
    """When to go back up the ladder: after `hold` ticks in which users plus `margin` would have fitted there."""

    margin: float = 0.10
    hold: int = 3

    def __post_init__(self) -> None:
        require_whole("hold", self.hold, 1, unit="ticks")
        if not 0 <= self.margin < 10:
            raise WorkbookError(f"margin is {self.margin!r}", "a share of the users, 0 or more", "pass margin=0.1")


@dataclass(frozen=True)
class Tick:
    """One stretch of the day: who wanted service, who got it, how, and what that took."""

    wanted: int
    served: int
    mode: Mode
    gpu_bytes: int
    step_s: float
    switch_s: float


@dataclass(frozen=True)
class Day:
    """The ticks of a day, and what they add up to."""

    ticks: tuple[Tick, ...]

    @property
    def refused_share(self) -> float:
        """Of the users that wanted service, tick by tick."""
        wanted = sum(tick.wanted for tick in self.ticks)
        return 1 - sum(tick.served for tick in self.ticks) / wanted if wanted else 0.0

    @property
    def switches(self) -> int:
        return sum(one.mode != other.mode for one, other in pairwise(self.ticks))

    @property
    def switch_s(self) -> float:
        return sum(tick.switch_s for tick in self.ticks)

    @property
    def mean_step_s(self) -> float:
        """Seconds of a decode step, as the average user who was served had them."""
        served = sum(tick.served for tick in self.ticks)
        return sum(tick.served * tick.step_s for tick in self.ticks) / served if served else 0.0

    @property
    def peak_bytes(self) -> int:
        return max(tick.gpu_bytes for tick in self.ticks)

    def share_of(self, mode: Mode) -> float:
        """Of the day's users that were served, those that this mode served."""
        served = sum(tick.served for tick in self.ticks)
        return sum(tick.served for tick in self.ticks if tick.mode == mode) / served if served else 0.0


def simulate_day(
    service: ServedModel, users: Sequence[int], ladder: Sequence[Mode] = LADDER, policy: RecoveryPolicy | None = None
) -> Day:
    """Run a day of `users`, one number for each tick, down and up the ladder. One mode alone is a fixed configuration.

    WorkbookError for an empty ladder or day, or a ladder of which no mode holds one user.
    """
    if not ladder or not users:
        raise WorkbookError(
            "an empty ladder or day", "one mode and one tick, or more", "pass LADDER and day_of_users()"
        )
    for count in users:
        require_whole("users", count, 0, MOST_USERS - 1)
    limits = [service.most_users(mode) for mode in ladder]
    if not max(limits):
        what = f"no mode of the ladder holds one user of {service.model} on {service.gpu}"
        raise WorkbookError(what, "a model that fits", "add a mode with smaller weights, or name a larger card")
    ticks: list[Tick] = []
    for at in _places(users, limits, policy or RecoveryPolicy()):
        wanted, before = users[len(ticks)], ticks[-1].mode if ticks else ladder[at]
        ticks.append(_tick(service, ladder[at], before, wanted, limits[at]))
    return Day(tuple(ticks))


def _places(users: Sequence[int], limits: Sequence[int], policy: RecoveryPolicy) -> list[int]:
    """The place on the ladder at each tick."""
    at, calm, places = 0, 0, []
    for wanted in users:
        least = _first_that_holds(wanted, limits)
        roomy = _first_that_holds(math.ceil(wanted * (1 + policy.margin)), limits)
        calm = calm + 1 if roomy < at else 0
        if least > at or not limits[at]:
            at, calm = least, 0
        elif calm >= policy.hold:
            at, calm = roomy, 0
        places.append(at)
    return places


def _first_that_holds(users: int, limits: Sequence[int]) -> int:
    """The first mode that holds so many, or else the one that holds most."""
    for place, limit in enumerate(limits):
        if limit and users <= limit:
            return place
    return max(range(len(limits)), key=limits.__getitem__)


def _tick(service: ServedModel, mode: Mode, before: Mode, wanted: int, limit: int) -> Tick:
    """Users who come while weights are loaded wait, and count as refused for that part of the tick."""
    switch_s = service.switch_s(before, mode)
    counted = min(wanted, limit)
    served = int(counted * max(0.0, 1 - switch_s / TICK_S))
    held = max(counted, 1)
    return Tick(wanted, served, mode, service.bytes_on_gpu(mode, held), service.step_s(mode, held), switch_s)


def day_of_users(peak: int, seed: int = 0, ticks: int = DAY_TICKS) -> list[int]:
    """An invented day: a tenth of the peak at four in the morning, the peak at four in the afternoon, noise of 5 %."""
    require_whole("peak", peak, 1, MOST_USERS // 2, unit="users")
    require_whole("ticks", ticks, 1)
    drawn = random.Random(seed)
    wave = (0.55 - 0.45 * math.cos(2 * math.pi * (tick / ticks - 1 / 6)) for tick in range(ticks))
    return [max(0, round(peak * level * (1 + 0.05 * drawn.gauss(0, 1)))) for level in wave]
