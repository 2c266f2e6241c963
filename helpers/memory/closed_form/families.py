"""The families beside Llama: a page of `decoder` for each, by what its code in Transformers does otherwise. No torch.

A new family is a class with the calls that its forward makes, and its name in PAGES.
"""

from __future__ import annotations

from collections.abc import Callable

from ...catalog.layers import Attention, Layer, Linear, Mla, Mlp
from ...catalog.setup import TrainSetup
from .breakdown import rounded
from .decoder import FUSED, Decoder
from .linears import FP32, HALF
from .operators import Operators
from .tape import FROZEN, Tensor


class Gemma2(Decoder):
    """Norms in FP32 to the end, times 1 + weight; caps on scores and logits."""

    def scaled(self, x: Tensor, weight: Tensor, width: int) -> Tensor:
        tape = self.tape
        factor = tape.elementwise(tape.cast(weight, FP32)) if weight.node else weight
        return tape.cast(tape.mul(x, factor), width)

    @property
    def logit_cap(self) -> object:
        return self.model.config.get("final_logit_softcapping", 30.0)

    def _capped(self, weights: Tensor) -> Tensor:
        if not self.model.config.get("attn_logit_softcapping", 50.0):
            return weights
        return self.tape.elementwise(self.tape.keeps_result(self.tape.elementwise(weights)))


class Gemma3(Gemma2):
    """Gemma-2's norms, on q and k too, without its caps."""

    @property
    def logit_cap(self) -> object:
        return None

    def _capped(self, weights: Tensor) -> Tensor:
        return weights

    tables_by_kind = True


