"""Closed forms of the families with a gated delta rule in most of their layers: Qwen3-Next and Qwen3.5."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..config import ConfigKeys
from ..layers import Attention, Delta, Linear, Mlp
from ..parts import FULL, assemble, expert_mlp, gated_linears, gated_mlp, grouped_attention, prenorm_layer, sizes
from ..shape import ModelShape

LINEAR = "linear_attention"


def qwen3_next(keys: ConfigKeys, source: str) -> ModelShape:
    """Qwen3-Next: three layers of four with a delta rule, its projections in two; experts beside a gated shared one."""
    count = sizes(keys)[1]
    step, only_dense = keys.whole("decoder_sparse_step", 1), keys.layer_indices("mlp_only_layers")
    dense, sparse = gated_mlp(keys.whole("hidden_size"), keys.whole("intermediate_size", 5632), keys), None
    if keys.whole("num_experts", 512, least=0):
        sparse = _gated_experts(keys, experts=512, used=10)
    mlps = [sparse if sparse and at not in only_dense and (at + 1) % step == 0 else dense for at in range(count)]
    return _hybrid(keys, source, "qwen3_next", mlps, kv_default=2, vocab=151936, fused=True)


def qwen3_5_text(keys: ConfigKeys, source: str) -> ModelShape:
    """Qwen3.5's dense language models: Qwen3-Next's layers, each projection by itself."""
    mlp = gated_mlp(keys.whole("hidden_size"), keys.whole("intermediate_size", 12288), keys)
    return _hybrid(keys, source, "qwen3_5_text", [mlp] * sizes(keys)[1], kv_default=4, vocab=248320)


def qwen3_5_moe_text(keys: ConfigKeys, source: str) -> ModelShape:
    """Qwen3.5's language models with experts in every layer."""
    mlp = _gated_experts(keys, experts=256, used=8)
    return _hybrid(keys, source, "qwen3_5_moe_text", [mlp] * sizes(keys)[1], kv_default=2, vocab=248320)


def _hybrid(
    keys: ConfigKeys, source: str, family: str, mlps: Sequence[Mlp], *, kv_default: int, vocab: int, fused: bool = False
) -> ModelShape:
    hidden, count, heads = sizes(keys)
    every = keys.whole("full_attention_interval", 4)
    kinds = keys.per_layer("layer_types", count) or [LINEAR if (at + 1) % every else FULL for at in range(count)]
    for kind in kinds:
        keys.require(kind in (LINEAR, FULL), "layer_types", f"holds {kind!r}", f"{LINEAR} or {FULL}")
    full = _gated_attention(keys, hidden, heads, kv_default)
    linear = _delta(keys, hidden, full, fused)
    layers = [
        prenorm_layer(linear if kind == LINEAR else full, mlp, hidden) for kind, mlp in zip(kinds, mlps, strict=True)
    ]
    return assemble(keys, source, family, hidden, layers, vocab=vocab, positions=32768)


def _gated_attention(keys: ConfigKeys, hidden: int, heads: int, kv_default: int) -> Attention:
    """Grouped attention whose q_proj has a gate for each value that attention returns."""
    bias = keys.flag("attention_bias", False)
    plain = grouped_attention(keys, hidden, heads, kv_default=kv_default, head_dim=256, bias=bias, qk_norm=True)
    q, *others = plain.linears
    return replace(plain, linears=(replace(q, outputs=2 * q.outputs), *others))


def _delta(keys: ConfigKeys, hidden: int, full: Attention, fused: bool) -> Attention:
    delta = Delta(
        keys.whole("linear_num_key_heads", 16),
        keys.whole("linear_num_value_heads", 32),
        keys.whole("linear_key_head_dim", 128),
        keys.whole("linear_value_head_dim", 128),
        keys.whole("linear_conv_kernel_dim", 4),
    )
    problem = f"is {delta.value_heads}, and {delta.key_heads} heads of keys share them"
    keys.require(not delta.value_heads % delta.key_heads, "linear_num_value_heads", problem, "a multiple of the latter")
    values, heads = delta.value_heads * delta.value_dim, delta.value_heads
    if fused:
        names = {"in_proj_qkvz": delta.channels + values, "in_proj_ba": 2 * heads}
    else:
        names = {"in_proj_qkv": delta.channels, "in_proj_z": values, "in_proj_b": heads, "in_proj_a": heads}
    linears = tuple(Linear(name, hidden, outputs) for name, outputs in names.items())
    linears += (Linear("out_proj", values, hidden),)
    return Attention(full.heads, full.kv_heads, full.head_dim, linears, (delta.value_dim,), delta=delta)


def _gated_experts(keys: ConfigKeys, *, experts: int, used: int) -> Mlp:
    """Routed experts, and a shared one of another width, behind a gate of its own."""
    hidden, ffn = keys.whole("hidden_size"), keys.whole("moe_intermediate_size", 512)
    routed = expert_mlp(keys, hidden, ffn, "num_experts", experts, used)
    shared = gated_linears(hidden, keys.whole("shared_expert_intermediate_size", 512))
    return replace(routed, linears=(*shared, Linear("shared_expert_gate", hidden, 1)))
