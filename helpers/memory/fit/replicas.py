"""The ladders of a serving replica: smaller formats, fewer users, a shorter context."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial

from ...catalog.devices import Device, device
from ...catalog.errors import WorkbookError
from ...catalog.hardware import dequantized, reference_of
from ...catalog.serve_setup import ServeSetup
from .. import budget
from .ladders import Fields, Fit

KV_LADDER = ("bf16", "fp8-e4m3")
GGUF_KV_LADDER = ("q8_0", "q4_0")  # what llama.cpp offers, for a file of its own
WEIGHT_LADDER = ("bf16", "int8", "nf4-dq")
FORMATS = {  # by field of the setup: what the change is called, and what it costs
    "kv": ("KV cache in {}", "K and V rounded to {}, and an engine that reads them so"),
    "weights": ("weights in {}", "weights rounded to {}: measure perplexity and recall on your task"),
}
COUNTS = {
    "users": ("{:,} of {:,} users at once", "the others wait, or go to another replica"),
    "context": ("a context of {:,} of {:,} tokens", "nothing longer than {:,} tokens is answered"),
}


def serving_changes(setup: ServeSetup, capacity_bytes: int, gpu: str | Device | None = None) -> Iterator[Fit]:
    """The formats that suffice, alone and together, then the most users and the longest context that fit as it is.

    When no user fits, neither of the last two is offered.
    """
    yield from _formats(setup, capacity_bytes, gpu)
    need = partial(_need, setup, gpu)
    for name, (words, costs) in COUNTS.items():
        asked: int = getattr(setup, name)
        # Bytes never shrink with a longer cache, so the counts that fit come first.
        most = bisect_right(range(1, asked + 1), capacity_bytes, key=lambda count: need({name: count}))
        if 0 < most < asked:
            yield Fit(words.format(most, asked), need({name: most}), costs.format(most), {name: most})


def _formats(setup: ServeSetup, capacity_bytes: int, gpu: str | Device | None) -> Iterator[Fit]:
    """Steps down the two ladders: each weight format alone with the given cache, then with a smaller one."""
    caches = _below(setup, gpu, "kv", GGUF_KV_LADDER if setup.model.stored else KV_LADDER)
    weights = [] if setup.model.stored else _below(setup, gpu, "weights", WEIGHT_LADDER)
    taken: list[dict[str, str]] = []
    steps = [
        *({"kv": kv} for kv in caches),
        *({"weights": w} for w in weights),
        *({"weights": w, "kv": kv} for w in weights for kv in caches),
    ]
    for fields in steps:
        need = _need(setup, gpu, fields)
        if any(part.items() <= fields.items() for part in taken) or need > capacity_bytes:
            continue
        taken.append(fields)
        words = ", ".join(FORMATS[name][0].format(value) for name, value in fields.items())
        costs = "; ".join(FORMATS[name][1].format(value) for name, value in fields.items())
        yield Fit(words, need, costs, fields)


def _below(setup: ServeSetup, gpu: str | Device | None, name: str, formats: tuple[str, ...]) -> list[str]:
    """The formats of a ladder that take fewer bytes than the setup's own."""
    smaller = []
    for chosen in formats:
        with suppress(WorkbookError):  # such as blocks that do not divide a head
            if _need(setup, gpu, {name: chosen}) < _need(setup, gpu, {}):
                smaller.append(chosen)
    return smaller


def _need(setup: ServeSetup, gpu: str | Device | None, fields: Fields) -> int:
    """The peak on `gpu`, as Transformers loads the weights there."""
    changed = replace(setup, **fields)
    card = device(gpu or reference_of(changed))
    return budget.serve(dequantized(changed, card), card).peak_bytes
