"""The ladder of a serving replica: the cache's format, the weights' format, then fewer users or a shorter context."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from ...catalog.setup import ServeSetup
from ..closed_form import budget
from .change import Fit

KV_LADDER = ("bf16", "fp8-e4m3")
WEIGHT_LADDER = ("bf16", "int8", "nf4-dq")
COSTS = {
    "kv": "K and V rounded to {}, and an engine that reads them so",
    "weights": "weights rounded to {}: measure perplexity and recall on your task",
    "users": "the others wait, or go to another replica",
    "context": "nothing longer than {} tokens is answered",
}


def serving_changes(setup: ServeSetup, capacity_bytes: int) -> Iterator[Fit]:
    """The formats that suffice, alone and together, then the most users and the longest context that fit as it is.

    When no user fits, neither of the last two is offered.
    """
    formats = list(_formats(setup, capacity_bytes))
    yield from formats
    for name, words in (("users", "{:,} of {:,} users at once"), ("context", "a context of {:,} of {:,} tokens")):
        asked = getattr(setup, name)
        most = _most(lambda count, name=name: _fits(setup, capacity_bytes, **{name: count}), asked)
        if 0 < most < asked:
            yield _fit(setup, words.format(most, asked), {name: most}, COSTS[name].format(f"{most:,}"))


def _formats(setup: ServeSetup, capacity_bytes: int) -> Iterator[Fit]:
    """Steps down the two ladders: each weight format alone with the given cache, then with a smaller one."""
    caches, weights = _below(setup, "kv", KV_LADDER), _below(setup, "weights", WEIGHT_LADDER)
    taken: list[dict[str, str]] = []
    steps = [
        *({"kv": kv} for kv in caches),
        *({"weights": w} for w in weights),
        *({"weights": w, "kv": kv} for w in weights for kv in caches),
    ]
    for fields in steps:
        if any(part.items() <= fields.items() for part in taken) or not _fits(setup, capacity_bytes, **fields):
            continue
        taken.append(fields)
        parts = {"kv": "KV cache in {}", "weights": "weights in {}"}
        words = ", ".join(parts[name].format(value) for name, value in fields.items())
        yield _fit(setup, words, fields, "; ".join(COSTS[name].format(value) for name, value in fields.items()))


def _below(setup: ServeSetup, name: str, formats: tuple[str, ...]) -> list[str]:
    """The formats of a ladder that take fewer bytes than the setup's own."""
    now = budget.serve(setup).peak_bytes
    return [chosen for chosen in formats if budget.serve(replace(setup, **{name: chosen})).peak_bytes < now]


def _fits(setup: ServeSetup, capacity_bytes: int, **fields: object) -> bool:
    return budget.serve(replace(setup, **fields)).peak_bytes <= capacity_bytes


def _fit(setup: ServeSetup, words: str, fields: dict, costs: str) -> Fit:
    return Fit(words, budget.serve(replace(setup, **fields)).peak_bytes, costs, fields)


def _most(fits: Callable[[int], bool], asked: int) -> int:
    """The largest count from 1 to `asked` that fits, 0 if none: bytes never shrink with a longer cache."""
    low, high = 0, asked
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
