"""A decoder on the tape: Transformers' code, of which only the bytes are left. Llama's here; `families` has the others.

The functions have the variables of the code that they stand for, so that a tensor lives here as long as it does there.
Shape letters: N = micro-batch x sequence, h = hidden, f = ffn, q = heads x head_dim, k = kv_heads x head_dim.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...catalog.fused_attention import Heads, efficient_backward, efficient_forward, flash_backward
from ...catalog.hardware import AttentionCall, AttentionKernel, Cuda
from ...catalog.layers import Attention, Layer, Linear, Mlp
from ...catalog.optimizers import HEAD
from ...catalog.policies import SELECTIVE
from ...catalog.setup import TrainSetup
from .breakdown import Point, rounded
from .linears import FP32, HALF, Linears
from .operators import Operators
from .tape import FROZEN, Tensor

FUSED, REPEATED, FORMULA = "fused", "repeated", "formula"
PRODUCTS = ("product", "scaled product")  # of linear layers


class Decoder(Linears):
    """The model of `setup`, or with an adapter what trains that, on one tape.

    `kernel` is what "sdpa" runs: the FUSED one; REPEATED, which has grouped K and V written out for each query head
    first; or the plain FORMULA, where a GPU has no fused one. With `cuda` what its kernels hold for a while counts.
    """

    def __init__(self, setup: TrainSetup, tape: Operators, kernel: str = FUSED, cuda: Cuda | None = None) -> None:
        super().__init__(setup, tape)
        self.kernel, self.cuda = kernel, cuda

    # --- the model ---------------------------------------------------------------------------------------------------

    def layer(self, hidden: Tensor, layer: Layer, how: str = "none") -> Tensor:
        """One layer under what a policy does inside of it: a checkpoint of the whole, of a part, or none."""
        if how in SELECTIVE:
            return self.tape.checkpointed(lambda x: self.block(x, layer), hidden, stores=_stores(how))
        return self.block(hidden, layer, how)

    def block(self, hidden: Tensor, layer: Layer, how: str = "none") -> Tensor:
        hidden, _ = self._with_attention(hidden, layer, how)
        return self._with_mlp(hidden, layer, how)

    names_attention = False  # whether a layer names what attention returned to its end, as it does the weights

    def _with_attention(self, hidden: Tensor, layer: Layer, how: str) -> tuple[Tensor, object]:
        """The sum, and what is named as long as the layer runs."""
        tape, residual, weights = self.tape, hidden, None
        hidden = self.norm(hidden, self.tokens)
        if how == "module:attention":
            hidden, weights = self._checkpointed_attention(hidden, layer.attention)
        else:
            hidden, weights = self.attention(hidden, layer.attention)
        if layer.norms == 4:
            hidden = self.norm(hidden, self.tokens)
        return tape.add(residual, hidden), (weights, hidden if self.names_attention else None)

    def _checkpointed_attention(self, hidden: Tensor, attention: Attention) -> tuple[Tensor, Tensor | None]:
        """The weights that it returns are named as well, if not saved."""
        returned: list[Tensor | None] = []

        def run(x: Tensor) -> Tensor:
            out, weights = self.attention(x, attention)
            if not returned:
                returned.append(weights)
            return out

        hidden = self.tape.checkpointed(run, hidden)
        weights, returned[0] = returned[0], None
        return hidden, weights

    def _with_mlp(self, hidden: Tensor, layer: Layer, how: str) -> Tensor:
        tape, residual = self.tape, hidden
        hidden = self.norm(hidden, self.tokens)
        if how == "module:mlp":
            hidden = tape.checkpointed(lambda x: self.mlp(x, layer.mlp), hidden)
        else:
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
        if self.names_logits:
            self.named = logits
        return self._cross_entropy(logits)

    names_logits = False  # whether somebody does to the end of the backward

    def head(self, hidden: Tensor) -> Tensor:
        head, tape = Linear("lm_head", self.model.hidden, self.model.vocab, self.model.lm_head_bias), self.tape
        if self.adapter:
            logits = self._product(hidden, head, is_logits=True)
        else:
            hidden = tape.shared(hidden) if self.parts > 1 else hidden
            logits = self._trained_layer(hidden, head, is_logits=True, waits=self.model.tied, role=HEAD)
        if self.parts > 1:
            logits = tape.gathered(logits, self.parts)
        if self.logit_cap:
            logits = tape.elementwise(logits, is_logits=True)
            logits = tape.keeps_result(logits, is_logits=True)
            logits = tape.elementwise(logits, is_logits=True)
        return logits

    @property
    def logit_cap(self) -> object:
        """What the logits are capped at, if they are."""
        return None

    def _cross_entropy(self, logits: Tensor) -> Tensor:
        tape = self.tape
        logits = tape.cast(logits, FP32)
        targets = tape.new(self.tokens, 8)
        log_softmax = tape.keeps_result(logits, is_logits=True)
        return tape.shaped(tape.new(1, FP32), log_softmax, kept=(log_softmax, targets))

    def norm(self, x: Tensor, rows: int) -> Tensor:
        """RMSNorm as Transformers writes it, in FP32; where its weight is frozen, the normalised value is not kept."""
        tape, width, size = self.tape, x.width, x.values // rows
        weight = self.weight(size)
        x = tape.cast(x, FP32)
        variance = self._mean_of_squares(x, rows)
        x = tape.mul(x, tape.keeps_result(tape.elementwise(variance)))
        return self.scaled(x, weight, width)

    def scaled(self, x: Tensor, weight: Tensor, width: int) -> Tensor:
        """The normalised value in the type of the norm's input, times the weight."""
        return self.tape.mul(weight, self.tape.cast(x, width))

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
        if attention.rotary:
            query, key = self.rotated(query), self.rotated(key)
        output, weights = self.attended(query, key, value, attention)
        return self.linear(output, o), weights

    def attended(self, query: Tensor, key: Tensor, value: Tensor, attention: Attention) -> tuple[Tensor, Tensor | None]:
        run = self._fused if self.setup.attention == "sdpa" else self._eager
        return run(query, key, value, attention)

    def rotated(self, x: Tensor) -> Tensor:
        """(x * cos) + (rotate_half(x) * sin), the tables in the type of the hidden states."""
        tape, wide = self.tape, max(x.width, self.width.residual)
        by_cosine = tape.elementwise(x, kept=(FROZEN,), width=wide)
        return tape.add(by_cosine, tape.elementwise(self._half_turned(x), kept=(FROZEN,), width=wide))

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

    def _fused(self, query: Tensor, key: Tensor, value: Tensor, attention: Attention) -> tuple[Tensor, None]:
        tape, mask = self.tape, self.masks(attention)
        if self.kernel == REPEATED or mask:
            key, value = self._repeated(key, query.values), self._repeated(value, query.values)
        if self.width.autocast:
            query, key, value = tape.cast(query, HALF), tape.cast(key, HALF), tape.cast(value, HALF)
        if self.kernel == FORMULA:
            return self._formula(query, key, value, attention), None
        rows, (in_forward, in_backward) = self.tokens * attention.heads, self._held(query, key, attention)
        values = query.values // attention.head_dim * attention.value_width
        numbers = [tape.new(self.tokens * self.setup.sequence, query.width)] if mask else []
        held = [tape.new(size, 1) for size in in_forward]
        out = tape.attention(query, key, value, rows, in_backward, values, *numbers, keys=self.setup.sequence)
        del held
        return out, None

    def masks(self, attention: Attention) -> bool:
        """Whether attention is given a mask: the fused kernel, which makes numbers of it, for a window that is full."""
        return fills_window(self.setup, attention) or self.setup.attention == "eager"

    def mask_bytes(self, attention: Attention) -> int:
        """Of the mask that all layers with this window share: bools, or for eager attention numbers that are added."""
        setup = self.setup
        numbers = setup.tokens * setup.sequence * self.width.residual
        return rounded(setup.sequence**2 if setup.attention == "sdpa" else numbers) if self.masks(attention) else 0

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

    def _formula(self, query: Tensor, key: Tensor, value: Tensor, attention: Attention) -> Tensor:
        """`_scaled_dot_product_attention_math`: in FP32, its scores written out, one tensor of them kept."""
        tape, dtype, square = self.tape, query.width, self.setup.sequence**2
        scores = self.tokens * self.setup.sequence * attention.heads
        query, key, value = tape.cast(query, FP32), tape.cast(key, FP32), tape.cast(value, FP32)
        scaled = tape.elementwise(query)
        lower = [tape.new(square, 1), tape.new(square, FP32)]  # noqa: F841 - the causal mask, as bools and as numbers
        values_out = query.values // attention.head_dim * attention.value_width
        keys, values = self._written_out_heads(key, query.values), self._written_out_heads(value, values_out)
        apart = self.loose and not self.joins_heads
        scaled, scaled_keys = self._in_order(scaled, apart), tape.elementwise(keys)
        weights = tape.matmul(scaled, self._in_order(scaled_keys, apart and keys is key), scores, attention.head_dim)
        del scaled_keys
        weights = tape.elementwise(weights)
        weights = self._softmax(weights)
        values = self._in_order(values, self.loose and values is value)
        product = tape.matmul(weights, values, values_out, self.setup.sequence)
        output = tape.cast(product, dtype)
        if dtype != FP32:
            tape.new(scores, dtype)  # the weights, which nobody asked for
        return output

    def _held(self, query: Tensor, key: Tensor, attention: Attention) -> tuple[list[int], list[int]]:
        """What CUDA's fused kernel holds, at most, besides its result in the forward, and the gradients after it."""
        if not self.cuda:
            return [], []
        setup, width = self.setup, attention.head_dim
        kv_heads = key.values // (self.tokens * width)
        shape = setup.micro_batch, attention.heads, kv_heads, setup.sequence, setup.sequence
        heads = Heads(*shape, width, attention.value_width, query.width)
        of_heads = width, attention.value_width, attention.heads, kv_heads
        call = AttentionCall(setup.attention_format, *of_heads, masked=self.masks(attention))
        if self.cuda.attention_kernel(call) is not AttentionKernel.EFFICIENT:
            return [], list(*flash_backward(heads))
        in_backward = max(efficient_backward(self.cuda.capability, heads), key=sum)
        return [size for sizes in efficient_forward(heads) for size in sizes], list(in_backward)

    def _eager(self, query: Tensor, key: Tensor, value: Tensor, attention: Attention) -> tuple[Tensor, Tensor]:
        tape, scores = self.tape, self.tokens * self.setup.sequence * attention.heads
        dtype, values_out = query.width, query.values // attention.head_dim * attention.value_width
        keys, values = self._repeated(key, query.values), self._repeated(value, values_out)
        loose = [self.loose and not self.joins_heads, self.loose and not self.joins_heads and keys is key]
        weights = tape.elementwise(self._matmul(query, keys, scores, attention.head_dim, loose))
        weights = self._capped(weights)
        weights = tape.elementwise(weights, width=max(dtype, self.width.residual))  # and the mask
        weights = tape.cast(self._softmax(weights), dtype) if self.casts_weights else self._softmax(weights)
        output = self._matmul(weights, values, values_out, self.setup.sequence, [False, self.loose and values is value])
        output = tape.copy(output)
        return output, weights

    joins_heads = False  # whether q and k are written head by head when they are rotated

    @property
    def loose(self) -> bool:
        """Whether the heads of all sequences, as products leave them, are no one dimension: `matmul` copies them."""
        return self.setup.micro_batch > 1

    casts_weights = True  # to the type of the query

    def _capped(self, weights: Tensor) -> Tensor:
        return weights

    def _matmul(self, a: Tensor, b: Tensor, values: int, inner: int, loose: Sequence[bool] = (False, False)) -> Tensor:
        tape = self.tape
        if self.width.autocast:
            a, b = tape.cast(a, HALF), tape.cast(b, HALF)
        a, b = (self._in_order(one, apart) for one, apart in zip((a, b), loose, strict=True))
        return tape.matmul(a, b, values, inner)

    def _in_order(self, x: Tensor, apart: bool) -> Tensor:
        return self.tape.copy(x) if apart else x

    def _softmax(self, weights: Tensor) -> Tensor:
        """In FP32: CUDA has one kernel from FP16 to it, and casts BF16 first."""
        tape = self.tape
        if not (self.adapter and self.adapter.dtype == "fp16" and weights.width == HALF):
            weights = tape.cast(weights, FP32)
        return tape.softmax(weights, FP32, bool(self.cuda))

    def _repeated(self, x: Tensor, values: int) -> Tensor:
        """`repeat_kv`: written out once for each query head; of a single head a view."""
        tape = self.tape
        if x.values == values:
            return x
        if x.values == self.tokens * self.model.head_dim and (
            self.setup.attention == "sdpa" or self.setup.micro_batch == 1
        ):
            return tape.view(x, values)
        return self._written_out_heads(x, values)

    def _written_out_heads(self, x: Tensor, values: int) -> Tensor:
        return x if x.values == values else self.tape.shaped(self.tape.new(values, x.width), x)

    def mlp(self, x: Tensor, mlp: Mlp) -> Tensor:
        gate, up, down = mlp.linears
        return self.linear(self.tape.mul(self.activated(self.linear(x, gate)), self.linear(x, up)), down)

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

    def partly_rotated(self, x: Tensor) -> Tensor:
        tape, turned = self.tape, round(x.values * self.rotary_share)
        part, rest = tape.part(x, turned), tape.part(x, x.values - turned)
        return tape.joined(self.rotated(part), rest)

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


def fills_window(setup: TrainSetup, attention: Attention) -> bool:
    """Whether the sequence is as long as the layer's window: from there on Transformers makes a mask."""
    return attention.window is not None and setup.sequence >= attention.window
