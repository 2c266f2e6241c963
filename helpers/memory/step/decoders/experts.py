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

    def routed(self, x: Tensor, mlp: Mlp) -> Tensor:
        _, scores = self.router(x, mlp)
        return self.experts(x, scores, mlp)

    def router(self, x: Tensor, mlp: Mlp) -> tuple[Tensor, Tensor]:
        """The logits, which live as long as the layer's call of its experts, and the chosen scores."""
        tape, chosen = self.tape, self.tokens * mlp.experts_per_token
        logits = self._logits(x, mlp)
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

    def _logits(self, x: Tensor, mlp: Mlp) -> Tensor:
        weights = [self.weight(mlp.experts, self.model.hidden)]
        if mlp.router_bias:
            weights.append(self.weight(mlp.experts))
        x, weight, *bias = self.low(x, *weights)
        return self.tape.product(x, weight, self.tokens * mlp.experts, self.model.hidden, *bias)

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
        x = self.tape.cast(x, self.width.weights)
        weight, values = self.weight(experts, linear.outputs, linear.inputs), x.values // linear.inputs * linear.outputs
        return self.tape.product(x, weight, values, linear.inputs, kind="grouped")


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

    rotary_default = 0.5  # of a head is in the tables, once for both halves
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
        logits = self._logits(x, mlp)
        scores = tape.chosen(logits, chosen)
        return logits, tape.softmax(scores, scores.width, bool(self.cuda))

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

    def routed(self, x: Tensor, mlp: Mlp) -> Tensor:
        _, scores = self.router(x, mlp)
        hidden = self.experts(x, scores, mlp)
        return self.tape.add(hidden, self.gated_mlp(x, mlp))

    def router(self, x: Tensor, mlp: Mlp) -> tuple[Tensor, Tensor]:
        tape, chosen = self.tape, self.tokens * mlp.experts_per_token
        weight = self.weight(mlp.experts, self.model.hidden)
        x, weight = self.low(tape.cast(x, FP32), tape.cast(weight, FP32) if weight.node else weight)
        logits = tape.product(x, weight, self.tokens * mlp.experts, self.model.hidden)
        scores = tape.keeps_result(logits)
        return logits, tape.elementwise(self._normalised(tape.chosen(scores, chosen)))


class Glm4Moe(PartlyRotated, SharedExperts):
    """Grouped attention of which half of a head is rotated, and whose products come before the norms of q and k."""

    rotary_default = 0.5

    def projected(self, hidden: Tensor, attention: Attention) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = (self.linear(hidden, one) for one in attention.linears[:3])
        if attention.qk_norm:
            query = self.norm(query, self.tokens * attention.heads)
            key = self.norm(key, self.tokens * attention.kv_heads)
        return self.rotated(query), self.rotated(key), value


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


class Llama4(Decoder):
    """Rotation by complex numbers, and experts that multiply every token, by a score that is 0 for most.

    Transformers groups nothing here.
    """

    names_attention = True
    casts_weights = False

    def mask_bytes(self, attention: Attention) -> int:
        """Pieces are counted from each sequence's own first token, so each has its mask."""
        of_one = super().mask_bytes(attention)
        own = attention.window and self.setup.attention == "sdpa" and not self.setup.masked
        return of_one * self.setup.micro_batch if own else of_one

    @property
    def table_bytes(self) -> tuple[int, ...]:
        """One complex number for each two values."""
        return (FP32 * self.model.head_dim,)

    # --- attention ---------------------------------------------------------------------------------------------------

    def projected(self, hidden: Tensor, attention: Attention) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = (self.linear(hidden, one) for one in attention.linears[:3])
        if attention.rotary:
            width = query.width  # from FP32 as complex numbers
            turned = [self.tape.elementwise(self.tape.cast(x, FP32), kept=(FROZEN,)) for x in (query, key)]
            query, key = (self.tape.cast(x, width) for x in turned)
            del turned
            if self.model.config.get("use_qk_norm", True):
                query = self._l2_norm(query, self.tokens * attention.heads)
                key = self._l2_norm(key, self.tokens * attention.kv_heads)
        elif self.model.config.get("attn_temperature_tuning", True):
            scales = self.tape.new(self.setup.sequence, FP32)
            query = self.tape.cast(self.tape.elementwise(query, kept=(scales,), width=FP32), query.width)
        return query, key, value

    def _l2_norm(self, x: Tensor, rows: int) -> Tensor:
        tape, width = self.tape, x.width
        x, _variance = self._over_rms(tape.cast(x, FP32), rows)
        return tape.cast(x, width)

    def _softmax(self, weights: Tensor) -> Tensor:
        """In the type of the scores."""
        return self.tape.softmax(weights, weights.width, bool(self.cuda))

    # --- experts -----------------------------------------------------------------------------------------------------

    def routed(self, x: Tensor, mlp: Mlp) -> Tensor:
        tape = self.tape
        tape.flat = True
        scores, _ = self.router(x, mlp)
        routed_in = self.tape.written_out(x, mlp.experts * x.values)
        routed_in = tape.mul(routed_in, tape.copy(scores))
        routed_out = self._experts(routed_in, mlp)
        out = self.gated_mlp(x, mlp)
        # Over the experts, by CUDA's autocast in FP32. The gradient is no view: it is written out for a reshape
        width = FP32 if self.width.autocast and self.cuda else routed_out.width
        out = tape.added_in_place(out, tape.written_out(routed_out, out.values, width))
        tape.flat = False
        return out

    def router(self, x: Tensor, mlp: Mlp) -> tuple[Tensor, Tensor]:
        """The scores of all experts, a sigmoid of minus infinity but for the chosen; and the logits."""
        tape, chosen = self.tape, self.tokens * mlp.experts_per_token
        logits = self.linear(x, mlp.linears[-1])
        indices = tape.new(chosen, 8)
        values = tape.written_out(logits, chosen, kept=(indices,))
        scores = tape.written_out(values, logits.values, kept=(indices,))
        scores = tape.cast(scores, FP32)
        return tape.cast(tape.keeps_result(scores), logits.width), logits

    def _experts(self, routed: Tensor, mlp: Mlp) -> Tensor:
        first, last = mlp.expert_linears
        gate_up = self._of_all(routed, first, mlp.experts)
        return self._of_all(self.gated(gate_up), last, mlp.experts)

    def _of_all(self, x: Tensor, linear: Linear, experts: int) -> Tensor:
        """`torch.bmm` of each expert's tokens and its matrix."""
        weight = self.weight(experts, linear.outputs, linear.inputs)
        x, weight = self.low(x, weight)
        values = x.values // linear.inputs * linear.outputs
        return self.tape.product(x, weight, values, linear.inputs, kind="scores")
