"""When requests come, from whom, and how urgent: Poisson, bursts, and mixes of the traces of `paging`. No torch."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ...catalog.errors import WorkbookError, require_number, require_whole
from ..paging.traces import Request


@dataclass(frozen=True)
class Arrival:
    """One request, `at_s` seconds after the start, from `user`. A smaller `priority` number is more urgent.

    `max_tokens` is the limit that came with it: a scheduler knows this, and not that the answer ends earlier. None: the
    answer is as long as its limit.
    """

    request: Request
    at_s: float = 0.0
    user: str = ""
    priority: int = 0
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        if self.max_tokens is not None:
            require_whole("max_tokens", self.max_tokens, self.request.new_tokens)

    @property
    def most_tokens(self) -> int:
        """New tokens that it may have."""
        return self.request.new_tokens if self.max_tokens is None else self.max_tokens

    @property
    def tokens(self) -> int:
        return self.request.tokens


def poisson(
    requests: Iterable[Request], per_s: float, seed: int = 0, user: str = "", priority: int = 0
) -> tuple[Arrival, ...]:
    """`requests` at a mean rate of `per_s` a second, each independent of the others: gaps are exponential.

    >>> from helpers.techniques.paging import chat
    >>> arrivals = poisson(chat(200).requests, per_s=10.0)
    >>> 16 < arrivals[-1].at_s < 24
    True
    """
    _require_rate("requests a second", per_s)
    draw, at, made = random.Random(seed), 0.0, []
    for request in requests:
        at += draw.expovariate(per_s)
        made.append(Arrival(request, at, user, priority))
    return tuple(made)


def bursts(
    requests: Sequence[Request], size: int, every_s: float, user: str = "", priority: int = 0
) -> tuple[Arrival, ...]:
    """`size` requests at the same moment, and as many again every `every_s` seconds, as batch jobs send them."""
    require_whole("size", size)
    _require_rate("seconds between bursts", every_s)
    return tuple(Arrival(request, at // size * every_s, user, priority) for at, request in enumerate(requests))


def mixed(*streams: Iterable[Arrival]) -> tuple[Arrival, ...]:
    """Several streams as one, in the order of their times; equal times keep the order of the streams."""
    return tuple(sorted((arrival for stream in streams for arrival in stream), key=lambda arrival: arrival.at_s))


def at_once(requests: Iterable[Request], user: str = "", priority: int = 0) -> tuple[Arrival, ...]:
    """All at second 0: what a batch job sends, and what a concurrency limit holds back."""
    return tuple(Arrival(request, 0.0, user, priority) for request in requests)


def limited(arrivals: Iterable[Arrival], max_tokens: int) -> tuple[Arrival, ...]:
    """The same requests, each with this limit, or its answer's length where that is more."""
    return tuple(replace(one, max_tokens=max(max_tokens, one.request.new_tokens)) for one in arrivals)


def scaled(arrivals: Iterable[Arrival], load: float) -> tuple[Arrival, ...]:
    """The same requests `load` times as fast: their times are divided by it."""
    _require_rate("load", load)
    return tuple(replace(arrival, at_s=arrival.at_s / load) for arrival in arrivals)


def require_in_order(arrivals: Sequence[Arrival]) -> None:
    """WorkbookError if a later arrival has an earlier time."""
    for before, after in itertools.pairwise(arrivals):
        if after.at_s < before.at_s:
            what = f"an arrival at {after.at_s:g} s after one at {before.at_s:g} s"
            raise WorkbookError(what, "arrivals in the order of their times", "pass mixed(arrivals)")


def _require_rate(name: str, rate: float) -> None:
    require_number(name, rate, below=1e9, expected="a number above zero", do="pass 1.0")
