"""Prefill and decode: what each of them computes, reads and writes. Integers, no torch."""

from __future__ import annotations

from dataclasses import dataclass

from ...catalog.serve_setup import ServeSetup
from ...memory.budget import decode_bytes, serve, weight_bytes
from ...memory.layer_work import attention_flops, weights_used
from ...memory.work import Work


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
    body = 2 * weights_used(model)
    before, after = (
        sum(attention_flops(layer.attention, tokens) for layer in model.layers) for tokens in (context, context + 1)
    )
    a_token = sum(layer.attention.kv_values_per_token for layer in model.layers)
    prompt_flops, token_flops = context * body + before + 2 * table, body + after - before + 2 * table
    written = users * setup.kv_format.storage_bytes(a_token)
    prefill = Work(users * prompt_flops, weight_bytes(setup), serve(setup).held["kv_cache"])
    return Phases(prefill, Work(users * token_flops, decode_bytes(setup), written))
