"""What several calculators offer: the models whose training has a closed form, the usual sizes, a setup from them."""

from __future__ import annotations

from functools import cache
from typing import Any

from ...catalog.errors import require_whole
from ...catalog.models import MODELS, model
from ...catalog.policies import SELECTIVE
from ...catalog.shape import ModelShape
from ...catalog.train_setup import TrainSetup
from ...memory.step.decoders.families import PAGES
from ...memory.step.refusals import attention_of

MICRO_BATCHES = (1, 2, 4, 8, 16, 32, 64)
BY_CARD = "by card"  # by engine and ranks, too: `memory.fit.reserves`
RESERVE = ("reserve, MiB", (BY_CARD, 0, 256, 512, 1024, 2048, 4096), BY_CARD)  # the control that moves it
WHOLE_LAYERS = ("none", "full", "every:2", "every:4", "every:8", "sqrt-n", "first:2", "nested:4", "recursive")
POLICIES = (*WHOLE_LAYERS, *SELECTIVE, "module:attention", "module:mlp", "offload:inputs")  # all with a closed form
SEQUENCES = (256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)


def reserve_bytes(reserve: int | str) -> int | None:
    """The control's MiB; None where the card says. WorkbookError for other words."""
    if reserve == BY_CARD:
        return None
    return require_whole("the reserve", reserve, 0, unit="MiB", do=f"choose {BY_CARD!r}, or 0 to keep nothing") * 2**20


@cache
def trained_models() -> tuple[str, ...]:
    """The catalogue's models whose training step has a closed form."""
    return tuple(name for name in MODELS if model(name).family in PAGES)


def within_positions(shape: ModelShape, tokens: int) -> int:
    """`tokens`, or as many as a model with a table of positions has."""
    return min(tokens, shape.max_positions) if shape.learned_positions else tokens


def train_setup(name: str, sequence: int, **choices: Any) -> TrainSetup:
    """A run with fused AdamW that the model can do: within its positions, eager attention where scores are capped."""
    shape = model(name)
    tokens = within_positions(shape, sequence)
    return TrainSetup(shape, optimizer="adamw-fused", sequence=tokens, attention=attention_of(shape), **choices)
