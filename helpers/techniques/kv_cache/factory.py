"""A cache by name, for any causal language model of Transformers: `model.generate(past_key_values=...)` runs on it."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicLayer, DynamicSlidingWindowLayer

from ...catalog.errors import WorkbookError
from .evicting import EvictingLayer, watch
from .offloaded import Link, OffloadedCache, OffloadedLayer
from .plain import ConcatLayer, GrowingLayer, StaticLayer
from .plans import CachePlan, plan_of
from .quantized import QuantizedLayer
from .window import WindowLayer

Make = Callable[[], CacheLayerMixin]


def cache_of(
    model: PreTrainedModel, name: str | CachePlan, attention_mask: Tensor | None = None, **numbers: int
) -> Cache:
    """An empty cache for one batch through `model`: names and numbers as in `plan_of`.

    Layers with a sliding window of the model's own get a `WindowLayer` of that length, whatever the kind; layers that
    keep no plain keys and values (a recurrent state, another layer's keys) keep Transformers' own. `attention_mask`
    [rows, tokens], that of the prompts, is needed by "window" and "heavy" when they are padded on the left.

        cache = cache_of(model, "window:128+4", attention_mask=mask)
        model.generate(ids, attention_mask=mask, past_key_values=cache)
    """
    plan = plan_of(name, **numbers)
    if not hasattr(model, "config"):
        raise WorkbookError(
            f"a model of type {type(model).__name__}", "a causal language model of Transformers", "pass load().model"
        )
    padding = None if attention_mask is None else _padding(attention_mask)
    if plan.kind == "heavy":
        _require_eager(model)
        watch(model)
    link = Link() if plan.kind == "offloaded" else None
    make = _maker(plan, padding, link)
    layers = [_layer(own, make, plan) for own in DynamicCache(config=model.config).layers]
    return Cache(layers=layers) if link is None else OffloadedCache(layers, link)


def _maker(plan: CachePlan, padding: Tensor | None, link: Link | None) -> Make:
    """What makes a layer without a window of its own."""
    if plan.bits:
        return functools.partial(QuantizedLayer, plan.bits, plan.keys, plan.group, plan.residual)
    return {
        "concat": ConcatLayer,
        "dynamic": functools.partial(GrowingLayer, plan.step),
        "static": functools.partial(StaticLayer, plan.max_tokens, plan.batch),
        "window": functools.partial(WindowLayer, plan.window, plan.sinks, padding),
        "offloaded": functools.partial(OffloadedLayer, plan.step, link),
        "heavy": functools.partial(EvictingLayer, plan.heavy, plan.recent, padding),
    }[plan.kind]


def _layer(own: CacheLayerMixin, make: Make, plan: CachePlan) -> CacheLayerMixin:
    """Ours in the place of `own`, the layer that Transformers would take."""
    if type(own) is DynamicSlidingWindowLayer:
        shorter = plan.kind == "window" and plan.window < own.sliding_window
        return WindowLayer(plan.window if shorter else own.sliding_window, sliding=True)
    return make() if type(own) is DynamicLayer else own


def _padding(attention_mask: Tensor) -> Tensor:
    """Padding tokens on the left of each row."""
    on_left = attention_mask.cumsum(-1) == 0
    if attention_mask.dim() != 2 or not torch.equal(on_left, attention_mask == 0) or on_left.all(-1).any():
        raise WorkbookError(
            f"an attention mask of shape {list(attention_mask.shape)} with padding elsewhere",
            "[rows, tokens], zeros on the left and ones on the right, at least a one",
            'tokenize with padding_side="left"',
        )
    return on_left.sum(-1)


def _require_eager(model: PreTrainedModel) -> None:
    if model.config._attn_implementation != "eager":
        raise WorkbookError(
            f"eviction by attention score with {model.config._attn_implementation!r} attention",
            "eager attention: the others never make the scores",
            'call model.set_attn_implementation("eager") first',
        )
