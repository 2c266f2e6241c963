"""Closed forms of the families with mixtures of experts; DeepSeek-V3's attention is latent besides."""

from __future__ import annotations

from dataclasses import replace

from ..config import ConfigKeys
from ..layers import Attention, Linear
from ..parts import (
    FULL,
    PIECES,
    WINDOW,
    assemble,
    expert_mlp,
    gated_mlp,
    grouped_attention,
    latent_attention,
    prenorm_layer,
    rotated_layers,
    sizes,
    windows_of,
)
from ..shape import ModelShape


def mixtral(keys: ConfigKeys, source: str) -> ModelShape:
    """Mixtral: Mistral's attention, and eight experts where the MLP was."""
    hidden, count, heads = sizes(keys)
    window = keys.optional_whole("sliding_window", None)
    attention = grouped_attention(keys, hidden, heads, kv_default=8, window=window)
    mlp = expert_mlp(keys, hidden, keys.whole("intermediate_size", 14336), "num_local_experts|num_experts", 8, 2)
    layers = [prenorm_layer(attention, mlp, hidden)] * count
    return assemble(keys, source, "mixtral", hidden, layers, vocab=32000, positions=4096 * 32)


def qwen3_moe(keys: ConfigKeys, source: str) -> ModelShape:
    """Qwen3 MoE: Qwen3's attention; experts in each `decoder_sparse_step`-th layer but `mlp_only_layers`."""
    hidden, count, heads = sizes(keys)
    window = keys.optional_whole("sliding_window", 4096) if keys.flag("use_sliding_window", False) else None
    bias = keys.flag("attention_bias", False)
    attention = grouped_attention(keys, hidden, heads, kv_default=4, bias=bias, qk_norm=True, window=window)
    dense = gated_mlp(hidden, keys.whole("intermediate_size", 6144), keys)
    routed = "num_experts|num_local_experts"
    step, only_dense = keys.whole("decoder_sparse_step", 1), keys.layer_indices("mlp_only_layers")
    sparse = keys.whole(routed, 128, least=0) and expert_mlp(
        keys, hidden, keys.whole("moe_intermediate_size", 768), routed, 128, 8
    )
    mlps = [sparse if sparse and i not in only_dense and (i + 1) % step == 0 else dense for i in range(count)]
    layers = [prenorm_layer(attention, mlp, hidden) for mlp in mlps]
    return assemble(keys, source, "qwen3_moe", hidden, layers, vocab=151936, positions=32768)


def deepseek_v3(keys: ConfigKeys, source: str) -> ModelShape:
    """DeepSeek-V3: latent attention, a few dense layers, then 256 routed experts and a shared one.

    Counts what Transformers builds: 671,026,404,352 parameters, without the checkpoint's multi-token-prediction layer.
    The router's `e_score_correction_bias` is a buffer, so it is not a parameter.
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
    return assemble(keys, source, "deepseek_v3", hidden, layers, vocab=129280, positions=4096)


def deepseek_v2(keys: ConfigKeys, source: str) -> ModelShape:
    """DeepSeek-V2 and V2-Lite: V3's layers, with two shared experts, and in V2-Lite a full projection for q."""
    hidden, count, heads = sizes(keys)
    attention = latent_attention(keys, hidden, heads, kv_default=heads)
    dense = gated_mlp(hidden, keys.whole("intermediate_size", 11008), keys)
    shared, ffn = keys.whole("n_shared_experts", 2, least=0), keys.whole("moe_intermediate_size", 1407)
    sparse = expert_mlp(keys, hidden, ffn, "n_routed_experts|num_local_experts", 64, 6, shared=shared)
    first = keys.whole("first_k_dense_replace", 0, least=0)
    layers = [prenorm_layer(attention, dense if at < first else sparse, hidden) for at in range(count)]
    return assemble(keys, source, "deepseek_v2", hidden, layers, vocab=102400)


def deepseek_v32(keys: ConfigKeys, source: str) -> ModelShape:
    """DeepSeek-V3.2: V3, and in each layer an indexer that chooses the tokens to attend to, by keys of its own.

    671,877,929,216 parameters as Transformers builds it, without the multi-token-prediction layer.
    """
    plain = deepseek_v3(keys, source)
    width, heads = keys.whole("index_head_dim", 128), keys.whole("index_n_heads", 64)
    indexer = (
        Linear("wq_b", keys.whole("q_lora_rank", 1536), heads * width),
        Linear("wk", plain.hidden, width),
        Linear("weights_proj", plain.hidden, heads),
    )
    layers = tuple(replace(one, attention=_indexed(one.attention, indexer, width)) for one in plain.layers)
    return replace(plain, family="deepseek_v32", layers=layers)


