"""What one rank holds, by category, and the most that it holds during a step. Imports torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch

from ..closed_form.breakdown import Breakdown
from ..closed_form.ring import Traffic
from ..meter.fresh import FreshMeter
from .collectives import Collectives

Holds = Callable[[], Mapping[str, Iterable[torch.Tensor]]]


@dataclass(frozen=True)
class RankStep:
    """One rank's step: bytes `before` it by category, its peak, and what its collectives carried."""

    before: Breakdown
    after_backward: Breakdown
    peak_bytes: int
    traffic: Traffic


def held(tensors: Mapping[str, Iterable[torch.Tensor]]) -> Breakdown:
    """Bytes by category; each storage once, in the first category that names it.

    Not rounded to blocks: a shard is what it is.

    >>> whole = torch.zeros(1000)
    >>> held({"parameters": [whole], "optimizer": [whole[:500], torch.zeros(10)]})
    Breakdown(parameters=4000, optimizer=40)
    """
    seen: set[int] = set()
    found = {}
    for category, members in tensors.items():
        storages = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in members}
        found[category] = sum(size for key, size in storages.items() if key not in seen)
        seen |= storages.keys()
    return Breakdown(found)


def rank_step(backward: Callable[[], object], step: Callable[[], object], holds: Holds) -> RankStep:
    """Run `backward()`, forward and backward on this rank's micro-batch, then `step()`, and account for both.

    `holds()` gives this rank's tensors by category now: the method of every engine in `helpers.techniques.zero`. What
    the backend allocates for itself is left out: gloo knows no reduce-scatter, and all-reduces a copy of the buffer.
    """
    before, meter = held(holds()), FreshMeter()
    for category, tensors in holds().items():
        meter.adopt(tensors, category)
    with meter, Collectives() as counted:
        backward()
        after_backward = held(holds())
        step()
    meter.stop()
    return RankStep(before, after_backward, meter.peak_bytes, counted.traffic)
