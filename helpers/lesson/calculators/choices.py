"""What several calculators offer: the models whose training has a closed form, the usual sizes, a setup from them."""

from __future__ import annotations

from functools import cache
from typing import Any

from ...catalog.models import MODELS, model
from ...catalog.policies import SELECTIVE
from ...catalog.setup import TrainSetup
from ...catalog.shape import ModelShape
from ...memory.fit import RESERVE_MIB
from ...memory.step.decoders.families import PAGES
from ...memory.step.refusals import attention_of

MICRO_BATCHES = (1, 2, 4, 8, 16, 32, 64)
RESERVE = ("reserve, MiB", (0, 128, 512, RESERVE_MIB, 2048, 4096), RESERVE_MIB)  # the control that moves it
WHOLE_LAYERS = ("none", "full", "every:2", "every:4", "every:8", "sqrt-n", "first:2", "nested:4", "recursive")
POLICIES = (*WHOLE_LAYERS, *SELECTIVE, "module:attention", "module:mlp", "offload:inputs")  # all with a closed form
SEQUENCES = (256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)


def reserve_bytes(reserve: int) -> int:
    """The control's MiB."""
    return reserve * 2**20


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