def _indexed(attention: Attention, indexer: tuple[Linear, ...], width: int) -> Attention:
    """With the indexer's projections, and the LayerNorm of its keys, which has a bias."""
    norms = (*attention.norm_vectors, width, width)
    return replace(attention, linears=(*attention.linears, *indexer), norm_vectors=norms, indexer=width)


def glm4_moe(keys: ConfigKeys, source: str) -> ModelShape:
    """GLM-4.5 and 4.6: grouped attention, biases on q, k and v; then DeepSeek's experts, without the MTP layer."""
    hidden, count, heads = sizes(keys)
    bias, qk_norm = keys.flag("attention_bias", False), keys.flag("use_qk_norm", False)
    attention = grouped_attention(
        keys, hidden, heads, kv_default=8, head_dim=hidden // heads, bias=bias, out_bias=False, qk_norm=qk_norm
    )
    dense = gated_mlp(hidden, keys.whole("intermediate_size", 10944), keys)
    shared, ffn = keys.whole("n_shared_experts", 1), keys.whole("moe_intermediate_size", 1408)
    sparse = expert_mlp(keys, hidden, ffn, "n_routed_experts|num_local_experts", 128, 8, shared=shared)
    first = keys.whole("first_k_dense_replace", 1, least=0)
    layers = [prenorm_layer(attention, dense if at < first else sparse, hidden) for at in range(count)]
    return assemble(keys, source, "glm4_moe", hidden, layers, vocab=151552, positions=131072)


def llama4_text(keys: ConfigKeys, source: str) -> ModelShape:
    """Llama 4's language model: layers that see pieces of 8,192 tokens, and a fourth of them all; a shared expert."""
    hidden, count, heads = sizes(keys)
    bias, rotated = keys.flag("attention_bias", False), rotated_layers(keys, count)
    kinds = keys.per_layer("layer_types", count) or [PIECES if one else FULL for one in rotated]
    piece, step = keys.optional_whole("attention_chunk_size", 8192), keys.whole("interleave_moe_layer_step", 1)
    dense = gated_mlp(hidden, keys.whole("intermediate_size_mlp", 16384), keys)
    sparse = expert_mlp(keys, hidden, keys.whole("intermediate_size", 8192), "num_local_experts", 16, 1, shared=1)
    router = Linear("router", hidden, sparse.experts)  # a linear layer here, so quantization takes it
    sparse = replace(sparse, linears=(*sparse.linears, router), router_parameters=0)
    told = keys.values.get("moe_layers") is not None
    experts = keys.layer_indices("moe_layers") if told else frozenset(range(step - 1, count, step))
    attentions = (
        grouped_attention(keys, hidden, heads, kv_default=8, head_dim=128, bias=bias, window=each)
        for each in windows_of(keys, kinds, piece, PIECES)
    )
    layers = [
        prenorm_layer(replace(attention, rotary=rotary), sparse if at in experts else dense, hidden)
        for at, (attention, rotary) in enumerate(zip(attentions, rotated, strict=True))
    ]
    return assemble(keys, source, "llama4_text", hidden, layers, vocab=202048, positions=131072)


def gpt_oss(keys: ConfigKeys, source: str) -> ModelShape:
    """GPT-OSS: biases on every projection, expert and router; a sink per head; every other layer has a window.

    Counts what Transformers builds in BF16. The released checkpoints hold the experts' matrices in MXFP4 (4 bits
    and an 8-bit scale for each 32 values), and all else in BF16.
    """
    hidden, count, heads = sizes(keys)
    bias, window = keys.flag("attention_bias", True), keys.optional_whole("sliding_window", 128)
    kinds = keys.per_layer("layer_types", count) or [FULL if i % 2 else WINDOW for i in range(count)]
    ffn = keys.whole("intermediate_size", 2880)
    mlp = expert_mlp(keys, hidden, ffn, "num_local_experts|num_experts", 128, 4, bias=True)
    attentions = (
        grouped_attention(keys, hidden, heads, kv_default=8, head_dim=64, bias=bias, window=each, sinks=True)
        for each in windows_of(keys, kinds, window)
    )
    layers = [prenorm_layer(attention, mlp, hidden) for attention in attentions]
    return assemble(keys, source, "gpt_oss", hidden, layers, vocab=201088, positions=131072)
