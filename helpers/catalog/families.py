"""Closed forms: from a family's config to its tensors. One function per family, under `FAMILIES`.

Each is checked against the model that Transformers builds from the same config, tensor by tensor. Defaults
are those of Transformers' config class for the family; the three sizes that nobody should guess are
required.
"""

from __future__ import annotations

from collections.abc import Callable

from .config import ConfigKeys
from .layers import Attention, Layer, Linear, Mlp
from .parts import (
    FULL,
    WINDOW,
    assemble,
    derived_head_dim,
    expert_mlp,
    gated_mlp,
    grouped_attention,
    latent_attention,
    prenorm_layer,
    qwen_windows,
    require_multiple,
    sizes,
    windows_of,
)
from .shape import ModelShape


def gpt2(keys: ConfigKeys, source: str) -> ModelShape:
    """GPT-2: learned positions, biases everywhere, LayerNorm, q, k and v fused in one matrix."""
    hidden, count, heads = sizes(keys, "n_embd|hidden_size", "n_layer|num_hidden_layers", "n_head|num_attention_heads")
    keys.require(
        not keys.flag("add_cross_attention", False),
        "add_cross_attention",
        "is true",
        "false: half of an encoder-decoder is not a decoder model",
    )
    ffn = keys.whole("n_inner", 4 * hidden)
    attention = Attention(
        heads,
        heads,
        derived_head_dim(keys, hidden, heads),
        (Linear("c_attn", hidden, 3 * hidden, True), Linear("c_proj", hidden, hidden, True)),
    )
    mlp = Mlp(
        ffn,
        False,
        keys.word("activation_function", "gelu_new"),
        (Linear("c_fc", hidden, ffn, True), Linear("c_proj", ffn, hidden, True)),
    )
    layers = [Layer(attention, mlp, 2, (hidden,) * 4)] * count
    positions = keys.whole("n_positions|max_position_embeddings", 1024)
    return assemble(
        keys,
        source,
        "gpt2",
        hidden,
        layers,
        vocab=50257,
        tied=True,
        positions=positions,
        learned=positions,
        norm="layernorm",
        final_norm=2 * hidden,
    )


def opt(keys: ConfigKeys, source: str) -> ModelShape:
    """OPT: a position table two rows longer than its positions, and narrow embeddings in the 350M model."""
    hidden, count, heads = sizes(keys)
    bias, affine = keys.flag("enable_bias", True), keys.flag("layer_norm_elementwise_affine", True)
    ffn, width = keys.whole("ffn_dim", 3072), keys.whole("word_embed_proj_dim", hidden)
    attention = Attention(
        heads,
        heads,
        derived_head_dim(keys, hidden, heads),
        tuple(Linear(n, hidden, hidden, bias) for n in ("q_proj", "k_proj", "v_proj", "out_proj")),
    )
    mlp = Mlp(
        ffn,
        False,
        keys.word("activation_function", "relu"),
        (Linear("fc1", hidden, ffn, bias), Linear("fc2", ffn, hidden, bias)),
    )
    layers = [Layer(attention, mlp, 2, (hidden,) * 4 if affine else ())] * count
    # Post-norm models (OPT-350m) have no norm after the last layer, nor do some old fine-tunes.
    last = keys.flag("do_layer_norm_before", True) and not keys.flag("_remove_final_layer_norm", False)
    projections = (Linear("project_in", width, hidden), Linear("project_out", hidden, width)) if width != hidden else ()
    positions = keys.whole("max_position_embeddings", 2048)
    return assemble(
        keys,
        source,
        "opt",
        hidden,
        layers,
        vocab=50272,
        tied=True,
        positions=positions,
        learned=positions + 2,
        norm="layernorm",
        final_norm=2 * hidden if last and affine else 0,
        width=width,
        projections=projections,
    )


def llama(keys: ConfigKeys, source: str) -> ModelShape:
    """Llama 1, 2, 3.x: grouped-query attention, SwiGLU, RMSNorm, rotary positions."""
    hidden, count, heads = sizes(keys)
    require_multiple(keys, hidden, heads)
    bias = keys.flag("attention_bias", False)
    attention = grouped_attention(keys, hidden, heads, kv_default=heads, qkv_bias=bias, out_bias=bias)
    mlp = gated_mlp(hidden, keys.whole("intermediate_size", 11008), keys, bias=keys.flag("mlp_bias", False))
    return assemble(keys, source, "llama", hidden, [prenorm_layer(attention, mlp, hidden)] * count, vocab=32000)


def mistral(keys: ConfigKeys, source: str) -> ModelShape:
    """Mistral: Llama's shape with a sliding window in every layer, unless it is null."""
    hidden, count, heads = sizes(keys)
    window = keys.optional_whole("sliding_window", 4096)
    attention = grouped_attention(keys, hidden, heads, kv_default=8, window=window)
    mlp = gated_mlp(hidden, keys.whole("intermediate_size", 14336), keys)
    layers = [prenorm_layer(attention, mlp, hidden)] * count
    return assemble(keys, source, "mistral", hidden, layers, vocab=32000, positions_default=4096 * 32)


def mixtral(keys: ConfigKeys, source: str) -> ModelShape:
    """Mixtral: Mistral's attention, and eight experts where the MLP was."""
    hidden, count, heads = sizes(keys)
    window = keys.optional_whole("sliding_window", None)
    attention = grouped_attention(keys, hidden, heads, kv_default=8, window=window)
    mlp = expert_mlp(keys, hidden, keys.whole("intermediate_size", 14336), "num_local_experts|num_experts", 8, 2)
    layers = [prenorm_layer(attention, mlp, hidden)] * count
    return assemble(keys, source, "mixtral", hidden, layers, vocab=32000, positions_default=4096 * 32)


