"""Prefill and decode: what each of them computes, reads and writes. Integers, no torch."""

from __future__ import annotations

from dataclasses import dataclass

from ...catalog.formats import number_format
from ...catalog.layers import Attention
from ...catalog.setup import ServeSetup
from ...catalog.shape import ModelShape
from ...memory.closed_form.budget import decode_bytes, serve, weight_bytes
from ...memory.closed_form.work import Work


@dataclass(frozen=True)
class Phases:
    """The work of reading a prompt, and of decoding one token after it, for all users together."""

    prefill: Work
    decode: Work


def phases(setup: ServeSetup) -> Phases:
    """Prefill of `setup.context` tokens, and one decode step after them, for `setup.users` sequences.

    The bytes are the least that must move: weights once and the cache once; activations are left out. Prefill reads the
    weights once for the whole prompt; decode reads them for every token, and everybody's keys and values besides.
    FLOPs: 2 for each weight that a token uses, 4 for each query, key and channel of a head (causal, within the window);
    of the logits prefill needs one row per sequence.

    >>> both = phases(ServeSetup("llama-3-8b", context=2048))
    >>> round(both.prefill.intensity), round(both.decode.intensity, 2)
    (1818, 1.05)
    """
    model, users, context = setup.model, setup.users, setup.context
    table = model.vocab * model.embedding_width
    body = 2 * _weights_used(model)
    before, after = (
        sum(_attention_flops(layer.attention, tokens) for layer in model.layers) for tokens in (context, context + 1)
    )
    a_token = sum(layer.attention.kv_values_per_token for layer in model.layers)
    prompt_flops, token_flops = context * body + before + 2 * table, body + after - before + 2 * table
    written = users * number_format(setup.kv).storage_bytes(a_token)
    prefill = Work(users * prompt_flops, weight_bytes(setup), serve(setup).parts["kv_cache"])
    return Phases(prefill, Work(users * token_flops, decode_bytes(setup), written))


def _weights_used(model: ModelShape) -> int:
    """Weights that one token is multiplied by, without the head's: not embeddings, norms and biases."""
    model.active_parameters  # noqa: B018  refuses a family whose layers are not known one by one
    used = sum(linear.weights for linear in model.projections)
    for layer in model.layers:
        chosen = sum(linear.weights for linear in layer.mlp.expert_linears) * layer.mlp.experts_per_token
        router = layer.mlp.router_parameters
        used += sum(linear.weights for linear in layer.attention.linears + layer.mlp.linears) + chosen + router
    return used


def _attention_flops(attention: Attention, tokens: int) -> int:
    """Scores and their sums of values, for every one of `tokens` queries over what it may look back on."""
    window = min(attention.window or tokens, tokens)
    pairs = window * (window + 1) // 2 + (tokens - window) * window
    mla = attention.mla
    widths = mla.qk_nope_head_dim + mla.qk_rope_head_dim + mla.v_head_dim if mla else 2 * attention.head_dim
    return 2 * pairs * attention.heads * widths
