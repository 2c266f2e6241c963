"""FP8 training as torchao runs it: what its linear layers cast, and what they hold while they do. No torch.

`convert_to_float8_training` keeps BF16: the weights, the gradients, and for the backward pass the very input and weight
that a BF16 layer keeps. Around each product it casts both operands anew, with one scale a tensor, and forgets them. So
FP8 here saves time and no activations; the casts are on top. They are eager PyTorch's: `torch.compile` fuses them, and
holds less. (Transformer Engine is another convention: it keeps the FP8 input, and FP8 copies of the weights, on
Hopper transposed as well.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...catalog.errors import WorkbookError
from ...catalog.layers import Linear
from ...catalog.setup import TrainSetup
from .activations import Owner, Saved, total_bytes
from .breakdown import Moment, Point, rounded
from .moments import StepMoments

AFTER_MLP = (Owner.MLP, Owner.MLP_NORM, Owner.MLP_OUTPUT_NORM, Owner.ATTENTION_OUTPUT_NORM)


def cast_bytes(values: int) -> int:
    """A tensor's cast at its widest: multiplied by the scale in FP32, clamped to FP8's range in FP32, and in FP8.

    >>> cast_bytes(4096 * 4096) / 4096**2
    9.0
    """
    return 2 * rounded(4 * values) + rounded(values)


def backward_bytes(tokens: int, linear: Linear) -> int:
    """The most that one layer's backward holds beside the gradient that it is given, and its saved input and weight.

    In its order: the gradient and the weight in FP8, the product of both, the gradient in FP8 once more, the input in
    FP8, the other product. What is cast stays to the end. The highest is at the second, the third or the fourth cast.
    """
    read, written, weight = tokens * linear.inputs, tokens * linear.outputs, rounded(linear.weights)
    made = rounded(written) + weight + rounded(2 * read)  # both operands in FP8, and the input's gradient in BF16
    return max(
        rounded(written) + cast_bytes(linear.weights),
        made + cast_bytes(written),
        made + rounded(written) + cast_bytes(read),
    )


def forward_bytes(tokens: int, linear: Linear) -> int:
    """The most that one layer's forward holds beside its input and weight: in a cast, or in the product of both."""
    read, written, weight = tokens * linear.inputs, tokens * linear.outputs, rounded(linear.weights)
    product = rounded(read) + weight + rounded(2 * written)
    return max(cast_bytes(read), rounded(read) + cast_bytes(linear.weights), product)


class Float8Moments(StepMoments):
    """A BF16 step whose decoder layers multiply in FP8; `lm_head` stays BF16, as is usual."""

    def end_of_forward(self) -> Moment:
        """Or a little before: in the last layer's last product, with all gradients there where micro-batches add up.

        Beside it are three of N x h: the embedding, the layer's input, and their sum with attention's output.
        """
        last = self.model.layers[-1].mlp.linears[-1]
        streams = 2 + (len(self.model.layers) > 1)  # the first layer's input is the embedding
        workspace = streams * self.residual + forward_bytes(self.setup.tokens, last)
        later = _owned(self.kept.tensors[-1], Owner.MLP_OUTPUT_NORM) if self.setup.segments[-1].how == "none" else 0
        kept = self.stored_bytes - later + self._rotary_tables()
        casting = self._moment(Point.END_OF_FORWARD, (), kept, 0, workspace)
        return max(super().end_of_forward(), casting, key=lambda moment: moment.total)

    def candidate_peak_layers(self) -> list[int]:
        """The first layer always: there are most gradients, and the casts come on top of them."""
        return sorted({*super().candidate_peak_layers(), 0}, reverse=True)

    def backward_of_layer(self, at: int) -> Moment:
        spots = super().backward_of_layer(at), *self._in_linears(at), *self._run_again(at)
        return max(spots, key=lambda moment: moment.total)

    def _run_again(self, at: int) -> Iterator[Moment]:
        """The last product of a layer that is recomputed: what precedes it is there, and its backward has not begun."""
        if any(one.start <= at < one.stop and one.how in ("none", "module:attention") for one in self.setup.segments):
            return
        workspace = 2 * self.residual + forward_bytes(self.setup.tokens, self.model.layers[at].mlp.linears[-1])
        live = self.kept.live_bytes(at) - _owned(self.kept.tensors[at], Owner.MLP_OUTPUT_NORM) + self._rotary_tables()
        yield self._moment(Point.LAYER, self._made_above(at), live, 0, workspace + self._tied_head_waits(), at)

    def _in_linears(self, at: int) -> Iterator[Moment]:
        """The widest point inside each linear layer's backward, the last layer first."""
        layer, gradients = self.model.layers[at], self._made_above(at)
        for linear, live, beside in (*self._of_mlp(at), *self._of_attention(at)):
            temporaries = beside + backward_bytes(self.setup.tokens, linear) + self._tied_head_waits()
            yield self._moment(Point.LAYER, gradients, live + self._rotary_tables(), 0, temporaries, at)
            gradients = [*gradients, *linear.tensors()]
            if linear is layer.attention.linears[-1]:  # q comes last, after k and v
                gradients += [shape for one in layer.attention.linears[1:-1] for shape in one.tensors()]

    def _of_mlp(self, at: int) -> Iterator[tuple[Linear, int, int]]:
        """(layer, saved bytes that are alive, gradients of activations), as the backward comes to each of the MLP."""
        mlp, saved = self.model.layers[at].mlp, self.kept.tensors[at]
        normed = _owned(saved, Owner.MLP_OUTPUT_NORM)
        live, wide = self.kept.live_bytes(at) - normed, rounded(2 * self.setup.tokens * mlp.ffn)
        yield mlp.linears[-1], live, self.residual + (self.hidden if normed else 0)
        if not mlp.gated:  # ReLU has read its output, and let it go
            yield mlp.linears[0], live - wide, wide + self.residual
            return
        gate, up, _ = mlp.linears
        yield up, live - 3 * wide, 2 * wide + self.residual
        yield gate, live - 4 * wide, wide + self.residual + self.hidden

    def _of_attention(self, at: int) -> Iterator[tuple[Linear, int, int]]:
        """The same of attention's output and of its q, the first and the last."""
        attention, saved = self.model.layers[at].attention, self.kept.tensors[at]
        normed = self.hidden if _owned(saved, Owner.ATTENTION_OUTPUT_NORM) else 0
        live = self.kept.live_bytes(at, attention=True) - _owned(saved, *AFTER_MLP)
        yield attention.linears[-1], live, self.residual + normed
        query = rounded(2 * self.setup.tokens * attention.linears[0].outputs)
        done = _owned(saved, Owner.ATTENTION, Owner.QK_NORM)
        yield attention.linears[0], live - done, self.residual + self.hidden + query


def _owned(saved: Sequence[Saved], *owners: Owner) -> int:
    return total_bytes(one for one in saved if one.owner in owners)


def require_one_rank(setup: TrainSetup) -> None:
    """Refuse ZeRO: what is whole beside the casts, and which of them FSDP takes over, nobody has compared."""
    if setup.zero:
        what = f"{setup.precision} at ZeRO stage {setup.zero}"
        do = "choose zero=0, or predict precision='bf16', which shards the same bytes and casts nothing"
        raise WorkbookError(what, "a stage of 0: FSDP can gather weights in FP8, and has no closed form here", do)
