"""The linear layers that a quantized checkpoint leaves in 16 bits, by the patterns that its tool writes.

Each tool matches module names in a way of its own: Transformers by a part of the name, compressed-tensors by the whole
name or by a regular expression behind "re:", ModelOpt by wildcards, GPTQModel by a regular expression behind "-:". The
names here are those of checkpoints, with experts one by one; a fused projection goes with those that it is made of.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cache

from .foreign_patterns import compiled
from .layers import Layer, Linear
from .shape import ModelShape

# Where a checkpoint has the decoder layers: alone, or beside the towers of a multimodal model
_ROOTS = ("model.", "language_model.model.", "model.language_model.", "backbone.", "")
# Where a family has the linear layers of each part
_WITHIN = {
    "attention": ("self_attn", "linear_attn", "attn"),
    "mlp": ("mlp", "feed_forward", "block_sparse_moe"),
    "experts": ("mlp.experts.0", "mlp.experts", "feed_forward.experts", "block_sparse_moe.experts.0"),
}
_REGULAR = ("re:", "-:")
_SHARED = ("mlp.shared_experts", "mlp.shared_expert", "feed_forward.shared_expert")
# What else a linear layer is called, where a checkpoint or an engine joins or parts it
_SPELLED = {
    "q_proj": ("qkv_proj",),
    "k_proj": ("qkv_proj",),
    "v_proj": ("qkv_proj",),
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_proj": ("gate_up_proj",),
    "up_proj": ("gate_up_proj",),
    "gate_up_proj": ("gate_proj", "up_proj", "w1", "w3"),
    "down_proj": ("w2",),
    "in_proj_qkvz": ("in_proj_qkv", "in_proj_z"),
    "in_proj_qkv": ("in_proj_qkvz",),
    "in_proj_z": ("in_proj_qkvz",),
    "in_proj_ba": ("in_proj_b", "in_proj_a"),
    "in_proj_b": ("in_proj_ba",),
    "in_proj_a": ("in_proj_ba",),
    "q_a_proj": ("fused_qkv_a_proj",),
    "kv_a_proj_with_mqa": ("fused_qkv_a_proj",),
}


def marked(model: ModelShape, left_out: tuple[str, ...], quantized: tuple[str, ...] = ()) -> ModelShape:
    """`model`, whose linear layers are `kept` if they match `left_out`, or nothing of `quantized` where that is given.

    Of a family that is known to Transformers alone `by_transformers` does the same with its modules.
    """
    if model.counted or not (left_out or quantized):
        return model
    layers = (_layer(at, layer, left_out, quantized) for at, layer in enumerate(model.layers))
    return replace(model, layers=tuple(layers))


def is_left_out(paths: Iterable[str], left_out: tuple[str, ...], quantized: tuple[str, ...] = ()) -> bool:
    """Whether a linear layer that has these names stays in 16 bits.

    >>> is_left_out(["model.layers.3.self_attn.q_proj"], ("re:.*self_attn.*",))
    True
    >>> is_left_out(["model.layers.3.mlp.gate_proj"], ("model.layers.*.mlp.gate", "lm_head"))
    False
    """
    names = tuple(paths)
    if any(_matches(pattern, name) for pattern in left_out for name in names):
        return True
    return bool(quantized) and not any(_matches(pattern, name) for pattern in quantized for name in names)


def spelled(path: str) -> Iterator[str]:
    """The names that checkpoints have for the linear layer that Transformers calls `path`, in whatever model."""
    *within, name = path.split(".")
    at = within.index("layers") if "layers" in within else 0
    for root in _ROOTS if at else ("",):
        module = root + "".join(f"{step}." for step in within[at:])
        yield from (f"{module}{one}" for one in (name, *_SPELLED.get(name, ())))


def require_readable(pattern: str) -> None:
    """ValueError for a regular expression that is none, or that would take long."""
    if pattern.startswith(_REGULAR):
        compiled(pattern[3:] if pattern.startswith("re:") else pattern[2:])


def _layer(at: int, layer: Layer, left_out: tuple[str, ...], quantized: tuple[str, ...]) -> Layer:
    def judged(part: str, linears: tuple[Linear, ...], shared: bool = False) -> tuple[Linear, ...]:
        return tuple(
            replace(one, kept=is_left_out(_paths(at, part, one.name, shared), left_out, quantized)) for one in linears
        )

    attention, mlp = layer.attention, layer.mlp
    return replace(
        layer,
        attention=replace(attention, linears=judged("attention", attention.linears)),
        mlp=replace(
            mlp,
            linears=judged("mlp", mlp.linears, shared=mlp.experts > 0),
            expert_linears=judged("experts", mlp.expert_linears),
        ),
    )


def _paths(at: int, part: str, name: str, shared: bool) -> Iterator[str]:
    """The names of one linear layer, or of a shared expert's."""
    is_own = shared and name in ("gate_proj", "up_proj", "down_proj")
    for module in _SHARED if is_own else _WITHIN[part]:
        yield from spelled(f"model.layers.{at}.{module}.{name}")


@cache
def _matches(pattern: str, name: str) -> bool:
    if pattern.startswith(_REGULAR):
        return compiled(pattern[3:] if pattern.startswith("re:") else pattern[2:]).match(name) is not None
    if "*" in pattern or "?" in pattern:
        return fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*")
    return f".{pattern}." in f".{name}."
