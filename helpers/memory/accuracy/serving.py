"""Weights and KV cache that vLLM and SGLang logged, answered by the closed form, and what it cannot answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ...catalog.formats import number_format
from ...catalog.models import model
from ...catalog.serve_setup import ServeSetup
from .. import budget
from .cases import Case, model_config

ROPE_BYTES = 2  # vLLM keeps the cosines and sines of all positions, in the weights' type


def predict(case: Case) -> dict[str, int]:
    """Bytes by quantity; empty where the closed form has no answer (see `why`)."""
    quantity = next(iter(case.figures))
    answer = _ANSWERS.get(quantity)
    return {quantity: answer(case.setup)} if answer else {}


def why(case: Case) -> str:
    """What stands between the prediction and the figure, in one sentence; "" where there is nothing to say."""
    return _REASONS.get(case.name, "")


def _weights(setup: Mapping) -> int:
    """Weights over `ranks`, and on each the table of rotary cosines and sines that vLLM counts as loaded."""
    name = setup["model"]
    shape = model(model_config(name) if "/" in name else name)
    served = budget.weight_bytes(ServeSetup(shape, weights=setup["weights"]))
    rope_table = shape.max_positions * shape.layers[0].attention.head_dim * ROPE_BYTES
    return served // setup["ranks"] + rope_table


def _kv(setup: Mapping) -> int:
    shape = model(setup["model"])
    return shape.cache_bytes(setup["kv"], setup["tokens"])


def _keys(setup: Mapping) -> int:
    """K alone, of the heads that one of `ranks` has."""
    heads = setup["kv_heads"] // setup["ranks"]
    return number_format(setup["kv"]).storage_bytes(setup["tokens"] * setup["layers"] * heads * setup["head_dim"])


def _room(setup: Mapping) -> int:
    """What is left of the share: our weights, and the engine's own figures for the two parts that we cannot know."""
    outside = setup["measured_outside_torch_gib"] + setup["measured_activations_gib"]
    share = setup["total_gib"] * setup["utilization"] - outside
    return round(share * 2**30) - _weights({**setup, "ranks": 1})


_ANSWERS: dict[str, Callable[[Mapping], int]] = {
    "weights": _weights,
    "KV cache": _kv,
    "K cache": _keys,
    "room for KV": _room,
}
_REASONS = {
    "Llama-3.1-8B weights": "32 MiB of it are the rotary table of 131,072 positions",
    "R1-Distill-Qwen-14B weights on 2 GPUs": "about 0.16 GiB more than weights and rotary table: not explained",
    "LLaMA-13B KV of 2,048 tokens": "published with one decimal",
    "Llama-3-8B room for KV at 0.9": "with the engine's own figures for activations and for what is outside torch",
    "Llama-3-8B outside torch": "CUDA context and libraries: depends on driver and engine, no formula",
    "Llama-3-8B outside torch, 2 GPUs": "the same, with NCCL's buffers",
    "Llama-3-8B activations of the profile run": "of vLLM's own kernels; the budget has none of serving",
    "Llama-2-7B KV blocks": "8 MiB each, 57.4 GiB: what the profile run left",
    "Llama-2-70B KV blocks on 4 GPUs": "1.25 MiB each on a GPU, 25.5 GiB: what the profile run left",
}
