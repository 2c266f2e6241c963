"""Weights of an 8B shape in 16, 8 and 4 bits, its KV cache at long contexts, one decode step in bytes and in time."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, DynamicCache, PreTrainedConfig

from ...catalog.by_transformers import transformers_config, with_cache
from ...catalog.errors import require_package
from ...catalog.models import model
from ...catalog.serve_setup import ServeSetup
from ...memory import budget, measure
from ...techniques.quantization import dense_linears
from .target import ExperimentSizes, MeasuredFigure, Target, peak_figures, six_digits


def decode_setup(target: Target, context: int) -> dict[str, object]:
    """What is recorded of a decode step."""
    return {"kind": "decode", "model": target.sizes.serve, "context": context}


def model_of(target: Target) -> nn.Module:
    """The serving model on the device, BF16, random weights, in eval mode."""
    config = model_config(target)
    with torch.device(target.device):
        return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()


def weights_bytes(sizes: ExperimentSizes, weights: str = "bf16") -> int:
    return budget.weight_bytes(ServeSetup(sizes.serve, weights=weights))


def weights_in(*formats: str) -> Callable[[Target], Iterator[MeasuredFigure]]:
    """An experiment: what the tensors hold, which the count of bytes predicts, and what the blocks under them take.

    bitsandbytes' layers are made one by one, so that no dense copy of the model ever exists.
    """

    def run(target: Target) -> Iterator[MeasuredFigure]:
        for name in formats:
            target.gpu.clear()
            before = target.gpu.memory()
            kept = model_of(target) if name == "bf16" else quantized_model(target, name)
            after = target.gpu.memory()
            del kept
            setup = {"kind": "weights", "model": target.sizes.serve, "weights": name}
            yield MeasuredFigure(name, "held", "bytes", setup, (after.requested - before.requested,))
            yield MeasuredFigure(name, "allocated", "bytes", setup, (after.allocated - before.allocated,))

    return run


def quantized_model(target: Target, name: str) -> nn.Module:
    """The serving model with its linear layers as bitsandbytes keeps them: "int8", "nf4" or "nf4-dq".

    Values are random and one weight serves all layers of its shape; only sizes are measured. It has no rotary
    frequencies, so it cannot run.
    """
    config = model_config(target)
    with torch.device("meta"):
        network = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    host = functools.cache(lambda *shape: torch.randn(*shape, dtype=torch.bfloat16))
    for path, linear in dense_linears(network, skip=("lm_head",)).items():
        owner, _, child = path.rpartition(".")
        made = _layer(name, linear, host(*linear.weight.shape)).to(target.device)
        setattr(network.get_submodule(owner), child, made)
    return _filled(network, target.device)


def _layer(name: str, linear: nn.Linear, weight: torch.Tensor) -> nn.Module:
    """On the host, with a dense weight: the move to the device is what quantizes."""
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # it warns of kernels that it could download
    nn_of = require_package("bitsandbytes", "a model in 8 or 4 bits").nn
    shape = linear.in_features, linear.out_features, linear.bias is not None
    if name == "int8":
        made = nn_of.Linear8bitLt(*shape, has_fp16_weights=False, device="meta")
        made.weight = nn_of.Int8Params(weight, requires_grad=False, has_fp16_weights=False)
    else:
        options = {"compress_statistics": name == "nf4-dq", "quant_type": "nf4"}
        made = nn_of.Linear4bit(*shape, device="meta", **options)
        made.weight = nn_of.Params4bit(weight, requires_grad=False, module=made, **options)
    if linear.bias is not None:
        made.bias = nn.Parameter(torch.zeros(linear.out_features, dtype=torch.bfloat16), requires_grad=False)
    return made


def _filled(network: nn.Module, device: str) -> nn.Module:
    """What is still on the meta device gets memory; tied weights stay one."""
    made: dict[int, torch.Tensor] = {}
    for module in network.modules():
        slots: tuple[dict[str, Any], ...] = (module._parameters, module._buffers)
        for tensors in slots:
            for name, tensor in tensors.items():
                if tensor is not None and tensor.is_meta:
                    if id(tensor) not in made:
                        empty = torch.empty_like(tensor, device=device)
                        made[id(tensor)] = nn.Parameter(empty) if isinstance(tensor, nn.Parameter) else empty
                    tensors[name] = made[id(tensor)]
    return network


def cache_needs_bytes(sizes: ExperimentSizes, context: int) -> int:
    """Weights, cache, one layer's copy while it grows, and a chunk's activations, mask and scores: a planned margin."""
    shape = model(sizes.serve)
    parts = budget.serve(ServeSetup(shape, context=context)).held
    heads = shape.layers[0].attention.heads * shape.layers[0].attention.head_dim
    repeated = 2 * 2 * context * heads  # K and V for every query head, where a mask keeps them from being shared
    activations = 16 * 2 * sizes.chunk * shape.layers[0].mlp.linears[0].outputs
    mask = 3 * sizes.chunk * context
    return parts.total + parts["kv_cache"] // len(shape.layers) + repeated + activations + mask


def long_contexts(target: Target) -> Iterator[MeasuredFigure]:
    """What a cache holds at each context that fits, filled by real forwards in chunks. Transformers' DynamicCache."""
    sizes, free = target.sizes, target.gpu.free_bytes()
    contexts = tuple(context for context in sizes.contexts if cache_needs_bytes(sizes, context) <= free)
    network, held = model_of(target), []
    with torch.no_grad():
        _forward(network, target, 1)  # the workspaces are made here
        before, cache, seen = target.gpu.memory().requested, DynamicCache(config=model_config(target)), 0
        for context in contexts:
            while seen < context:
                count = min(sizes.chunk, context - seen)
                _forward(network, target, count, cache)
                seen += count
            held.append(target.gpu.memory().requested - before)
    setup = {"kind": "kv cache", "model": sizes.serve, "kv": "bf16"}
    yield MeasuredFigure(f"{sizes.serve}, one user", "held", "bytes", setup, tuple(held), contexts, "tokens")


def decode_step(target: Target) -> Iterator[MeasuredFigure]:
    """One token after a long prompt: weights, cache, and the copy of a layer's cache that Transformers makes."""
    before, context = target.gpu.memory(), target.sizes.decode_context
    network, cache = model_of(target), DynamicCache(config=model_config(target))
    with torch.no_grad():
        _forward(network, target, context - 1, cache)
        peak = target.peak_over(before, lambda: _forward(network, target, 1, cache))
    yield from peak_figures(f"one token after {context - 1:,}", decode_setup(target, context), peak)


def decoding(target: Target) -> Iterator[MeasuredFigure]:
    """One token of an 8B shape without a cache, replayed as a CUDA graph: little but its weights is read."""
    setup, network = decode_setup(target, 1), model_of(target)
    token = torch.ones(1, 1, dtype=torch.long, device=target.device)
    with torch.inference_mode():
        run = measure.graphed(lambda: network(token, use_cache=False))
        seconds = measure.fastest(run, target.device)
    yield MeasuredFigure(f"{target.sizes.serve}, one token", "time", "s", setup, (six_digits(seconds),))


def model_config(target: Target) -> PreTrainedConfig:
    return transformers_config(model(target.sizes.serve).config)


def _forward(network: nn.Module, target: Target, tokens: int, cache: DynamicCache | None = None) -> None:
    ids = torch.zeros(1, tokens, dtype=torch.long, device=target.device)
    network(input_ids=ids, **with_cache(cache), use_cache=cache is not None, logits_to_keep=1)