class Phi3(Decoder):
    """q, k and v are slices of one product, gate and up halves of another; a part of a head may stay unrotated."""

    def attention(self, hidden: Tensor, attention: Attention) -> tuple[Tensor, Tensor | None]:
        tape, (qkv, o) = self.tape, attention.linears
        heads, kv = self.tokens * attention.heads, self.tokens * attention.kv_heads
        joined = self.linear(hidden, qkv)
        query = tape.part(joined, heads * attention.head_dim)
        key, value = tape.part(joined, kv * attention.head_dim), tape.part(joined, kv * attention.head_dim)
        query, key = self._partly_rotated(query, attention), self._partly_rotated(key, attention)
        output, weights = self.attended(query, key, value, attention)
        return self.linear(output, o), weights

    def attended(self, query: Tensor, key: Tensor, value: Tensor, attention: Attention) -> tuple[Tensor, Tensor | None]:
        """Flash attention writes as its query lies, here head by head, and that is turned over behind it.

        It takes 16 bits and no mask; a CPU's takes all.
        """
        output, weights = super().attended(query, key, value, attention)
        flash = not self.on_cuda or (output.width == HALF and not self.masks(attention))
        turned = flash and self.setup.attention == "sdpa" and self.kernel == FUSED
        return self.tape.copy(output) if turned else output, weights

    def _partly_rotated(self, x: Tensor, attention: Attention) -> Tensor:
        tape, share = self.tape, self._rotary_share
        turned = round(x.values * share)
        part, rest = tape.part(x, turned), tape.part(x, x.values - turned)
        return tape.joined(self.rotated(part), rest)

    @property
    def _rotary_share(self) -> float:
        """`partial_rotary_factor`, which newer configs keep with the other parameters of the rotation."""
        rope = self.model.config.get("rope_parameters")
        inside = rope.get("partial_rotary_factor") if isinstance(rope, dict) else None
        return float(str(self.model.config.get("partial_rotary_factor") or inside or 1.0))

    def mlp(self, x: Tensor, mlp: Mlp) -> Tensor:
        gate_up, down = mlp.linears
        up = self.linear(x, gate_up)
        gate, up = self.tape.split(up, up.values // 2, up.values // 2)
        up = self.tape.mul(up, self.activated(gate))
        return self.linear(up, down)


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
        indices = tape.new(chosen, 8)
        scores = tape.shaped(tape.new(chosen, FP32), probabilities, kept=(indices,))
        return logits, self._normalised(scores)

    def _normalised(self, scores: Tensor) -> Tensor:
        """Divided in place by their sum, which the division keeps, and its numerator, too."""
        tape = self.tape
        total = tape.summed(scores, self.tokens)
        return tape.elementwise(scores, total, kept=(scores, total))

    def _routed(self, x: Tensor, mlp: Mlp) -> Tensor:
        x, weight = self.low(x, self.weight(mlp.experts, self.model.hidden))
        return self.tape.product(x, weight, self.tokens * mlp.experts)

    def experts(self, x: Tensor, scores: Tensor, mlp: Mlp) -> Tensor:
        tape, chosen = self.tape, self.tokens * mlp.experts_per_token
        order = tape.new(chosen, 8), tape.new(chosen, 8)
        index = tape.new(chosen, 8)
        selected = tape.shaped(tape.new(chosen * self.model.hidden, x.width), x, kept=(index,))
        del index
        weights = tape.shaped(tape.new(chosen, scores.width), scores, kept=(order[1],))
        out = self.grouped(selected, mlp.expert_linears[0], mlp.experts, order[0])
        out = self.gated(out)
        out = self.grouped(out, mlp.expert_linears[1], mlp.experts, order[0])
        weighted = tape.mul(out, weights)
        inverse = tape.new(chosen, 8)
        weighted = tape.shaped(tape.new(weighted.values, weighted.width), weighted, kept=(inverse,))
        total = tape.shaped(tape.new(self.tokens * self.model.hidden, weighted.width), weighted)
        return tape.cast(total, x.width)

    def grouped(self, x: Tensor, linear: Linear, experts: int, order: Tensor) -> Tensor:
        """`grouped_mm` over the stacked weights; autocast does not know it, so there it is FP32."""
        tape, values, width = self.tape, x.values // linear.inputs * linear.outputs, self.width.weights
        x = tape.cast(x, width)
        if self.adapter:  # Transformers' own kernel, in FP32, keeps x and makes the weights' gradient all the same
            own = width == FP32
            unasked = [FP32 * experts * linear.weights] if own else []
            return tape.shaped(tape.new(values, width), x, kept=(FROZEN, *([x] if own else [])), scratch_bytes=unasked)
        weight = self.weight(experts, linear.outputs, linear.inputs)
        return tape.product(x, weight, values, kind="grouped")

    def gated(self, gate_up: Tensor) -> Tensor:
        gate, up = self.tape.split(gate_up, gate_up.values // 2, gate_up.values // 2)
        return self.tape.mul(self.activated(gate), up)


class Qwen3Moe(Experts):
    """Scores in the type of the logits, normalised where the config says so."""

    def router(self, x: Tensor, mlp: Mlp) -> tuple[Tensor, Tensor]:
        logits, scores = super().router(x, mlp)
        return logits, self.tape.cast(scores, logits.width)

    def _normalised(self, scores: Tensor) -> Tensor:
        return super()._normalised(scores) if self.model.config.get("norm_topk_prob") else scores


class GptOss(Experts):
    """A score for no token in each head's softmax, which is in the type of its scores; biases everywhere."""

    def scaled(self, x: Tensor, weight: Tensor, width: int) -> Tensor:
        """In FP32, and cast at the end."""
        return self.tape.cast(self.tape.mul(weight, x), width)

    @property
    def rotary_widths(self) -> tuple[int, ...]:
        return self.model.head_dim // 2, self.model.head_dim // 2

    def rotated(self, x: Tensor) -> Tensor:
        first, second = self.tape.split(x, x.values // 2, x.values // 2)
        return self.tape.joined(*self._turned(first, second))

    def _eager(self, query: Tensor, key: Tensor, value: Tensor, attention: Attention) -> tuple[Tensor, Tensor]:
        tape, tokens, heads = self.tape, self.setup.tokens, attention.heads
        keys, values = self._repeated(key, query.values), self._repeated(value, query.values)
        weights = tape.elementwise(self._matmul(query, keys, tokens * self.setup.sequence * heads))
        weights = tape.elementwise(weights, width=max(weights.width, self.width.residual))
        sinks = tape.view(self.weight(heads), tokens * heads)
        combined = tape.joined(weights, sinks, width=weights.width)
        combined = self._difference(combined, self._highest(combined, tokens * heads))
        probabilities = tape.softmax(combined, combined.width, self.on_cuda)
        scores = tape.part(probabilities, tokens * self.setup.sequence * heads)
        weights = tape.cast(scores, values.width)
        output = self._matmul(weights, values, query.values)
        output = tape.copy(output)
        return output, weights

    def _highest(self, x: Tensor, rows: int) -> Tensor:
        """`max(dim)`: keeps where it was; its gradient is one of all of x, with zeros elsewhere."""
        tape = self.tape
        indices = tape.new(rows, 8)
        return tape.shaped(tape.new(rows, x.width), x, kept=(indices,))

    def router(self, x: Tensor, mlp: Mlp) -> tuple[Tensor, Tensor]:
        tape, chosen = self.tape, self.tokens * mlp.experts_per_token
        logits = self._routed(x, mlp)
        indices = tape.new(chosen, 8)
        scores = tape.shaped(tape.new(chosen, logits.width), logits, kept=(indices,))
        return logits, tape.softmax(scores, scores.width, self.on_cuda)

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


class DeepSeek(Experts):
    """Latent attention, a router in FP32, and a shared expert beside the others."""

    @property
    def rotary_widths(self) -> tuple[int, ...]:
        mla = self.model.layers[0].attention.mla
        assert mla
        return mla.qk_rope_head_dim, mla.qk_rope_head_dim

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
        logits = tape.product(x, weight, self.tokens * mlp.experts)
        scores = tape.keeps_result(logits)
        indices = tape.new(chosen, 8)
        scores = tape.shaped(tape.new(chosen, scores.width), scores, kept=(indices,))
        return logits, tape.elementwise(self._normalised(scores))


class Gpt2(Decoder):
    """LayerNorm, biases everywhere, q, k and v in one product, and no rotation: positions are learned."""

    rotary_widths = ()
    names_attention = True

    def ids(self, held: bool) -> int:
        """Of the positions, which their lookup keeps, and of the words, of which it makes a view."""
        return rounded(8 * self.setup.sequence) + rounded(8 * self.tokens)

    def named_embeddings(self, held: bool, is_leaf: bool) -> int:
        """Those of the words, and of the positions, the same for all sequences: a layer holds their sum."""
        hidden = self.model.hidden * self.width.residual
        return rounded(self.setup.sequence * hidden) + (0 if is_leaf else rounded(self.tokens * hidden))

    def norm(self, x: Tensor, rows: int) -> Tensor:
        size = x.values // rows
        return self.tape.layer_norm(x, rows, self.weight(size), self.weight(size))

    def attention(self, hidden: Tensor, attention: Attention) -> tuple[Tensor, Tensor | None]:
        c_attn, c_proj = attention.linears
        joined = self.linear(hidden, c_attn)
        query, key, value = self.tape.split(joined, *[joined.values // 3] * 3)
        del joined
        output, weights = self.attended(query, key, value, attention)
        return self.linear(output, c_proj), weights

    def _softmax(self, weights: Tensor) -> Tensor:
        """In the type of the scores."""
        return self.tape.softmax(weights, weights.width, self.on_cuda)

    def mlp(self, x: Tensor, mlp: Mlp) -> Tensor:
        up, down = mlp.linears
        return self.linear(self._activation(mlp)(self.linear(x, up)), down)

    def _activation(self, mlp: Mlp) -> Callable[[Tensor], Tensor]:
        return {"gelu_new": self._gelu_new, "relu": self.tape.keeps_result}.get(mlp.activation, self.activated)

    def _gelu_new(self, x: Tensor) -> Tensor:
        """0.5 * x * (1.0 + tanh(sqrt(2 / pi) * (x + 0.044715 * pow(x, 3.0)))), a tensor for each call.

        CUDA's autocast runs pow in FP32, and what follows is promoted.
        """
        tape = self.tape
        half = tape.elementwise(x)
        base = tape.cast(x, FP32) if self.width.autocast and self.on_cuda else x
        inner = tape.elementwise(base, kept=(base,), scratch=2)
        del base
        inner = tape.elementwise(inner)
        inner = tape.add(x, inner)
        inner = tape.elementwise(inner)
        inner = tape.keeps_result(inner)
        inner = tape.elementwise(inner)
        return tape.mul(half, inner)


class Opt(Gpt2):
    """Four projections, the query scaled before attention; ReLU keeps its result alone."""

    names_attention = False

    def ids(self, held: bool) -> int:
        """Of the positions one for each token, and another that is two more, by which the table is asked."""
        return (2 + held) * rounded(8 * self.tokens)

    def named_embeddings(self, held: bool, is_leaf: bool) -> int:
        return (1 if is_leaf else 2) * rounded(self.tokens * self.model.hidden * self.width.residual)

    def attention(self, hidden: Tensor, attention: Attention) -> tuple[Tensor, Tensor | None]:
        q, k, v, out = attention.linears
        query = self.tape.elementwise(self.linear(hidden, q))
        output, weights = self.attended(query, self.linear(hidden, k), self.linear(hidden, v), attention)
        return self.linear(output, out), weights

    def _with_mlp(self, hidden: Tensor, layer: Layer, how: str) -> Tensor:
        """No module of its own, whose argument would live as long as its call; and sequences end to end."""
        if how == "module:mlp":
            return super()._with_mlp(hidden, layer, how)
        tape, residual, (up, down) = self.tape, hidden, layer.mlp.linears
        tape.flat = True
        hidden = self.norm(hidden, self.tokens)
        hidden = self.linear(hidden, up)
        hidden = self._activation(layer.mlp)(hidden)
        hidden = self.linear(hidden, down)
        tape.flat = False
        return tape.add(residual, hidden)

    def _softmax(self, weights: Tensor) -> Tensor:
        return Decoder._softmax(self, weights)


PAGES: dict[str, type[Decoder]] = {
    "llama": Decoder,
    "mistral": Decoder,
    "qwen2": Decoder,
    "qwen3": Decoder,
    "gemma2": Gemma2,
    "gemma3_text": Gemma3,
    "phi3": Phi3,
    "mixtral": Experts,
    "qwen3_moe": Qwen3Moe,
    "gpt_oss": GptOss,
    "deepseek_v3": DeepSeek,
    "gpt2": Gpt2,
    "opt": Opt,
}


def decoder(setup: TrainSetup, tape: Operators, kernel: str = FUSED, on_cuda: bool = False) -> Decoder:
    """The page of the model's family, on `tape`."""
    return PAGES[setup.model.family](setup, tape, kernel, on_cuda)
