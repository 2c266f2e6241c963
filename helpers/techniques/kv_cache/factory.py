"""A cache by name, ours or Transformers' own, for any of its causal language models to `generate` with."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel, QuantizedCache, StaticCache
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicLayer, DynamicSlidingWindowLayer

from ...catalog.errors import WorkbookError, require_name
from .evicting import EvictingLayer, WindowLayer, watch
from .layers import ConcatLayer, GrowingLayer, StaticLayer
from .offloaded import Link, OffloadedCache, OffloadedLayer
from .plans import CachePlan, plan_of
from .quantized import QuantizedLayer

BACKENDS = {"quanto": "optimum.quanto", "hqq": "hqq"}  # of Transformers' QuantizedCache, and their packages
TRANSFORMERS_CACHES = ("dynamic", "static", "offloaded", "fp8", *BACKENDS)
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
        expected = "a causal language model of Transformers"
        raise WorkbookError(f"a model of type {type(model).__name__}", expected, "pass load().model")
    padding = None if attention_mask is None else _padding(attention_mask)
    if plan.kind == "heavy":
        _require_eager(model)
        watch(model)
    link = Link()
    make = _maker(plan, padding, link)
    layers = [_layer(own, make, plan) for own in DynamicCache(config=model.config).layers]
    return OffloadedCache(layers, link) if plan.kind == "offloaded" else Cache(layers=layers)


def _maker(plan: CachePlan, padding: Tensor | None, link: Link) -> Make:
    """What makes a layer without a window of its own."""
    if plan.bits:
        return functools.partial(QuantizedLayer, plan.bits, plan.keys, plan.group, plan.residual)
    makers: dict[str, Make] = {
        "concat": ConcatLayer,
        "dynamic": functools.partial(GrowingLayer, plan.step),
        "static": functools.partial(StaticLayer, plan.max_tokens, plan.batch),
        "window": functools.partial(WindowLayer, plan.window, plan.sinks, padding),
        "offloaded": functools.partial(OffloadedLayer, plan.step, link),
        "heavy": functools.partial(EvictingLayer, plan.heavy, plan.recent, padding),
    }
    return makers[plan.kind]


def _layer(own: Any, make: Make, plan: CachePlan) -> Any:
    """Ours in the place of `own`, the layer that Transformers would take."""
    if type(own) is DynamicSlidingWindowLayer:
        shorter = plan.kind == "window" and plan.window < own.sliding_window
        return WindowLayer(plan.window if shorter else own.sliding_window, sliding=True)
    return make() if type(own) is DynamicLayer else own


def _padding(attention_mask: Tensor) -> Tensor:
    """Padding tokens on the left of each row."""
    on_left = attention_mask.cumsum(-1) == 0
    if attention_mask.dim() != 2 or not torch.equal(on_left, attention_mask == 0) or on_left.all(-1).any():
        what = f"an attention mask of shape {list(attention_mask.shape)} with padding elsewhere"
        expected = "[rows, tokens], zeros on the left and ones on the right, at least a one"
        raise WorkbookError(what, expected, 'tokenize with padding_side="left"')
    return on_left.sum(-1)


def _require_eager(model: PreTrainedModel) -> None:
    if model.config._attn_implementation != "eager":
        what = f"eviction by attention score with {model.config._attn_implementation!r} attention"
        expected = "eager attention: the others never make the scores"
        raise WorkbookError(what, expected, 'call model.set_attn_implementation("eager") first')


def transformers_cache(model: PreTrainedModel, name: str, max_tokens: int = 0, **options: int) -> Cache:
    """Transformers' cache called `name`, empty, for `model`.

    "dynamic" (concatenates), "static" (needs `max_tokens`), "offloaded" (CUDA only: it moves whole layers out and back
    on a second stream), "fp8" (one scale per tensor; 5.23 has it, 5.17 has not), "quanto" and "hqq" (integers with a
    residual window, from packages of their own; `options` such as nbits=4 are QuantizedCache's).
    """
    require_name("Transformers cache", name, TRANSFORMERS_CACHES)
    if name in ("dynamic", "offloaded"):
        if name == "offloaded" and not torch.cuda.is_available():
            what, expected = "Transformers' offloaded cache on this machine", "a CUDA device: it uses its streams"
            raise WorkbookError(what, expected, 'use cache_of(model, "offloaded"), which runs anywhere')
        return DynamicCache(config=model.config, offloading=name == "offloaded")
    if name == "static":
        if max_tokens < 1:
            expected = "the tokens of prompt and answer"
            raise WorkbookError("a static cache without a length", expected, "pass max_tokens=512")
        return StaticCache(config=model.config, max_cache_len=max_tokens)
    return _quantized(model, name, **options)


def _quantized(model: PreTrainedModel, backend: str, **options: int) -> Cache:
    package = BACKENDS.get(backend)
    if package and importlib.util.find_spec(package.partition(".")[0]) is None:
        do = 'use cache_of(model, "int4"), or install the package'
        raise WorkbookError(f"the {backend} backend of QuantizedCache is not installed", f"the package {package}", do)
    try:
        return QuantizedCache(backend, model.config, **options)
    except (ValueError, TypeError) as error:  # a model with windows, an option it has not, no such backend yet
        what, do = f"QuantizedCache({backend!r}): {str(error).splitlines()[0]}", 'use cache_of(model, "int4")'
        raise WorkbookError(what, "a model with full attention only, and options of that backend", do) from None
