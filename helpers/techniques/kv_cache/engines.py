"""Transformers' own caches by name, to stand beside ours: what to use at work."""

from __future__ import annotations

import importlib.util

import torch
from transformers import DynamicCache, PreTrainedModel, QuantizedCache, StaticCache
from transformers.cache_utils import Cache

from ...catalog.errors import WorkbookError, unknown_name

BACKENDS = {"quanto": "optimum.quanto", "hqq": "hqq"}
NAMES = ("dynamic", "static", "offloaded", "fp8", *BACKENDS)


def transformers_cache(model: PreTrainedModel, name: str, max_tokens: int = 0, **options: int) -> Cache:
    """Transformers' cache called `name`, empty, for `model`.

    "dynamic" (concatenates), "static" (needs `max_tokens`), "offloaded" (CUDA only: it moves whole layers out and back
    on a second stream), "fp8" (one scale per tensor; 5.23 has it, 5.17 has not), "quanto" and "hqq" (integers with a
    residual window, from packages of their own; `options` such as nbits=4 are QuantizedCache's). WorkbookError says
    what is missing.
    """
    if name not in NAMES:
        raise unknown_name("Transformers cache", name, NAMES)
    if name in ("dynamic", "offloaded"):
        if name == "offloaded" and not torch.cuda.is_available():
            raise WorkbookError(
                "Transformers' offloaded cache on this machine",
                "a CUDA device: it uses its streams",
                'use cache_of(model, "offloaded"), which runs anywhere',
            )
        return DynamicCache(config=model.config, offloading=name == "offloaded")
    if name == "static":
        if max_tokens < 1:
            raise WorkbookError(
                "a static cache without a length", "the tokens of prompt and answer", "pass max_tokens=512"
            )
        return StaticCache(config=model.config, max_cache_len=max_tokens)
    return _quantized(model, name, options)


def _quantized(model: PreTrainedModel, backend: str, options: dict[str, int]) -> Cache:
    package = BACKENDS.get(backend)
    if package and importlib.util.find_spec(package.partition(".")[0]) is None:
        raise WorkbookError(
            f"the {backend} backend of QuantizedCache is not installed",
            f"the package {package}",
            'use cache_of(model, "int4"), or install the package',
        )
    try:
        return QuantizedCache(backend, model.config, **options)
    except (ValueError, TypeError) as error:  # a model with windows, an option it has not, no such backend yet
        raise WorkbookError(
            f"QuantizedCache({backend!r}): {str(error).splitlines()[0]}",
            "a model with full attention only, and options of that backend",
            'use cache_of(model, "int4")',
        ) from None
