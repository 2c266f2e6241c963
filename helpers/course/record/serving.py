"""Weights of an 8B shape in 16, 8 and 4 bits, its KV cache at long contexts, and one decode step."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

from ...catalog.errors import WorkbookError
from ...catalog.models import model
from ...catalog.setup import ServeSetup
from ...memory.closed_form import budget
from ...techniques.quantization import dense_linears
from .bench import Bench, Figure, sizes
from .scale import Scale


def setup_of(bench: Bench, **fields: object) -> dict[str, object]:
    """What is recorded of a decode step: `kind`, and the fields of its ServeSetup."""
    return {"kind": "decode", "model": bench.scale.serve, **fields}


def model_of(bench: Bench) -> nn.Module:
    """The serving model on the device, BF16, random weights, in eval mode."""
    config = model_config(bench)
    with torch.device(bench.device):
        return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()


def weights_bytes(scale: Scale, weights: str = "bf16") -> int:
    return budget.weight_bytes(ServeSetup(scale.serve, weights=weights))


def dense_weights(bench: Bench) -> Iterator[Figure]:
    """What 16 bits take."""
    yield from _weights(bench, "bf16", lambda: model_of(bench))


def weights_in(formats: tuple[str, ...]) -> Callable[[Bench], Iterator[Figure]]:
    """An experiment: bitsandbytes' layers made one by one, so that no dense copy of the model ever exists."""

    def run(bench: Bench) -> Iterator[Figure]:
        for name in formats:
            bench.gpu.clear()
            yield from _weights(bench, name, functools.partial(quantized_model, bench, name))

    return run


def _weights(bench: Bench, name: str, build: Callable[[], nn.Module]) -> Iterator[Figure]:
    """What the tensors hold, which the count of bytes predicts, and what the blocks take that they lie in."""
    before = bench.gpu.memory()
    kept = build()
    after = bench.gpu.memory()
    del kept
    setup = {"kind": "weights", "model": bench.scale.serve, "weights": name}
    yield Figure(name, "held", "bytes", setup, (after.requested - before.requested,))
    yield Figure(name, "allocated", "bytes", setup, (after.allocated - before.allocated,))


def quantized_model(bench: Bench, name: str) -> nn.Module:
    """The serving model with its linear layers as bitsandbytes keeps them: "int8", "nf4" or "nf4-dq".

    Values are random and one weight serves all layers of its shape; only sizes are measured. It has no rotary
    frequencies, so it cannot run.
    """
    config = model_config(bench)
    with torch.device("meta"):
        network = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    host = functools.cache(lambda *shape: torch.randn(*shape, dtype=torch.bfloat16))
    for path, linear in dense_linears(network, skip=("lm_head",)).items():
        owner, _, child = path.rpartition(".")
        made = _layer(name, linear, host(*linear.weight.shape)).to(bench.device)
        setattr(network.get_submodule(owner), child, made)
    return _filled(network, bench.device)


def _layer(name: str, linear: nn.Linear, weight: torch.Tensor) -> nn.Module:
    """On the host, with a dense weight: the move to the device is what quantizes."""
    nn_of = _bitsandbytes().nn
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
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                if tensor is not None and tensor.is_meta:
                    if id(tensor) not in made:
                        empty = torch.empty_like(tensor, device=device)
                        made[id(tensor)] = nn.Parameter(empty) if isinstance(tensor, nn.Parameter) else empty
                    tensors[name] = made[id(tensor)]
    return network


def _bitsandbytes():
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # it warns of kernels that it could download
    try:
        import bitsandbytes
    except ImportError:
        raise WorkbookError(
            "8 and 4 bits are measured with bitsandbytes, which is not installed",
            "the package bitsandbytes",
            "pip install --no-deps bitsandbytes",
        ) from None
    return bitsandbytes


def cache_needs_bytes(scale: Scale, context: int) -> int:
    """Weights, cache, one layer's copy while it grows, and a chunk's activations, mask and scores: a planned margin."""
    shape = model(scale.serve)
    parts = budget.serve(ServeSetup(shape, context=context)).parts
    heads = shape.layers[0].attention.heads * shape.layers[0].attention.head_dim
    repeated = 2 * 2 * context * heads  # K and V for every query head, where a mask keeps them from being shared
    activations = 16 * 2 * scale.chunk * shape.layers[0].mlp.linears[0].outputs
    mask = 3 * scale.chunk * context
    return parts.total + parts["kv_cache"] // len(shape.layers) + repeated + activations + mask


def long_contexts(bench: Bench) -> Iterator[Figure]:
    """What a cache holds at each context that fits, filled by real forwards in chunks. Transformers' DynamicCache."""
    scale, free = bench.scale, bench.gpu.free_bytes()
    contexts = tuple(context for context in scale.contexts if cache_needs_bytes(scale, context) <= free)
    network, held = model_of(bench), []
    with torch.no_grad():
        network(input_ids=_ids(bench, 1), use_cache=False, logits_to_keep=1)  # the workspaces are made here
        before, cache, seen = bench.gpu.memory().requested, DynamicCache(config=network.config), 0
        for context in contexts:
            while seen < context:
                count = min(scale.chunk, context - seen)
                network(input_ids=_ids(bench, count), past_key_values=cache, use_cache=True, logits_to_keep=1)
                seen += count
            held.append(bench.gpu.memory().requested - before)
    setup = {"kind": "kv cache", "model": scale.serve, "kv": "bf16"}
    yield Figure(f"{scale.serve}, one user", "held", "bytes", setup, tuple(held), contexts, "tokens")


def decode_step(bench: Bench) -> Iterator[Figure]:
    """One token after a long prompt: weights, cache, and the copy of a layer's cache that Transformers makes."""
    before, context = bench.gpu.memory(), bench.scale.decode_context
    network, cache = model_of(bench), DynamicCache(config=model_config(bench))

    def forward(tokens: int) -> None:
        network(input_ids=_ids(bench, tokens), past_key_values=cache, use_cache=True, logits_to_keep=1)

    with torch.no_grad():
        forward(context - 1)
        peak = bench.peak_over(before, lambda: forward(1))
    yield from sizes(f"one token after {context - 1:,}", setup_of(bench, context=context), peak)


def model_config(bench: Bench):
    return AutoConfig.for_model(**model(bench.scale.serve).config)


def _ids(bench: Bench, tokens: int) -> torch.Tensor:
    return torch.zeros(1, tokens, dtype=torch.long, device=bench.device)