def qwen2(keys: ConfigKeys, source: str) -> ModelShape:
    """Qwen2 and Qwen2.5: Llama's shape with a bias on q, k and v only."""
    hidden, count, heads = sizes(keys)
    mlp = gated_mlp(hidden, keys.whole("intermediate_size", 22016), keys)
    layers = [
        prenorm_layer(grouped_attention(keys, hidden, heads, kv_default=32, qkv_bias=True, window=window), mlp, hidden)
        for window in qwen_windows(keys, count)
    ]
    return assemble(keys, source, "qwen2", hidden, layers, vocab=151936, positions_default=32768)


def qwen3(keys: ConfigKeys, source: str) -> ModelShape:
    """Qwen3: an explicit head_dim, and a norm on each head's q and k."""
    hidden, count, heads = sizes(keys)
    mlp = gated_mlp(hidden, keys.whole("intermediate_size", 22016), keys)
    bias = keys.flag("attention_bias", False)
    layers = [
        prenorm_layer(
            grouped_attention(
                keys,
                hidden,
                heads,
                kv_default=32,
                head_dim=128,
                qkv_bias=bias,
                out_bias=bias,
                qk_norm=True,
                window=window,
            ),
            mlp,
            hidden,
        )
        for window in qwen_windows(keys, count)
    ]
    return assemble(keys, source, "qwen3", hidden, layers, vocab=151936, positions_default=32768)


def qwen3_moe(keys: ConfigKeys, source: str) -> ModelShape:
    """Qwen3 MoE: Qwen3's attention; experts in each `decoder_sparse_step`-th layer but `mlp_only_layers`."""
    hidden, count, heads = sizes(keys)
    window = keys.optional_whole("sliding_window", 4096) if keys.flag("use_sliding_window", False) else None
    bias = keys.flag("attention_bias", False)
    attention = grouped_attention(
        keys, hidden, heads, kv_default=4, qkv_bias=bias, out_bias=bias, qk_norm=True, window=window
    )
    dense = gated_mlp(hidden, keys.whole("intermediate_size", 6144), keys)
    routed = "num_experts|num_local_experts"
    step, only_dense = keys.whole("decoder_sparse_step", 1), keys.layer_indices("mlp_only_layers")
    sparse = keys.whole(routed, 128, least=0) and expert_mlp(
        keys, hidden, keys.whole("moe_intermediate_size", 768), routed, 128, 8
    )
    mlps = [sparse if sparse and i not in only_dense and (i + 1) % step == 0 else dense for i in range(count)]
    layers = [prenorm_layer(attention, mlp, hidden) for mlp in mlps]
    return assemble(keys, source, "qwen3_moe", hidden, layers, vocab=151936, positions_default=32768)


def gemma2(keys: ConfigKeys, source: str) -> ModelShape:
    """Gemma 2: four norms a layer, every other layer with a window, embedding shared with the head."""
    hidden, count, heads = sizes(keys)
    require_multiple(keys, hidden, heads)
    bias, window = keys.flag("attention_bias", False), keys.optional_whole("sliding_window", 4096)
    kinds = keys.per_layer("layer_types", count) or [FULL if i % 2 else WINDOW for i in range(count)]
    mlp = gated_mlp(
        hidden,
        keys.whole("intermediate_size", 9216),
        keys,
        key="hidden_activation",
        activation="gelu_pytorch_tanh",
    )
    layers = [
        Layer(
            grouped_attention(
                keys, hidden, heads, kv_default=4, head_dim=256, qkv_bias=bias, out_bias=bias, window=each
            ),
            mlp,
            4,
            (hidden,) * 4,
        )
        for each in windows_of(keys, kinds, window)
    ]
    return assemble(keys, source, "gemma2", hidden, layers, vocab=256000, tied=True, positions_default=8192)


def deepseek_v3(keys: ConfigKeys, source: str) -> ModelShape:
    """DeepSeek-V3: latent attention, a few dense layers, then 256 routed experts and a shared one.

    Counts what Transformers builds: 671,026,404,352 parameters, without the checkpoint's
    multi-token-prediction layer. The router's `e_score_correction_bias` is a buffer, so it is not a
    parameter.
    """
    hidden, count, heads = sizes(keys)
    attention = latent_attention(keys, hidden, heads)
    dense = gated_mlp(hidden, keys.whole("intermediate_size", 18432), keys)
    sparse = expert_mlp(
        keys,
        hidden,
        keys.whole("moe_intermediate_size", 2048),
        "n_routed_experts|num_local_experts",
        256,
        8,
        shared=keys.whole("n_shared_experts", 1, least=0),
    )
    first = keys.whole("first_k_dense_replace", 3, least=0)
    layers = [prenorm_layer(attention, dense if i < first else sparse, hidden) for i in range(count)]
    return assemble(keys, source, "deepseek_v3", hidden, layers, vocab=129280, positions_default=4096)


FAMILIES: dict[str, Callable[[ConfigKeys, str], ModelShape]] = {
    f.__name__: f for f in (deepseek_v3, gemma2, gpt2, llama, mistral, mixtral, opt, qwen2, qwen3, qwen3_moe)
}
