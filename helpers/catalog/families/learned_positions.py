"""Closed forms of the older dense families: LayerNorm, learned positions, biases."""

from __future__ import annotations

from dataclasses import replace

from ..config import ConfigKeys
from ..layers import Attention, Layer, Linear, Mlp
from ..parts import assemble, derived_head_dim, sizes
from ..shape import ModelShape


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
