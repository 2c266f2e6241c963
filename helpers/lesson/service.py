"""The service that the fourth part of the course carries from chapter to chapter, and the bar of one of its cards.

    service.bars("And in FP8", {"as it starts": service.SETUP, "FP8 cache": replace(service.SETUP, kv="fp8-e4m3")})

Eight equal ranks: each has an eighth of the weights, and one of the eight KV heads of all users. The bars of all
chapters have one place, one scale, the same parts in the same colours, and the line of the card.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..catalog.devices import device
from ..catalog.engines import engine
from ..catalog.serve_setup import ServeSetup
from ..memory.breakdown import Breakdown, Part
from ..memory.serve.engines.vllm import CONTEXT_BYTES, Launch
from .drawing.bars import Parts, stacked_bars
from .drawing.pictures import Card

SETUP = ServeSetup("llama-3.1-70b", users=200, context=8192)
CARD, CARDS, ENGINE = device("h100"), 8, engine("vllm", "0.33")
SCALE_BYTES, NAMES_PX = 90 * 2**30, 170  # the service as it starts, 86.5 GiB; the longest name of a rung
OUTSIDE = "CUDA, NCCL, graphs"


def launch(setup: ServeSetup = SETUP, cards: int = CARDS) -> Launch:
    """`setup` on the service's engine, tensor parallel over `cards`: its pool, and the users that this holds."""
    return Launch(setup, ENGINE, CARD, tensor=cards)


def parts(setup: ServeSetup = SETUP, cards: int = CARDS) -> Breakdown:
    """What one card of `cards` needs for all users of `setup` at once, in whole pages; whether or not it has as much.

    >>> print(parts())
    parameters             16.46 GiB
    kv_cache               62.50 GiB
    activations             2.39 GiB
    CUDA, NCCL, graphs      5.19 GiB
    total                  86.54 GiB
    """
    one = launch(setup, cards)
    held = {
        Part.PARAMETERS: one.weight_bytes,
        Part.KV_CACHE: setup.users * one.user_bytes,
        Part.ACTIVATIONS: one.profile_bytes,
        OUTSIDE: CONTEXT_BYTES[cards > 1] + one.outside_bytes + one.graph_bytes,
    }
    return Breakdown(held)


def bars(title: str, rungs: Mapping[str, ServeSetup | Parts], scale_bytes: int = SCALE_BYTES) -> Card:
    """One bar for each of `rungs`: what a setup needs of one card, or parts that are given.

    `scale_bytes` is what the scale reaches, for a chapter whose pictures all need a longer one.
    """
    rows = {name: parts(one) if isinstance(one, ServeSetup) else one for name, one in rungs.items()}
    return stacked_bars(title, rows, {"H100 80 GB:": CARD.capacity_bytes}, "", scale_bytes, NAMES_PX)
