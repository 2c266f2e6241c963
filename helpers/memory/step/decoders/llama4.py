"""Llama 4's page of `decoder`: rotation by complex numbers, and experts that all run on every token. No torch."""

from __future__ import annotations

from dataclasses import replace

from ....catalog.layers import Attention, Linear, Mlp
from ..tape import FROZEN, Tensor
from .decoder import Decoder
from .linears import FP32


class Llama4(Decoder):
    """Each expert multiplies every token, by a score that is 0 for most: Transformers groups nothing here."""

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
        q, k, v, _ = attention.linears
        query, key, value = self.linear(hidden, q), self.linear(hidden, k), self.linear(hidden, v)
        if attention.rotary:
            query, key = self._rotated_as_complex(query, key)
            if self.model.config.get("use_qk_norm", True):
                query = self._l2_norm(query, self.tokens * attention.heads)
                key = self._l2_norm(key, self.tokens * attention.kv_heads)
        elif self.model.config.get("attn_temperature_tuning", True):
            scales = self.tape.new(self.setup.sequence, FP32)
            query = self.tape.cast(self.tape.elementwise(query, kept=(scales,), width=FP32), query.width)
        return query, key, value

    def _rotated_as_complex(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        tape, width = self.tape, query.width
        query, key = tape.cast(query, FP32), tape.cast(key, FP32)
        turned_query, turned_key = tape.elementwise(query, kept=(FROZEN,)), tape.elementwise(key, kept=(FROZEN,))
        return tape.cast(turned_query, width), tape.cast(turned_key, width)

    def _l2_norm(self, x: Tensor, rows: int) -> Tensor:
        tape, width = self.tape, x.width
        x = tape.cast(x, FP32)
        variance = self._mean_of_squares(x, rows)
        return tape.cast(tape.mul(x, tape.keeps_result(tape.elementwise(variance))), width)

    def _softmax(self, weights: Tensor) -> Tensor:
        """In the type of the scores."""
        return self.tape.softmax(weights, weights.width, bool(self.cuda))

    # --- experts -----------------------------------------------------------------------------------------------------

    def mlp(self, x: Tensor, mlp: Mlp) -> Tensor:
        if not mlp.experts:
            return super().mlp(x, mlp)
        tape, (*shared, router) = self.tape, mlp.linears
        tape.flat = True
        scores, _ = self._router(x, mlp, router)
        routed_in = self.tape.written_out(x, mlp.experts * x.values)
        routed_in = tape.mul(routed_in, tape.copy(scores))
        routed_out = self._experts(routed_in, mlp)
        out = super().mlp(x, replace(mlp, linears=tuple(shared)))
        out = tape.added_in_place(out, self._summed(routed_out, out.values))
        tape.flat = False
        return out

    def _summed(self, routed: Tensor, values: int) -> Tensor:
        """Over the experts, by CUDA's autocast in FP32. The gradient is no view: it is written out for a reshape."""
        width = FP32 if self.width.autocast and self.cuda else routed.width
        return self.tape.written_out(routed, values, width)

    def _router(self, x: Tensor, mlp: Mlp, router: Linear) -> tuple[Tensor, Tensor]:
        """The scores of all experts, a sigmoid of minus infinity but for the chosen; and the logits."""
        tape, chosen = self.tape, self.tokens * mlp.experts_per_token
        logits = self.linear(x, router)
        indices = tape.new(chosen, 8)
        values = tape.written_out(logits, chosen, kept=(indices,))
        scores = tape.written_out(values, logits.values, kept=(indices,))
        scores = tape.cast(scores, FP32)
        return tape.cast(tape.keeps_result(scores), logits.width), logits

    def _experts(self, routed: Tensor, mlp: Mlp) -> Tensor:
        tape, (first, last) = self.tape, mlp.expert_linears
        gate_up = self._of_all(routed, first, mlp.experts)
        gate, up = tape.split(gate_up, gate_up.values // 2, gate_up.values // 2)
        return self._of_all(tape.mul(up, self.activated(gate)), last, mlp.experts)

    def _of_all(self, x: Tensor, linear: Linear, experts: int) -> Tensor:
        """`torch.bmm` of each expert's tokens and its matrix."""
        weight = self.weight(experts, linear.outputs, linear.inputs)
        x, weight = self.low(x, weight)
        values = x.values // linear.inputs * linear.outputs
        return self.tape.product(x, weight, values, inner=linear.inputs, kind="scores")
