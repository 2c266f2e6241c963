"""A decoder layer on the tape: the code of Transformers, peft and bitsandbytes, of which only the bytes are left.

The functions have the variables of the code that they stand for, so that a tensor lives here as long as it does there.
Shape letters: N = micro-batch x sequence, h = hidden, f = ffn, q = heads x head_dim, k = kv_heads x head_dim.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...catalog.formats import number_format
from ...catalog.layers import Attention, Layer, Linear, Mlp
from ...catalog.setup import TrainSetup
from .breakdown import Point
from .operators import Operators
from .tape import FROZEN, Tensor

FP32, HALF = 4, 2
FUSED, REPEATED, FORMULA = "fused", "repeated", "formula"
ADAPTERS = FP32  # autocast_adapter_dtype, peft's default
FUSED_TOKENS = number_format("nf4").fused_tokens  # up to so many, bitsandbytes decodes a weight as it multiplies


@dataclass(frozen=True)
class AdapterWidths:
    """Bytes per value: of the hidden states, of the frozen weights that are not quantized; and whether autocast is on.

    `prepare_model_for_kbit_training` casts those weights to FP32, and the hidden states are of the embedding's type.
    """

    residual: int
    weights: int
    autocast: bool

    @classmethod
    def of(cls, setup: TrainSetup) -> AdapterWidths:
        adapter, weights = setup.adapter, setup.precision_recipe.weight_bytes
        if adapter and adapter.base:
            weights = FP32 if adapter.prepared else HALF
        return cls(weights, weights, setup.precision == "autocast-bf16")


class Decoder:
    """The model of `setup` with its adapters, on one tape.

    `kernel` is what "sdpa" runs: the FUSED one; REPEATED, which has grouped K and V written out for each query head
    first; or the plain FORMULA, where a GPU has no fused one.
    """

    def __init__(self, setup: TrainSetup, tape: Operators, kernel: str = FUSED) -> None:
        assert setup.adapter
        self.setup, self.tape, self.adapter, self.kernel = setup, tape, setup.adapter, kernel
        self.width, self.model, self.tokens = AdapterWidths.of(setup), setup.model, setup.tokens
        self.gemma = setup.model.family == "gemma2"

    # --- the model ---------------------------------------------------------------------------------------------------

    def layer(self, hidden: Tensor, layer: Layer) -> Tensor:
        tape, residual = self.tape, hidden
        hidden = self.norm(hidden, self.tokens)
        hidden, _ = self.attention(hidden, layer.attention)
        if layer.norms == 4:
            hidden = self.norm(hidden, self.tokens)
        hidden = tape.add(residual, hidden)
        residual = hidden
        hidden = self.norm(hidden, self.tokens)
        hidden = self.mlp(hidden, layer.mlp)
        if layer.norms == 4:
            hidden = self.norm(hidden, self.tokens)
        return tape.add(residual, hidden)

    def loss(self, hidden: Tensor) -> Tensor:
        """From the last layer's output: the final norm, `lm_head`, and the loss in FP32."""
        tape, tape.stage = self.tape, Point.FINAL_NORM
        hidden = self.norm(hidden, self.tokens)
        tape.stage = Point.LM_HEAD
        logits = self.head(hidden)
        tape.stage = Point.LOSS
        return self._cross_entropy(logits)

    def head(self, hidden: Tensor) -> Tensor:
        tape, config = self.tape, self.model.config
        logits = self._product(hidden, Linear("lm_head", self.model.hidden, self.model.vocab), is_logits=True)
        if self.gemma and config.get("final_logit_softcapping", 30.0):
            logits = tape.elementwise(logits, is_logits=True)
            logits = tape.keeps_result(logits, is_logits=True)
            logits = tape.elementwise(logits, is_logits=True)
        return logits

    def _cross_entropy(self, logits: Tensor) -> Tensor:
        tape = self.tape
        logits = tape.cast(logits, FP32)
        targets = tape.new(self.tokens, 8)
        log_softmax = tape.keeps_result(logits, is_logits=True)
        return tape.shaped(tape.new(1, FP32), log_softmax, kept=(log_softmax, targets))

    def norm(self, x: Tensor, rows: int) -> Tensor:
        """RMSNorm as Transformers writes it, in FP32; its weight is frozen, so the normalised value is not kept."""
        tape, width = self.tape, x.width
        x = tape.cast(x, FP32)
        variance = self._mean_of_squares(x, rows)
        x = tape.mul(x, tape.keeps_result(tape.elementwise(variance)))
        if self.gemma:  # times the weight in FP32, then cast
            return tape.cast(tape.elementwise(x), width)
        return tape.elementwise(tape.cast(x, width))

    def _mean_of_squares(self, x: Tensor, rows: int) -> Tensor:
        """Pow's backward makes two more of x's size beside its result, and mean's writes its gradient out."""
        square = self.tape.elementwise(x, kept=(x,), scratch=2)
        return self.tape.shaped(self.tape.new(rows, FP32), square)

    # --- attention and MLP -------------------------------------------------------------------------------------------

    def attention(self, hidden: Tensor, attention: Attention) -> tuple[Tensor, Tensor | None]:
        q, k, v, o = attention.linears
        query = self.linear(hidden, q)
        if attention.qk_norm:
            query = self.norm(query, self.tokens * attention.heads)
        key = self.linear(hidden, k)
        if attention.qk_norm:
            key = self.norm(key, self.tokens * attention.kv_heads)
        value = self.linear(hidden, v)
        query, key = self._rotated(query), self._rotated(key)
        run = self._fused if self.setup.attention == "sdpa" else self._eager
        output, weights = run(query, key, value, attention)
        return self.linear(output, o), weights

    def _rotated(self, x: Tensor) -> Tensor:
        """(x * cos) + (rotate_half(x) * sin), the tables in the type of the hidden states."""
        tape, wide = self.tape, max(x.width, self.width.residual)
        by_cosine = tape.elementwise(x, kept=(FROZEN,), width=wide)
        return tape.add(by_cosine, tape.elementwise(self._half_turned(x), kept=(FROZEN,), width=wide))

    def _half_turned(self, x: Tensor) -> Tensor:
        tape = self.tape
        first, second = tape.part(x, x.values // 2), tape.part(x, x.values // 2)
        return tape.joined(tape.elementwise(second), first)

    def _fused(self, query: Tensor, key: Tensor, value: Tensor, attention: Attention) -> tuple[Tensor, None]:
        tape = self.tape
        if self.width.autocast:
            query, key, value = tape.cast(query, HALF), tape.cast(key, HALF), tape.cast(value, HALF)
        if self.kernel == FORMULA:
            return self._formula(query, key, value, attention), None
        if self.kernel == REPEATED:
            key, value = self._repeated(key, query.values), self._repeated(value, query.values)
        return tape.attention(query, key, value, self.tokens * attention.heads, self._sums_of(query, key)), None

    def _formula(self, query: Tensor, key: Tensor, value: Tensor, attention: Attention) -> Tensor:
        """`_scaled_dot_product_attention_math`: in FP32, its scores written out, one tensor of them kept."""
        tape, dtype, square = self.tape, query.width, self.setup.sequence**2
        scores = self.tokens * self.setup.sequence * attention.heads
        query, key, value = tape.cast(query, FP32), tape.cast(key, FP32), tape.cast(value, FP32)
        scaled = tape.elementwise(query)
        lower = [tape.new(square, 1), tape.new(square, FP32)]  # noqa: F841 - the causal mask, as bools and as numbers
        keys, values = self._repeated(key, query.values), self._repeated(value, query.values)
        weights = tape.matmul(scaled, tape.elementwise(keys), scores)
        weights = tape.elementwise(weights)
        weights = self._softmax(weights)
        output = tape.cast(tape.matmul(weights, values, query.values), dtype)
        if dtype != FP32:
            tape.new(scores, dtype)  # the weights, which nobody asked for
        return output

    def _sums_of(self, query: Tensor, key: Tensor) -> list[int]:
        """What the backward of a fused kernel sums in: dQ in FP32; for grouped heads dK and dV of every query head."""
        grouped = [query.values * query.width] * 2 if key.values != query.values else []
        return [FP32 * query.values, *grouped]

    def _eager(self, query: Tensor, key: Tensor, value: Tensor, attention: Attention) -> tuple[Tensor, Tensor]:
        tape, scores = self.tape, self.tokens * self.setup.sequence * attention.heads
        dtype = query.width
        keys, values = self._repeated(key, query.values), self._repeated(value, query.values)
        weights = tape.elementwise(self._matmul(query, keys, scores))
        if self.gemma and self.model.config.get("attn_logit_softcapping", 50.0):
            weights = tape.elementwise(weights)
            weights = tape.keeps_result(weights)
            weights = tape.elementwise(weights)
        weights = tape.elementwise(weights)  # and the mask
        weights = tape.cast(self._softmax(weights), dtype)
        output = self._matmul(weights, values, query.values)
        output = tape.copy(output)
        return output, weights

    def _matmul(self, a: Tensor, b: Tensor, values: int) -> Tensor:
        tape = self.tape
        if self.width.autocast:
            a, b = tape.cast(a, HALF), tape.cast(b, HALF)
        return tape.matmul(a, b, values)

    def _softmax(self, weights: Tensor) -> Tensor:
        """In FP32: CUDA has one kernel from FP16 to it, and casts BF16 first."""
        tape = self.tape
        if not (self.adapter.dtype == "fp16" and weights.width == HALF):
            weights = tape.cast(weights, FP32)
        out = tape.new(weights.values, FP32)
        return tape.shaped(out, weights, kept=(out,), scratch_bytes=[FP32 * weights.values])  # gradient times output

    def _repeated(self, x: Tensor, values: int) -> Tensor:
        """`repeat_kv`: written out once for each query head."""
        return x if x.values == values else self.tape.shaped(self.tape.new(values, x.width), x)

    def mlp(self, x: Tensor, mlp: Mlp) -> Tensor:
        gate, up, down = mlp.linears
        return self.linear(self.tape.mul(self._activated(self.linear(x, gate)), self.linear(x, up)), down)

    def _activated(self, x: Tensor) -> Tensor:
        return self.tape.elementwise(x, kept=(x,))

    # --- linear layers -----------------------------------------------------------------------------------------------

    def linear(self, x: Tensor, linear: Linear) -> Tensor:
        """A frozen layer, and its adapter beside it. A module's arguments live as long as its call, so x stays."""
        if not self.adapter.adapts(linear):
            return self._four_bit(x, linear) if self.adapter.base else self._product(x, linear)
        return self._adapted_four_bit(x, linear) if self.adapter.base else self._adapted(x, linear)

    def _adapted(self, x: Tensor, linear: Linear) -> Tensor:
        """`lora.Linear.forward`: x in the adapter's type, the result back in the base's."""
        tape, result = self.tape, self._product(x, linear)
        width = result.width
        cast = tape.cast(x, ADAPTERS)
        if self.adapter.kind == "lora":
            result = tape.add(result, self._low_rank(cast, linear))
        else:
            result = self._dora(cast, linear, result)
        return tape.cast(result, width)

    def _adapted_four_bit(self, x: Tensor, linear: Linear) -> Tensor:
        """`lora.Linear4bit.forward`: a clone of the result, and no casts under autocast."""
        tape, result = self.tape, self._four_bit(x, linear)
        result = tape.copy(result)
        width = result.width
        cast = x if self.width.autocast else tape.cast(x, ADAPTERS)
        if self.adapter.kind == "lora":
            output = self._low_rank(cast, linear)
            output = output if self.width.autocast else tape.cast(output, width)
            return tape.add(result, output)
        result = self._dora(cast, linear, result)
        return result if self.width.autocast else tape.cast(result, width)

    def _product(self, x: Tensor, linear: Linear, is_logits: bool = False) -> Tensor:
        """A frozen weight: nothing is kept but autocast's copy of it, which nobody caches."""
        tape, copy = self.tape, []
        if self.width.autocast:
            x = tape.cast(x, HALF)
            if self.width.weights == FP32:
                copy = [tape.new(linear.weights, HALF)]
        return tape.shaped(tape.new(self.tokens * linear.outputs, x.width, is_logits), x, kept=(FROZEN, *copy))

    def _four_bit(self, x: Tensor, linear: Linear) -> Tensor:
        """`Linear4bit`: the weight is decoded for the product, and once more in its backward."""
        tape, width = self.tape, x.width
        x = tape.cast(x, HALF)
        decoded = [HALF * linear.weights, *self._decoded_scales(linear)]
        fused = self.tokens <= FUSED_TOKENS and linear.inputs % number_format(str(self.adapter.base)).block_values == 0
        held = [] if fused else [tape.new(size, 1) for size in (*decoded, *decoded[1:])]
        out = tape.new(self.tokens * linear.outputs, HALF)
        del held
        return tape.cast(tape.shaped(out, x, kept=(FROZEN,), scratch_bytes=decoded), width)

    def _decoded_scales(self, linear: Linear) -> list[int]:
        """The FP32 scales that double quantization holds in 8 bits."""
        rule = number_format(str(self.adapter.base))
        return [FP32 * -(-linear.weights // rule.block_values)] if rule.superblock_blocks else []

    def _low_rank(self, x: Tensor, linear: Linear) -> Tensor:
        """lora_B(lora_A(x)) * scaling"""
        return self.tape.elementwise(self._second(self._first(x, linear), linear))

    def _first(self, x: Tensor, linear: Linear) -> Tensor:
        return self._trained(x, (self.adapter.rank, linear.inputs), x.values // linear.inputs * self.adapter.rank)

    def _second(self, low: Tensor, linear: Linear) -> Tensor:
        rows = low.values // self.adapter.rank
        return self._trained(low, (linear.outputs, self.adapter.rank), rows * linear.outputs)

    def _trained(self, x: Tensor, shape: tuple[int, int], values: int) -> Tensor:
        tape = self.tape
        weight = tape.weight(shape, ADAPTERS)
        if self.width.autocast:
            x, weight = tape.cast(x, HALF), tape.cast(weight, HALF)
        return tape.matmul(x, weight, values)

    def _dora(self, x: Tensor, linear: Linear, result: Tensor) -> Tensor:
        return self.tape.add(result, self._with_magnitudes(x, linear, result))

    def _with_magnitudes(self, x: Tensor, linear: Linear, base_result: Tensor) -> Tensor:
        """`DoraLinearLayer.forward`: B·A written out by way of an identity matrix, and the norm of the sum with W.

        Both products of the forward are kept, since the magnitudes are trained; W and B·A are not.
        """
        tape = self.tape
        written_out = tape.cast(self._written_out(linear), x.width)  # noqa: F841 - held to the end, as in peft
        weight = self._decoded(linear, x.width)  # noqa: F841
        norm = self._norm_of_sum(linear, x.width)
        magnitude = tape.weight((linear.outputs,), ADAPTERS)
        scale = tape.mul(magnitude, norm)
        low_rank = self._second(self._first(x, linear), linear)
        if linear.bias:
            base_result = tape.elementwise(base_result)
        return tape.add(tape.mul(tape.elementwise(scale), base_result), tape.elementwise(tape.mul(scale, low_rank)))

    def _written_out(self, linear: Linear) -> Tensor:
        identity = self.tape.new(linear.inputs**2, ADAPTERS)
        return self._second(self._first(identity, linear), linear)

    def _norm_of_sum(self, linear: Linear, width: int) -> Tensor:
        """Of W + scaling * B·A, row by row; no gradient goes through it."""
        scaled = self.tape.new(linear.weights, width)
        total = self.tape.new(linear.weights, width)  # noqa: F841
        del scaled
        return self.tape.new(linear.outputs, width)

    def _decoded(self, linear: Linear, width: int) -> Tensor | None:
        """The base's weight in the type of the adapters; None where it is that already."""
        tape = self.tape
        if self.adapter.base:
            scales = [tape.new(size, 1) for size in self._decoded_scales(linear)]
            weight = tape.new(linear.weights, HALF)
            del scales
            return tape.cast(weight, width)
        return tape.new(linear.weights, width) if width != self.width.weights else None
