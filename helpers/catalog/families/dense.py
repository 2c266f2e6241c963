"""Closed forms of the dense families: RMSNorm and rotary positions, Llama to Gemma 3; LayerNorm, learned positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..config import ConfigKeys
from ..layers import Attention, Layer, Linear, Mlp
from ..parts import (
    FULL,
    WINDOW,
    assemble,
    derived_head_dim,
    fused_attention,
    gated_mlp,
    grouped_attention,
    prenorm_layer,
    qwen_windows,
    require_multiple,
    rotated_layers,
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


def smollm3(keys: ConfigKeys, source: str) -> ModelShape:
    """SmolLM3: Llama's shape, of which every fourth layer has no positions."""
    hidden, count, heads = sizes(keys)
    bias, rotated = keys.flag("attention_bias", False), rotated_layers(keys, count)
    window = keys.optional_whole("sliding_window", None) if keys.flag("use_sliding_window", False) else None
    kinds = keys.per_layer("layer_types", count) or [FULL if window is None or one else WINDOW for one in rotated]
    mlp = gated_mlp(hidden, keys.whole("intermediate_size", 11008), keys, bias=keys.flag("mlp_bias", False))
    attentions = (
        grouped_attention(keys, hidden, heads, kv_default=4, bias=bias, window=each)
        for each in windows_of(keys, kinds, window)
    )
    layers = [
        prenorm_layer(replace(attention, rotary=rotary), mlp, hidden)
        for attention, rotary in zip(attentions, rotated, strict=True)
    ]
    return assemble(keys, source, "smollm3", hidden, layers, vocab=128256, tied=True, positions=32768)


def mllama_text_model(keys: ConfigKeys, source: str) -> ModelShape:
    """Llama 3.2 Vision: Llama's layers, and some that attend to an image's patches, with norms of q and k and gates.

    Without an image those are passed over. The embedding's eight rows for images are counted with the tower.
    """
    hidden, count, heads = sizes(keys)
    mlp = gated_mlp(hidden, keys.whole("intermediate_size", 14336), keys)
    own = grouped_attention(keys, hidden, heads, kv_default=8)
    crossed = grouped_attention(keys, hidden, heads, kv_default=8, qk_norm=True)
    plain = prenorm_layer(own, mlp, hidden)
    looks = Layer(replace(crossed, crossed=True, rotary=False), mlp, 2, (hidden, hidden, 1, 1))
    at = frozenset(keys.numbers("cross_attention_layers") or range(3, count, 5))
    layers = [looks if number in at else plain for number in range(count)]
    return assemble(keys, source, "mllama_text_model", hidden, layers, vocab=128256, positions=131072)


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
    expected = "false: an encoder, which sees both ways, keeps no cache and predicts no next token"
    sees_both_ways = keys.flag("use_bidirectional_attention", False)
    keys.require(not sees_both_ways, "use_bidirectional_attention", "is true", expected)
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


def gpt2(keys: ConfigKeys, source: str) -> ModelShape:
    """GPT-2: learned positions, biases everywhere, LayerNorm, q, k and v fused in one matrix."""
    hidden, count, heads = sizes(keys, "n_embd|hidden_size", "n_layer|num_hidden_layers", "n_head|num_attention_heads")
    expected = "false: half of an encoder-decoder is not a decoder model"
    keys.require(not keys.flag("add_cross_attention", False), "add_cross_attention", "is true", expected)
    ffn = keys.whole("n_inner", 4 * hidden)
    head_dim, activation = derived_head_dim(keys, hidden, heads), keys.word("activation_function", "gelu_new")
    projections = (Linear("c_attn", hidden, 3 * hidden, True), Linear("c_proj", hidden, hidden, True))
    attention = Attention(heads, heads, head_dim, projections)
    mlp = Mlp(ffn, False, activation, (Linear("c_fc", hidden, ffn, True), Linear("c_proj", ffn, hidden, True)))
    layers = [Layer(attention, mlp, 2, (hidden,) * 4)] * count
    positions_key = "n_positions|max_position_embeddings"
    shape = assemble(
        keys, source, "gpt2", hidden, layers, vocab=50257, tied=True, positions=1024, positions_key=positions_key
    )
    return replace(shape, learned_positions=shape.max_positions, norm="layernorm", final_norm_parameters=2 * hidden)


def opt(keys: ConfigKeys, source: str) -> ModelShape:
    """OPT: a position table two rows longer than its positions, and narrow embeddings in the 350M model."""
    hidden, count, heads = sizes(keys)
    bias, affine = keys.flag("enable_bias", True), keys.flag("layer_norm_elementwise_affine", True)
    ffn, width = keys.whole("ffn_dim", 3072), keys.whole("word_embed_proj_dim", hidden)
    head_dim, activation = derived_head_dim(keys, hidden, heads), keys.word("activation_function", "relu")
    linears = tuple(Linear(name, hidden, hidden, bias) for name in ("q_proj", "k_proj", "v_proj", "out_proj"))
    attention = Attention(heads, heads, head_dim, linears)
    mlp = Mlp(ffn, False, activation, (Linear("fc1", hidden, ffn, bias), Linear("fc2", ffn, hidden, bias)))
    layers = [Layer(attention, mlp, 2, (hidden,) * 4 if affine else ())] * count
    # Post-norm models (OPT-350m) have no norm after the last layer, nor do some old fine-tunes.
    last = keys.flag("do_layer_norm_before", True) and not keys.flag("_remove_final_layer_norm", False)
    projections = (Linear("project_in", width, hidden), Linear("project_out", hidden, width)) if width != hidden else ()
    shape = assemble(keys, source, "opt", hidden, layers, vocab=50272, tied=True)
    return replace(
        shape,
        learned_positions=shape.max_positions + 2,
        norm="layernorm",
        final_norm_parameters=2 * hidden if last and affine else 0,
        embedding_width=width,
        projections=projections,
    )
