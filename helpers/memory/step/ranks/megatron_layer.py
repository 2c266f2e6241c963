"""One decoder layer as Megatron-LM holds it on a rank: weights, what it keeps for the backward, the peak in its MLP.

Dense layers, mixtures of experts, and DeepSeek's latent attention. Experts lie on `expert` ranks, each with whole ones;
every rank gets as many tokens back as it sends, `experts_per_token` for each of its own: routing that is balanced, as
with --moe-expert-capacity-factor 1. Shape letters are those of `megatron`.
"""

from __future__ import annotations

from dataclasses import dataclass

from ....catalog.layers import Layer, Linear

BF16, FP32 = 2, 4
WHOLE = ("q_a_proj", "kv_a_proj_with_mqa")  # the down projections of latent attention, which every rank has


@dataclass(frozen=True)
class RankLayer:
    """A layer on a rank of `tensor` x `expert`, for a micro-batch whose tokens the `tensor` ranks share."""

    layer: Layer
    hidden: int
    tokens: int
    tensor: int = 1
    expert: int = 1

    @property
    def parameters(self) -> int:
        """All but the routed experts, which `expert_parameters` counts."""
        layer, attention = self.layer, self.layer.attention
        linears = attention.linears + layer.mlp.linears
        split = sum(linear.weights for linear in linears if linear.name not in WHOLE) // self.tensor
        whole = sum(linear.weights for linear in linears if linear.name in WHOLE)
        return split + whole + layer.norm_parameters + sum(attention.norm_vectors) + layer.mlp.router_parameters

    @property
    def expert_parameters(self) -> int:
        return expert_weights(self.layer) // (self.tensor * self.expert)

    @property
    def kept(self) -> int:
        """Bytes that stay from the forward: both norms' inputs and outputs, attention's tensors, and the MLP's."""
        norms = 4 * BF16 * self.hidden
        return self.tokens * (norms + self._attended() + self._kept_by_mlp()) // self.tensor + self._latents()

    def _attended(self) -> int:
        """Of a token: q, k, v and the output, the log-sum-exp, and what norms of q and k read (LayerNormLinear)."""
        one = self.layer.attention
        if one.mla:
            width = 2 * (one.mla.qk_nope_head_dim + one.mla.qk_rope_head_dim) + 2 * one.mla.v_head_dim
            return one.heads * (BF16 * width + FP32)
        before_norms = (one.heads + one.kv_heads) * one.head_dim if one.qk_norm else 0
        return BF16 * ((2 * one.heads + 2 * one.kv_heads) * one.head_dim + before_norms) + FP32 * one.heads

    def _latents(self) -> int:
        """What latent attention's norms read and write, whole on every rank of tensors: of q, and of k and v."""
        mla = self.layer.attention.mla
        if not mla:
            return 0
        return BF16 * self.tokens * (2 * (mla.q_lora_rank or 0) + 2 * mla.kv_lora_rank + mla.qk_rope_head_dim)

    def _kept_by_mlp(self) -> int:
        """Of a token: gate and up and their product (the fused SwiGLU); an expert's input besides, and the router's
        scores, before the softmax and after it."""
        mlp = self.layer.mlp
        dense = 3 * BF16 * shared_width(self.layer)
        routed = mlp.experts_per_token * BF16 * (self.hidden + 3 * mlp.ffn) if mlp.experts else 0
        return dense + routed + 2 * FP32 * mlp.experts

    @property
    def in_mlp(self) -> int:
        """Inside the backward of SwiGLU: gradients of its three tensors, the product gone, and of the hidden states.

        Of experts also that of their outputs, in the order of the experts and in that of the tokens.
        """
        mlp = self.layer.mlp
        rows = mlp.experts_per_token if mlp.experts else 1
        width = rows * mlp.ffn if mlp.experts else shared_width(self.layer)
        return 2 * BF16 * self.tokens * (width + max(1, rows) * self.hidden) // self.tensor

    @property
    def fused_shapes(self) -> tuple[tuple[int, int], ...]:
        """The weights as Megatron holds them: q, k and v in one, gate and up in one; an expert's are of its own."""
        attention, mlp = self.layer.attention, self.layer.mlp
        q, kv = attention.heads * attention.head_dim, attention.kv_heads * attention.head_dim
        projections = ((q + 2 * kv, self.hidden), (self.hidden, q))
        found = tuple(map(_shape, attention.linears)) if attention.mla else projections
        if mlp.linears:
            wide = shared_width(self.layer)
            found = (*found, (2 * wide, self.hidden), (self.hidden, wide))
        return found + tuple(map(_shape, mlp.expert_linears))


def expert_weights(layer: Layer) -> int:
    """Values of all routed experts of a layer."""
    return layer.mlp.experts * sum(linear.weights for linear in layer.mlp.expert_linears)


def shared_width(layer: Layer) -> int:
    """The width of the MLP that every token passes: the dense one, or the shared experts; 0 without."""
    return layer.mlp.linears[0].outputs if layer.mlp.linears else 0


def _shape(linear: Linear) -> tuple[int, int]:
    return linear.outputs, linear.inputs
