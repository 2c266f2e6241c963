"""The channels of the keys: are some large for every token? And how to plant such channels where there are none."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from ...catalog.by_transformers import with_cache
from ...catalog.errors import WorkbookError, require_number, require_whole


@torch.no_grad()
def key_channels(model: PreTrainedModel, ids: Tensor, layer: int = 0) -> Tensor:
    """Mean magnitude of each channel of the cached keys of one layer, over `ids` [rows, tokens]: [key heads, width]."""
    count = model.config.get_text_config(decoder=True).num_hidden_layers
    require_whole("layer", layer, 0, count - 1, do="pass layer=0")
    cache = DynamicCache(config=model.config)
    model(input_ids=ids, **with_cache(cache), use_cache=True, logits_to_keep=1)
    return cast(Tensor, cast(DynamicLayer, cache.layers[layer]).keys).abs().mean((0, 2))


def outlier_ratio(channels: Tensor) -> float:
    """The largest channel against the median one of its head; the largest of all heads."""
    return float((channels.amax(-1) / channels.median(-1).values).max())


def plant_key_outliers(model: PreTrainedModel, factor: float = 10.0, pairs: Sequence[int] = (13,)) -> PreTrainedModel:
    """A copy of a Llama-shaped `model` whose keys have channels `factor` times larger, and which computes the same.

    In every layer and head the keys' channels c and c + width / 2, for c in `pairs`, are multiplied by `factor`, and
    the queries' divided by it, so that their products are as before. It takes both channels of a pair, because rotary
    positions mix those two and no others. They are planted by hand: they have the shape of what KIVI and
    others saw in trained models, the same few channels for every token, not their cause.
    """
    planted = copy.deepcopy(model)
    attentions: list[Any] = [getattr(layer, "self_attn", None) for layer in getattr(planted.base_model, "layers", ())]
    _check(model, attentions, factor, pairs)
    with torch.no_grad():
        for attention in attentions:
            _scale(attention.k_proj, attention.head_dim, pairs, factor)
            _scale(attention.q_proj, attention.head_dim, pairs, 1 / factor)
    return planted


def _scale(projection: nn.Linear, width: int, pairs: Sequence[int], factor: float) -> None:
    """Output channels c and c + width / 2 of every head, weight and bias."""
    channels = [half + pair for pair in pairs for half in (0, width // 2)]
    for parameter in projection.parameters():
        parameter.unflatten(0, (-1, width))[:, channels] *= factor


def _check(model: PreTrainedModel, attentions: Sequence[Any], factor: float, pairs: Sequence[int]) -> None:
    shaped = attentions and all(type(getattr(each, "k_proj", None)) is nn.Linear for each in attentions)
    if not shaped or hasattr(attentions[0], "k_norm"):
        expected = "a Llama-shaped model of plain linear layers, with no norm between them and the product"
        raise WorkbookError(f"outlier keys in a {type(model).__name__}", expected, "plant them in load().model")
    require_number("factor", factor, below=math.inf, expected="a positive number", do="pass factor=10")
    count = attentions[0].head_dim // 2
    if not pairs or not all(isinstance(pair, int) and 0 <= pair < count for pair in pairs):
        expected = f"numbers of rotary pairs, from 0 and below {count}"
        raise WorkbookError(f"pairs is {pairs!r}", expected, "pass pairs=(1,)")
