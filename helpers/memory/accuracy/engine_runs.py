"""Launches of a serving engine, as its log tells them, answered by the closed form of its memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ...catalog.devices import Device, device
from ...catalog.engines import engine
from ...catalog.serve_setup import ServeSetup
from ..serve.engines.llamacpp import LlamaCpp
from ..serve.engines.vllm import Launch, launch
from ..serve.engines.weights import rank_weight_bytes
from .cases import Case

SERVED = ("weights", "kv", "context", "users", "prefill_tokens")  # of a ServeSetup
LAUNCHED = ("version", "tensor", "pipeline", "share", "max_seqs", "total_gib", "tokens", "blocks")  # of an engine
FIGURES = ("weights", "profile run", "pool", "KV cache", "compute buffer", "allocated", "peak allocated")
NO_CARD = "any"
NO_SETUP = "a message tells no setup: `workbook explain-oom` reads it, `workbook accuracy --measured` rebuilds a run"


def predict(case: Case) -> dict[str, int]:
    """Bytes on a rank of the first stage, by quantity; nothing of what the closed form has no answer for."""
    name = case.setup.get("engine", "vllm")
    return _ANSWERS[name](case.setup, case.device) if name in _ANSWERS else {}


def why(case: Case) -> str:
    if case.setup.get("engine") == "torch":
        return NO_SETUP
    return "weights alone: no card is named" if case.device == NO_CARD else ""


def launched(setup: Mapping, card: str) -> Launch:
    """The launch that the log was written by, on a card of as many bytes as it saw."""
    ranks = (setup.get("tensor", 1), setup.get("pipeline", 1))
    found, seats = engine("vllm", setup.get("version")), (setup.get("share"), setup.get("max_seqs"))
    return launch(served(setup), found, seen(device(card), setup.get("total_gib")), *ranks, *seats)


def served(setup: Mapping) -> ServeSetup:
    return ServeSetup(setup["model"], **{name: setup[name] for name in SERVED if name in setup})


def seen(card: Device, total_gib: float | None) -> Device:
    """The card with the total that was logged, which differs by driver and by what is set aside for ECC."""
    if total_gib is None:
        return card
    return replace(card, capacity=replace(card.capacity, value=round(total_gib * 2**30)))


def _vllm(setup: Mapping, card: str) -> dict[str, int]:
    """Of a card that nobody named the weights alone."""
    if card == NO_CARD:
        return _weights(setup)
    found = launched(setup, card)
    return {"weights": found.weight_bytes, "profile run": found.profile_bytes, "pool": found.pool_bytes}


def _weights(setup: Mapping, card: str = "") -> dict[str, int]:
    ranks = (setup.get("tensor", 1), setup.get("pipeline", 1))
    return {"weights": rank_weight_bytes(served(setup), *ranks)}


def _llamacpp(setup: Mapping, card: str) -> dict[str, int]:
    return {"KV cache": LlamaCpp(served(setup)).kv_bytes}


_ANSWERS = {"vllm": _vllm, "sglang": _weights, "llama.cpp": _llamacpp}
