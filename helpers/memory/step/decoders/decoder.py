"""A decoder on the tape: Transformers' code, of which only the bytes are left. Llama's here; `families` has the others.

The functions have the variables of the code that they stand for, so that a tensor lives here as long as it does there.
Shape letters: N = micro-batch x sequence, h = hidden, f = ffn, q = heads x head_dim, k = kv_heads x head_dim.
"""

from __future__ import annotations

from collections.abc import Callable

from ....catalog.layers import Attention, Layer, Linear, Mlp
from ....catalog.losses import FULL
from ....catalog.policies import SELECTIVE
from ...breakdown import Point, rounded
from ..tape import FROZEN, Tensor
from .attending import FUSED, Attending
from .linears import FP32, HALF
from .losses import fused_loss

PRODUCTS = ("product", "scaled product")  # of linear layers
Module = Callable[[Tensor], tuple[Tensor, Tensor | None]]  # what it returns, and attention's weights


class Decoder(Attending):
    """The model of `setup`, or with an adapter what trains that, on one tape; kernels are as in `Attending`."""

    # --- the model ---------------------------------------------------------------------------------------------------

    def layer(self, hidden: Tensor, layer: Layer, how: str = "none") -> Tensor:
        """One layer under what a policy does inside of it: a checkpoint of the whole, of a part, or none."""
        if how in SELECTIVE:
            return self.tape.checkpointed(lambda x: self.block(x, layer), hidden, stores=_stores(how))
        return self.block(hidden, layer, how)

    def block(self, hidden: Tensor, layer: Layer, how: str = "none") -> Tensor:
        attention, checkpointed = layer.attention, how == "module:attention"
        hidden, _ = self._plus(hidden, lambda x: self.attention(x, attention), checkpointed, layer.norms)
        return self._with_mlp(hidden, layer, how)

    def _with_mlp(self, hidden: Tensor, layer: Layer, how: str) -> Tensor:
        return self._plus(hidden, lambda x: (self.mlp(x, layer.mlp), None), how == "module:mlp", layer.norms)[0]

    names_attention = False  # whether a layer names what attention returned to its end, as it does the weights

    def _plus(self, hidden: Tensor, part: Module, checkpointed: bool, norms: int) -> tuple[Tensor, object]:
        """What attention or the MLP makes of it and itself; and what is named as long as the layer runs."""
        tape, residual = self.tape, hidden
        hidden = self.norm(hidden, self.tokens)
        hidden, weights = self._checkpointed(part, hidden) if checkpointed else part(hidden)
        if norms == 4:
            hidden = self.norm(hidden, self.tokens)
        return tape.add(residual, hidden), (weights, hidden if self.names_attention else None)

    def _checkpointed(self, part: Module, hidden: Tensor) -> tuple[Tensor, Tensor | None]:
        """The weights that it returns are named as well, if not saved."""
        returned: list[Tensor | None] = []

        def run(x: Tensor) -> Tensor:
            out, weights = part(x)
            if not returned:
                returned.append(weights)
            return out

        hidden = self.tape.checkpointed(run, hidden)
        weights, returned[0] = returned[0], None
        return hidden, weights

    def loss(self, hidden: Tensor) -> Tensor:
        """From the last layer's output: the final norm, `lm_head`, and the loss in FP32."""
        tape, tape.stage = self.tape, Point.FINAL_NORM
        hidden = self.norm(hidden, self.tokens)
        if self.setup.loss != FULL:
            tape.stage = Point.LOSS
            return fused_loss(self, hidden)
        tape.stage = Point.LM_HEAD
        logits = self.head(hidden)
        tape.stage = Point.LOSS
        if self.names_logits:
            self.named = logits
        return self._cross_entropy(logits)

    names_logits = False  # whether somebody does to the end of the backward

    def head(self, hidden: Tensor) -> Tensor:
        head, tape = Linear("lm_head", self.model.hidden, self.model.vocab, self.model.lm_head_bias), self.tape
        hidden = tape.shared(hidden) if self.parts > 1 else hidden
        logits = self._product(hidden, head, is_logits=True)
        if self.parts > 1:
            logits = tape.gathered(logits, self.parts)
        if self.logit_cap and self.model.config.get("final_logit_softcapping", self.logit_cap):
            logits = tape.elementwise(logits, is_logits=True)
            logits = tape.keeps_result(logits, is_logits=True)
            logits = tape.elementwise(logits, is_logits=True)
        return logits

    logit_cap = 0.0  # where a family caps its logits, and the config does not say at what

    def _cross_entropy(self, logits: Tensor) -> Tensor:
        tape = self.tape
        logits = tape.cast(logits, FP32)
        targets = tape.new(self.tokens, 8)
        log_softmax = tape.keeps_result(logits, is_logits=True)
        return tape.shaped(tape.new(1, FP32), log_softmax, kept=(log_softmax, targets))

    def norm(self, x: Tensor, rows: int) -> Tensor:
        """RMSNorm as Transformers writes it, in FP32; where its weight is frozen, the normalised value is not kept."""
        tape, width, weight = self.tape, x.width, self.weight(x.values // rows)
        x, _variance = self._over_rms(tape.cast(x, FP32), rows)
        return self.scaled(x, weight, width)

    def scaled(self, x: Tensor, weight: Tensor, width: int) -> Tensor:
        """The normalised value in the type of the norm's input, times the weight."""
        return self.tape.mul(weight, self.tape.cast(x, width))

    def _over_rms(self, x: Tensor, rows: int) -> tuple[Tensor, Tensor]:
        """The normalised value, and the mean of squares, which its caller names on.

        Pow's backward makes two more of x's size beside its result, and mean's writes its gradient out.
        """
        tape = self.tape
        variance = tape.written_out(tape.elementwise(x, kept=(x,), scratch=2), rows)
        return tape.mul(x, tape.keeps_result(tape.elementwise(variance))), variance

    # --- attention and MLP -------------------------------------------------------------------------------------------

    def attention(self, hidden: Tensor, attention: Attention) -> tuple[Tensor, Tensor | None]:
        query, key, value = self.projected(hidden, attention)
        output, weights = self.attended(query, key, value, attention)
        return self.linear(output, attention.linears[-1]), weights

    def projected(self, hidden: Tensor, attention: Attention) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v as attention reads them."""
        q, k, v, _ = attention.linears
        query = self.linear(hidden, q)
        if attention.qk_norm:
            query = self.norm(query, self.tokens * attention.heads)
        key = self.linear(hidden, k)
        if attention.qk_norm:
            key = self.norm(key, self.tokens * attention.kv_heads)
        value = self.linear(hidden, v)
        return (self.rotated(query), self.rotated(key), value) if attention.rotary else (query, key, value)

    def rotated(self, x: Tensor) -> Tensor:
        """(x * cos) + (rotate_half(x) * sin)"""
        return self.tape.add(self._times(x), self._times(self._half_turned(x)))

    rotary_default = 1.0

    @property
    def rotary_share(self) -> float:
        """`partial_rotary_factor`, which newer configs keep with the other parameters of the rotation."""
        rope = self.model.config.get("rope_parameters")
        inside = rope.get("partial_rotary_factor") if isinstance(rope, dict) else None
        return float(str(self.model.config.get("partial_rotary_factor") or inside or self.rotary_default))

    def _turned(self, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        """first * cos - second * sin, second * cos + first * sin"""
        real = self._difference(self._times(first), self._times(second))
        return real, self.tape.add(self._times(second), self._times(first))

    def _times(self, x: Tensor) -> Tensor:
        """Times a table, in the type of the hidden states."""
        return self.tape.elementwise(x, kept=(FROZEN,), width=max(x.width, self.width.residual))

    def _difference(self, a: Tensor, b: Tensor) -> Tensor:
        """The gradient of what is subtracted is a new tensor."""
        return self.tape.add(a, self.tape.negative(b))

    def _half_turned(self, x: Tensor) -> Tensor:
        tape = self.tape
        first, second = tape.part(x, x.values // 2), tape.part(x, x.values // 2)
        return tape.joined(tape.elementwise(second), first)

    tables_by_kind = False  # whether layers with a window and those without have rotary tables of their own

    @property
    def table_bytes(self) -> tuple[int, ...]:
        """Of each position in the tables of cosines and sines."""
        return (round(self.model.head_dim * self.rotary_share) * self.width.residual,) * 2

    def ids(self, held: bool) -> int:
        """Bytes of the ids that are alive when the forward is over: here those that checkpoints have `held`."""
        return rounded(8 * self.setup.sequence) if held else 0

    def named_embeddings(self, held: bool, is_leaf: bool) -> int:
        """Bytes that the model's own forward names while its layers run: their first input.

        They are counted elsewhere where that is `held` by a layer, or the embedding's output a leaf of the graph.
        """
        return 0 if held or is_leaf else rounded(self.tokens * self.model.hidden * self.width.residual)

    def mlp(self, x: Tensor, mlp: Mlp) -> Tensor:
        return self.routed(x, mlp) if mlp.experts else self.gated_mlp(x, mlp)

    def routed(self, x: Tensor, mlp: Mlp) -> Tensor:
        """Experts, in the families that have some."""
        raise NotImplementedError

    def gated_mlp(self, x: Tensor, mlp: Mlp) -> Tensor:
        gate, up, down = mlp.linears[:3]
        return self.linear(self.tape.mul(self.activated(self.linear(x, gate)), self.linear(x, up)), down)

    def gated(self, gate_up: Tensor) -> Tensor:
        gate, up = self.tape.split(gate_up, gate_up.values // 2, gate_up.values // 2)
        return self.tape.mul(self.activated(gate), up)

    def activated(self, x: Tensor) -> Tensor:
        return self.tape.elementwise(x, kept=(x,))


class CenteredNorm(Decoder):
    """Norms in FP32 to the end, times 1 + weight."""

    def scaled(self, x: Tensor, weight: Tensor, width: int) -> Tensor:
        tape = self.tape
        factor = tape.elementwise(tape.cast(weight, FP32)) if weight.node else weight
        return tape.cast(tape.mul(x, factor), width)


class PartlyRotated(Decoder):
    """A part of each head is rotated, and the rest put behind it again, which brings the heads one after the other."""

    joins_heads = True

    def rotated(self, x: Tensor) -> Tensor:
        tape, turned = self.tape, round(x.values * self.rotary_share)
        part, rest = tape.part(x, turned), tape.part(x, x.values - turned)
        return tape.joined(super().rotated(part), rest)

    def attended(self, query: Tensor, key: Tensor, value: Tensor, attention: Attention) -> tuple[Tensor, Tensor | None]:
        """Flash attention writes as its query lies, here head by head, and that is turned over behind it.

        It takes 16 bits and no mask; a CPU's takes all.
        """
        output, weights = super().attended(query, key, value, attention)
        flash = not self.cuda or (output.width == HALF and not self.masks(attention))
        turned = flash and self.setup.attention == "sdpa" and self.kernel == FUSED
        return self.tape.copy(output) if turned else output, weights


def _stores(how: str) -> Callable[[str, int], bool]:
    """What a selective policy stores of a layer: its products, every second of them, or what attention returns."""

    def stores(kind: str, number: int) -> bool:
        if kind == "attention":
            return how != "selective:matmuls"
        if how == "selective:every-second":
            return kind in PRODUCTS and number % 2 == 0
        return kind in (*PRODUCTS, "scores") and how != "selective:attention"

    return stores
