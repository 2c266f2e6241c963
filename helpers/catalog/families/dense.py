"""Closed forms of the dense families with RMSNorm and rotary positions, from Llama to Gemma 3."""

from __future__ import annotations

from collections.abc import Sequence

from ..config import ConfigKeys
from ..layers import Layer, Linear, Mlp
from ..parts import (
    FULL,
    WINDOW,
    assemble,
    fused_attention,
    gated_mlp,
    grouped_attention,
    prenorm_layer,
    qwen_windows,
    require_multiple,
    sizes,
    windows_of,
)
from ..shape import ModelShape


def llama(keys: ConfigKeys, source: str) -> ModelShape:
    """Llama 1, 2, 3.x: grouped-query attention, SwiGLU, RMSNorm, rotary positions."""
    hidden, count, heads = sizes(keys)
    require_multiple(keys, hidden, heads)
    bias = keys.flag("attention_bias", False)
    attention = grouped_attention(keys, hidden, heads, kv_default=heads, bias=bias)
    mlp = gated_mlp(hidden, keys.whole("intermediate_size", 11008), keys, bias=keys.flag("mlp_bias", False))
    return assemble(keys, source, "llama", hidden, [prenorm_layer(attention, mlp, hidden)] * count, vocab=32000)


def mistral(keys: ConfigKeys, source: str) -> ModelShape:
    """Mistral: Llama's shape with a sliding window in every layer, unless it is null."""
    hidden, count, heads = sizes(keys)
    window = keys.optional_whole("sliding_window", 4096)
    attention = grouped_attention(keys, hidden, heads, kv_default=8, window=window)
    mlp = gated_mlp(hidden, keys.whole("intermediate_size", 14336), keys)
    layers = [prenorm_layer(attention, mlp, hidden)] * count
    return assemble(keys, source, "mistral", hidden, layers, vocab=32000, positions=4096 * 32)


def phi3(keys: ConfigKeys, source: str) -> ModelShape:
    """Phi-3 and Phi-4: Llama's shape with q, k and v in one matrix, and gate and up in another."""
    hidden, count, heads = sizes(keys)
    ffn, window = keys.whole("intermediate_size", 8192), keys.optional_whole("sliding_window", None)
    attention = fused_attention(keys, hidden, heads, kv_default=heads, window=window)
    fused = (Linear("gate_up_proj", hidden, 2 * ffn), Linear("down_proj", ffn, hidden))
    mlp = Mlp(ffn, True, keys.word("hidden_act", "silu"), fused)
    layers = [prenorm_layer(attention, mlp, hidden)] * count
    return assemble(keys, source, "phi3", hidden, layers, vocab=32064, positions=4096)


def qwen2(keys: ConfigKeys, source: str) -> ModelShape:
    """Qwen2 and Qwen2.5: Llama's shape with a bias on q, k and v only."""
    hidden, count, heads = sizes(keys)
    mlp = gated_mlp(hidden, keys.whole("intermediate_size", 22016), keys)
    attentions = (
        grouped_attention(keys, hidden, heads, kv_default=32, bias=True, out_bias=False, window=window)
        for window in qwen_windows(keys, count)
    )
    layers = [prenorm_layer(attention, mlp, hidden) for attention in attentions]
    return assemble(keys, source, "qwen2", hidden, layers, vocab=151936, positions=32768)


def qwen3(keys: ConfigKeys, source: str) -> ModelShape:
    """Qwen3: an explicit head_dim, and a norm on each head's q and k."""
    hidden, count, heads = sizes(keys)
    mlp = gated_mlp(hidden, keys.whole("intermediate_size", 22016), keys)
    bias = keys.flag("attention_bias", False)
    attentions = (
        grouped_attention(keys, hidden, heads, kv_default=32, head_dim=128, bias=bias, qk_norm=True, window=window)
        for window in qwen_windows(keys, count)
    )
    layers = [prenorm_layer(attention, mlp, hidden) for attention in attentions]
    return assemble(keys, source, "qwen3", hidden, layers, vocab=151936, positions=32768)


def gemma2(keys: ConfigKeys, source: str) -> ModelShape:
    """Gemma 2: four norms a layer, every other layer with a window, embedding shared with the head."""
    hidden, count, heads = sizes(keys)
    kinds = keys.per_layer("layer_types", count) or [FULL if i % 2 else WINDOW for i in range(count)]
    layers = _gemma_layers(keys, hidden, heads, kinds, qk_norm=False)
    return assemble(keys, source, "gemma2", hidden, layers, vocab=256000, tied=True, positions=8192)


def gemma3_text(keys: ConfigKeys, source: str) -> ModelShape:
    """Gemma 3's language model: Gemma 2 with a norm on q and k, and five windowed layers to a full one.

    The hub's Gemma 3 4B leaves its number of heads out, so here that one has a default: 8.
    """
    hidden, count, heads = sizes(keys, heads_default=8)
    keys.require(
        not keys.flag("use_bidirectional_attention", False),
        "use_bidirectional_attention",
        "is true",
        "false: an encoder, which sees both ways, keeps no cache and predicts no next token",
    )
    every = keys.whole("sliding_window_pattern", 6)
    kinds = keys.per_layer("layer_types", count) or [WINDOW if (i + 1) % every else FULL for i in range(count)]
    layers = _gemma_layers(keys, hidden, heads, kinds, qk_norm=True)
    return assemble(keys, source, "gemma3_text", hidden, layers, vocab=262208, tied=True, positions=131072)


def _gemma_layers(keys: ConfigKeys, hidden: int, heads: int, kinds: Sequence[str], *, qk_norm: bool) -> list[Layer]:
    """Layers with norms before and after both attention and MLP; the window where the kind says so."""
    require_multiple(keys, hidden, heads)
    bias, window = keys.flag("attention_bias", False), keys.optional_whole("sliding_window", 4096)
    ffn = keys.whole("intermediate_size", 9216)
    mlp = gated_mlp(hidden, ffn, keys, key="hidden_activation", activation="gelu_pytorch_tanh")
    attentions = [
        grouped_attention(keys, hidden, heads, kv_default=4, head_dim=256, bias=bias, qk_norm=qk_norm, window=each)
        for each in windows_of(keys, kinds, window)
    ]
    return [Layer(attention, mlp, 4, (hidden,) * 4) for attention in attentions]
