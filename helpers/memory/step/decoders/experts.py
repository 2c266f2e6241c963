"""The families with routed experts: a page of `decoder` for each, as in `families`. No torch."""

from __future__ import annotations

from ....catalog.layers import Attention, Linear, Mla, Mlp
from ..tape import FROZEN, Tensor
from .decoder import Decoder, PartlyRotated
from .linears import FP32


class Experts(Decoder):
    """Mixtral: a router, and experts whose products are grouped (`grouped_mm_experts_forward`).

    Every token is in `experts_per_token` of them, wherever they are: the bytes do not depend on the balance.
    """

    def mlp(self, x: Tensor, mlp: Mlp) -> Tensor:
        if not mlp.experts:
            return super().mlp(x, mlp)
        _, scores = self.router(x, mlp)
        return self.experts(x, scores, mlp)

    def router(self, x: Tensor, mlp: Mlp) -> tuple[Tensor, Tensor]:
        """The logits, which live as long as the layer's call of its experts, and the chosen scores."""
        tape, chosen = self.tape, self.tokens * mlp.experts_per_token
        logits = self._routed(x, mlp)
        probabilities = tape.cast(logits, FP32)
        probabilities = tape.keeps_result(probabilities)
        return logits, self._normalised(tape.chosen(probabilities, chosen))

    normalises = True  # where the config does not say it

    def _normalised(self, scores: Tensor) -> Tensor:
        """Divided in place by their sum, which the division keeps, and its numerator, too."""
        tape = self.tape
        if not self.model.config.get("norm_topk_prob", self.normalises):
            return scores
        total = tape.summed(scores, self.tokens)
        return tape.elementwise(scores, total, kept=(scores, total))

    def _routed(self, x: Tensor, mlp: Mlp) -> Tensor:
        weights = [self.weight(mlp.experts, self.model.hidden)]
        if self.router_bias:
            weights.append(self.weight(mlp.experts))
        x, weight, *bias = self.low(x, *weights)
        return self.tape.product(x, weight, self.tokens * mlp.experts, *bias, inner=self.model.hidden)

    router_bias = False

    def experts(self, x: Tensor, scores: Tensor, mlp: Mlp) -> Tensor:
        tape, chosen = self.tape, self.tokens * mlp.experts_per_token
        order = tape.new(chosen, 8), tape.new(chosen, 8)
        index = tape.new(chosen, 8)
        selected = tape.written_out(x, chosen * self.model.hidden, kept=(index,))
        del index
        weights = tape.written_out(scores, chosen, kept=(order[1],))
        out = self.grouped(selected, mlp.expert_linears[0], mlp.experts, order[0])
        out = self.gated(out)
        out = self.grouped(out, mlp.expert_linears[1], mlp.experts, order[0])
        weighted = tape.mul(out, weights)
        inverse = tape.new(chosen, 8)
        weighted = tape.written_out(weighted, weighted.values, kept=(inverse,))
        total = tape.written_out(weighted, self.tokens * self.model.hidden)
        return tape.cast(total, x.width)

    def grouped(self, x: Tensor, linear: Linear, experts: int, order: Tensor) -> Tensor:
        """`grouped_mm` over the stacked weights; autocast does not know it, so there it is FP32."""
        tape, values, width = self.tape, x.values // linear.inputs * linear.outputs, self.width.weights
        x = tape.cast(x, width)
        if self.adapter:
            flops = 2 * values * linear.inputs
            tape.computes(flops)
            return tape.shaped(tape.new(values, width), x, kept=(FROZEN,), flops=flops)
        weight = self.weight(experts, linear.outputs, linear.inputs)
        return tape.product(x, weight, values, inner=linear.inputs, kind="grouped")

    def gated(self, gate_up: Tensor) -> Tensor:
        gate, up = self.tape.split(gate_up, gate_up.values // 2, gate_up.values // 2)
        return self.tape.mul(self.activated(gate), up)


class Qwen3Moe(Experts):
    """Scores in the type of the logits, normalised where the config says so."""

    def router(self, x: Tensor, mlp: Mlp) -> tuple[Tensor, Tensor]:
        logits, scores = super().router(x, mlp)
        return logits, self.tape.cast(scores, logits.width)

    normalises = False


class GptOss(Experts):
    """A score for no token in each head's softmax, which is in the type of its scores; biases everywhere."""

    def scaled(self, x: Tensor, weight: Tensor, width: int) -> Tensor:
        """In FP32, and cast at the end."""
        return self.tape.cast(self.tape.mul(weight, x), width)

    @property
    def table_bytes(self) -> tuple[int, ...]:
        return (self.model.head_dim // 2 * self.width.residual,) * 2

    joins_heads = True

    def rotated(self, x: Tensor) -> Tensor:
        first, second = self.tape.split(x, x.values // 2, x.values // 2)
        return self.tape.joined(*self._turned(first, second))

    def _probabilities(self, weights: Tensor, attention: Attention, width: int, own: int) -> tuple[Tensor, object]:
        tape, rows = self.tape, self.tokens * attention.heads
        sinks = tape.view(self.weight(attention.heads), rows)
        combined = tape.joined(weights, sinks, width=weights.width)
        combined = self._difference(combined, tape.chosen(combined, rows))  # what is highest
        probabilities = tape.softmax(combined, combined.width, bool(self.cuda))
        scores = tape.part(probabilities, weights.values)
        return tape.cast(scores, own), (combined, probabilities)

    def router(self, x: Tensor, mlp: Mlp) -> tuple[Tensor, Tensor]:
        tape, chosen = self.tape, self.tokens * mlp.experts_per_token
        logits = self._routed(x, mlp)
        scores = tape.chosen(logits, chosen)
        return logits, tape.softmax(scores, scores.width, bool(self.cuda))

    router_bias = True
    selected_biases: Tensor | None = None

    def experts(self, x: Tensor, scores: Tensor, mlp: Mlp) -> Tensor:
        out = super().experts(x, scores, mlp)
        self.selected_biases = None
        return out

    def grouped(self, x: Tensor, linear: Linear, experts: int, order: Tensor) -> Tensor:
        """The bias of each token's expert is looked up, added in place, and named until the next is looked up."""
        tape, values = self.tape, x.values // linear.inputs * linear.outputs
        bias = self.weight(experts, linear.outputs)
        self.selected_biases = tape.shaped(tape.new(values, self.width.weights), bias, kept=(order,))
        return tape.added_in_place(super().grouped(x, linear, experts, order), self.selected_biases)

    def gated(self, gate_up: Tensor) -> Tensor:
        tape = self.tape
        gate, up = tape.part(gate_up, gate_up.values // 2), tape.part(gate_up, gate_up.values // 2)
        gate, up = tape.elementwise(gate, kept=(gate,)), tape.elementwise(up, kept=(up,))
        glu = tape.mul(gate, tape.keeps_result(tape.elementwise(gate)))
        return tape.mul(tape.elementwise(up), glu)


class SharedExperts(Experts):
    """A router in FP32 with a sigmoid, and a shared expert beside the others."""

    def mlp(self, x: Tensor, mlp: Mlp) -> Tensor:
        if not mlp.experts:
            return Decoder.mlp(self, x, mlp)
        _, scores = self.router(x, mlp)
        hidden = self.experts(x, scores, mlp)
        return self.tape.add(hidden, Decoder.mlp(self, x, mlp))

    def router(self, x: Tensor, mlp: Mlp) -> tuple[Tensor, Tensor]:
        tape, chosen = self.tape, self.tokens * mlp.experts_per_token
        weight = self.weight(mlp.experts, self.model.hidden)
        x, weight = self.low(tape.cast(x, FP32), tape.cast(weight, FP32) if weight.node else weight)
        logits = tape.product(x, weight, self.tokens * mlp.experts, inner=self.model.hidden)
        scores = tape.keeps_result(logits)
        return logits, tape.elementwise(self._normalised(tape.chosen(scores, chosen)))


class Glm4Moe(PartlyRotated, SharedExperts):
    """Grouped attention of which half of a head is rotated, and whose products come before the norms of q and k."""

    rotary_default = 0.5

    def projected(self, hidden: Tensor, attention: Attention) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v, _ = attention.linears
        query, key, value = self.linear(hidden, q), self.linear(hidden, k), self.linear(hidden, v)
        if attention.qk_norm:
            query = self.norm(query, self.tokens * attention.heads)
            key = self.norm(key, self.tokens * attention.kv_heads)
        return self.partly_rotated(query), self.partly_rotated(key), value


class DeepSeek(SharedExperts):
    """Latent attention."""

    joins_heads = True

    @property
    def table_bytes(self) -> tuple[int, ...]:
        mla = self.model.layers[0].attention.mla
        assert mla
        return (mla.qk_rope_head_dim * self.width.residual,) * 2

    def attention(self, hidden: Tensor, attention: Attention) -> tuple[Tensor, Tensor | None]:
        tape, mla, rows = self.tape, attention.mla, self.tokens * attention.heads
        assert mla
        *query_linears, kv_a, kv_b, o = attention.linears
        query = self.linear(hidden, query_linears[0])
        if mla.q_lora_rank:
            query = self.linear(self.norm(query, self.tokens), query_linears[1])
        q_pass, q_rot = tape.split(query, rows * mla.qk_nope_head_dim, rows * mla.qk_rope_head_dim)
        compressed = self.linear(hidden, kv_a)
        latent, k_rot = tape.split(compressed, self.tokens * mla.kv_lora_rank, self.tokens * mla.qk_rope_head_dim)
        latent = self.norm(latent, self.tokens)
        q_rot, k_rot = self.rotated(q_rot), self.rotated(k_rot)
        query = tape.joined(q_pass, q_rot)
        key, value = self._expanded(latent, k_rot, kv_b, rows, mla)
        output, weights = self.attended(query, key, value, attention)
        return self.linear(output, o), weights

    def rotated(self, x: Tensor) -> Tensor:
        """`apply_rotary_pos_emb_interleave`: on the even and the odd values."""
        tape = self.tape
        if not self.model.config.get("rope_interleave", True):
            return super().rotated(x)
        even, odd = tape.part(x, x.values // 2), tape.part(x, x.values // 2)
        return tape.joined(*self._turned(even, odd))

    def _expanded(self, latent: Tensor, k_rot: Tensor, kv_b: Linear, rows: int, mla: Mla) -> tuple[Tensor, Tensor]:
        """`expand_kv`: k written into an empty tensor part by part; v stays a view of the product."""
        tape = self.tape
        both = self.linear(latent, kv_b)
        k_nope, value = tape.split(both, rows * mla.qk_nope_head_dim, rows * mla.v_head_dim)
        return tape.filled(k_nope, tape.view(k_rot, rows * mla.qk_rope_head_dim)), value
