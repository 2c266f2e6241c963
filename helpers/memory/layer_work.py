"""What one decoder layer computes for a token: the weights that it meets, and attention's FLOPs. No torch."""

from __future__ import annotations

from ..catalog.layers import Attention, Layer
from ..catalog.shape import ModelShape


def weights_used(model: ModelShape) -> int:
    """Weights that one token is multiplied by, without the head's: not embeddings, norms and biases.

    WorkbookError for a family whose layers are not known one by one.
    """
    model.active_parameters  # noqa: B018  refuses such a family
    return sum(linear.weights for linear in model.projections) + sum(map(weights_met, model.layers))


def weights_met(layer: Layer) -> int:
    """Weights of one layer that a token is multiplied by: attention, the MLP or its share of experts, the router."""
    chosen = sum(linear.weights for linear in layer.mlp.expert_linears) * layer.mlp.experts_per_token
    return (
        sum(linear.weights for linear in layer.attention.linears + layer.mlp.linears)
        + chosen
        + (layer.mlp.router_parameters)
    )


def attention_flops(attention: Attention, tokens: int) -> int:
    """Scores and their sums of values, for every one of `tokens` queries over what it may look back on.

    A multiply and an add for each query, key and channel, once for the scores and once for the values: 4 where both
    are as wide. One more token costs the difference to `tokens + 1`. Without an image attention to one does nothing.
    """
    if attention.crossed:
        return 0
    window = min(attention.window or tokens, tokens)
    pairs = window * (window + 1) // 2 + (tokens - window) * window
    mla = attention.mla
    widths = mla.qk_nope_head_dim + mla.qk_rope_head_dim + mla.v_head_dim if mla else 2 * attention.head_dim
    return 2 * pairs * attention.heads * widths
