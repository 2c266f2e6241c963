"""The ways in which attention runs on the tape: the fused kernel, its formula written out, or eager. No torch."""

from __future__ import annotations

from collections.abc import Sequence

from ....catalog.fused_attention import Heads, efficient_backward, efficient_forward, flash_backward
from ....catalog.hardware import AttentionCall, AttentionKernel
from ....catalog.layers import Attention
from ....catalog.train_setup import TrainSetup
from ...breakdown import rounded
from ..tape import Tensor
from .linears import FP32, HALF, Linears

FUSED, REPEATED, FORMULA = "fused", "repeated", "formula"


class Attending(Linears):
    """Attention over what q, k and v have returned.

    `kernel` is what "sdpa" runs: the FUSED one; REPEATED, which has grouped K and V written out for each query head
    first; or the plain FORMULA, where a GPU has no fused one. With `cuda` what its kernels hold for a while counts.
    """

    def attended(self, query: Tensor, key: Tensor, value: Tensor, attention: Attention) -> tuple[Tensor, Tensor | None]:
        run = self._fused if self.setup.attention == "sdpa" else self._eager
        return run(query, key, value, attention)

    def masks(self, attention: Attention) -> bool:
        """Whether attention is given a mask, of which the fused kernel makes numbers."""
        return has_mask(self.setup, attention) or self.setup.attention == "eager"

    def mask_bytes(self, attention: Attention) -> int:
        """Of the mask that all layers with this window share: bools, or for eager attention numbers that are added."""
        setup = self.setup
        numbers = setup.tokens * setup.sequence * self.width.residual
        bools = setup.sequence**2 * (setup.micro_batch if setup.masked else 1)
        return rounded(bools if setup.attention == "sdpa" else numbers) if self.masks(attention) else 0

    def _fused(self, query: Tensor, key: Tensor, value: Tensor, attention: Attention) -> tuple[Tensor, None]:
        tape, mask = self.tape, self.masks(attention)
        if self.kernel == REPEATED or mask:
            key, value = self._repeated(key, query.values), self._repeated(value, query.values)
        named = key, value  # noqa: F841 - autocast casts inside of the call, beside what it is given
        if self.width.autocast:
            query, key, value = tape.cast(query, HALF), tape.cast(key, HALF), tape.cast(value, HALF)
        if self.kernel == FORMULA:
            return self._formula(query, key, value, attention), None
        rows, (in_forward, in_backward) = self.tokens * attention.heads, self._held(query, key, attention)
        values = query.values // attention.head_dim * attention.value_width
        numbers = [tape.new(self.tokens * self.setup.sequence, query.width)] if mask else []
        held = [tape.new(size, 1) for size in in_forward]
        out = tape.attention(query, key, value, rows, in_backward, values, self.setup.sequence, *numbers)
        del held
        return out, None

    def _held(self, query: Tensor, key: Tensor, attention: Attention) -> tuple[list[int], list[int]]:
        """What CUDA's fused kernel holds, at most, besides its result in the forward, and the gradients after it."""
        if not self.cuda:
            return [], []
        setup, width = self.setup, attention.head_dim
        kv_heads = key.values // (self.tokens * width)
        shape = setup.micro_batch, attention.heads, kv_heads, setup.sequence, setup.sequence
        heads = Heads(*shape, width, attention.value_width, query.width)
        if self.cuda.attention_kernel(call_of(setup, attention, kv_heads)) is not AttentionKernel.EFFICIENT:
            return [], list(*flash_backward(heads))
        in_backward = max(efficient_backward(self.cuda.capability, heads), key=sum)
        return [size for sizes in efficient_forward(heads) for size in sizes], list(in_backward)

    def _formula(self, query: Tensor, key: Tensor, value: Tensor, attention: Attention) -> Tensor:
        """`_scaled_dot_product_attention_math`: in FP32, its scores written out, one tensor of them kept."""
        tape, dtype, square = self.tape, query.width, self.setup.sequence**2
        scores = self.tokens * self.setup.sequence * attention.heads
        query, key, value = tape.cast(query, FP32), tape.cast(key, FP32), tape.cast(value, FP32)
        scaled = tape.elementwise(query)
        lower = [tape.new(square, 1), tape.new(square, FP32)]  # noqa: F841 - the causal mask, as bools and as numbers
        values_out = query.values // attention.head_dim * attention.value_width
        keys = key if key.values == query.values else tape.written_out(key, query.values)
        values = value if value.values == values_out else tape.written_out(value, values_out)
        apart = self.loose and not self.joins_heads
        scaled, scaled_keys = self._in_order(scaled, apart), tape.elementwise(keys)
        weights = tape.product(
            scaled, self._in_order(scaled_keys, apart and keys is key), scores, attention.head_dim, kind="scores"
        )
        del scaled_keys
        weights = tape.elementwise(weights)
        weights = self._softmax(weights)
        values = self._in_order(values, self.loose and values is value)
        product = tape.product(weights, values, values_out, self.setup.sequence, kind="scores")
        output = tape.cast(product, dtype)
        if dtype != FP32:
            tape.new(scores, dtype)  # the weights, which nobody asked for
        return output

    def _eager(self, query: Tensor, key: Tensor, value: Tensor, attention: Attention) -> tuple[Tensor, Tensor]:
        tape, scores = self.tape, self.tokens * self.setup.sequence * attention.heads
        dtype, values_out = query.width, query.values // attention.head_dim * attention.value_width
        keys, values = self._repeated(key, query.values), self._repeated(value, values_out)
        loose = [self.loose and not self.joins_heads, self.loose and not self.joins_heads and keys is key]
        weights = tape.elementwise(self._matmul(query, keys, scores, attention.head_dim, loose))
        weights = self._capped(weights)
        weights = tape.elementwise(weights, width=max(dtype, self.width.residual))  # and the mask
        weights, _named = self._probabilities(weights, attention, dtype if self.casts_weights else 0, values.width)
        output = self._matmul(weights, values, values_out, self.setup.sequence, [False, self.loose and values is value])
        output = tape.copy(output)
        return output, weights

    def _probabilities(self, weights: Tensor, attention: Attention, width: int, own: int) -> tuple[Tensor, object]:
        """Of the scores, in the query's `width` or as softmax leaves them; and what is named on. V's is its `own`."""
        weights = self._softmax(weights)
        return (self.tape.cast(weights, width) if width else weights), None

    joins_heads = False  # whether q and k are written head by head when they are rotated

    casts_weights = True  # to the type of the query

    def _capped(self, weights: Tensor) -> Tensor:
        return weights

    def _matmul(self, a: Tensor, b: Tensor, values: int, inner: int, loose: Sequence[bool] = (False, False)) -> Tensor:
        tape = self.tape
        if self.width.autocast:
            a, b = tape.cast(a, HALF), tape.cast(b, HALF)
        a, b = (self._in_order(one, apart) for one, apart in zip((a, b), loose, strict=True))
        return tape.product(a, b, values, inner, kind="scores")

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
        return tape.written_out(x, values)


def has_mask(setup: TrainSetup, attention: Attention) -> bool:
    """Whether Transformers makes a mask: for padding, for packing, and from a sequence on as long as a window."""
    return setup.masked or (attention.window is not None and setup.sequence >= attention.window)


def call_of(setup: TrainSetup, attention: Attention, kv_heads: int) -> AttentionCall:
    """What SDPA is asked for. With a mask K and V have a head for each of Q's."""
    masked, width = has_mask(setup, attention), attention.value_width
    kv = attention.heads if masked else kv_heads
    return AttentionCall(setup.attention_format, attention.head_dim, width, attention.heads, kv, masked=masked)
