"""Launches of a serving engine, as its log tells them, answered by the closed form of its memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ...catalog.devices import Device, device
from ...catalog.engines import engine
from ...catalog.setup import ServeSetup
from ..closed_form.engine import Launch, launch
from .cases import Case

QUANTITIES = ("weights", "profile run", "pool")


def predict(case: Case) -> dict[str, int]:
    """Bytes on a rank of the first stage, by quantity."""
    found = launched(case.setup, case.device)
    return dict(zip(QUANTITIES, (found.weight_bytes, found.profile_bytes, found.pool_bytes), strict=True))


def launched(setup: Mapping, card: str) -> Launch:
    """The launch that the log was written by, on a card of as many bytes as it saw."""
    served = ServeSetup(
        setup["model"],
        weights=setup["weights"],
        kv=setup["kv"],
        context=setup["context"],
        prefill_tokens=setup["prefill_tokens"],
    )
    ranks = (setup["tensor"], setup["pipeline"])
    found = engine(setup.get("engine", "vllm"), setup["version"])
    return launch(served, found, seen(device(card), setup["total_gib"]), *ranks, setup["share"], setup["max_seqs"])


def seen(card: Device, total_gib: float) -> Device:
    """The card with the total that was logged, which differs by driver and by what is set aside for ECC."""
    return replace(card, capacity=replace(card.capacity, value=round(total_gib * 2**30)))
