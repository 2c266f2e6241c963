"""The moments of a training step, read off its chain: what is alive at each turning point, part by part. No torch.

An optimizer inside the backward updates each weight whose gradient is whole, and frees that: gradients are never there
together, and the peak is where activations are most, with one gradient and what its update makes. A tied table is one
weight with two uses: the head's part of its gradient waits through the whole backward for the embedding's.
"""

from __future__ import annotations

from ...catalog.embedding_gradient import held_while_summing
from ...catalog.layers import Layer
from ...catalog.optimizers import EMBEDDING
from ...catalog.train_setup import TrainSetup
from ..breakdown import BLOCK_BYTES, Breakdown, Moment, Part, Point, rounded, tensors_bytes
from .chain import Chain
from .decoders.families import decoder
from .layer_run import layer_run
from .operators import Operators
from .tape import Live
from .updates import update_bytes

SCALARS = 3  # the loss, the number of targets it is a mean of, and the gradient that backward() begins with


class TapedStep(Chain):
    """One step of `setup`; each method is one moment."""

    def _weights(self) -> None:
        """Inside the backward each weight has an optimizer with tables of levels; the embedding's is the last."""
        super()._weights()
        self.stepping = self.trained
        if self.setup.in_backward:
            rule, table = self.setup.optimizer_rule, (self.model.vocab, self.model.embedding_width)
            self.optimizer_bytes += sum(rule.rule_of(*one).table_bytes(one[0]) for one in self.trained)
            self.stepping, self.all_gradients = [(table, EMBEDDING)], tensors_bytes([table], self.grad_bytes)

    def moments(self) -> tuple[Moment, ...]:
        """All of them, in the order of the step."""
        return (
            self.end_of_forward(),
            self.backward_of_loss(),
            *([self.backward_of_lm_head()] if Point.LM_HEAD in self.tail else []),
            self.backward_of_final_norm(),
            *(self.backward_of_layer(at) for at in self.candidate_peak_layers()),
            self.backward_of_embedding(),
            self.optimizer_step(),
        )

    def _moment(self, at: Point, *spots: Live, layer: int | None = None) -> Moment:
        """What is alive at a point, at the highest of its spots."""
        live = max(spots, key=lambda spot: spot.total)
        sizes = {
            Part.PARAMETERS: self.parameter_bytes,
            Part.GRADIENTS: self.all_gradients if self.accumulates else live.gradients,
            Part.OPTIMIZER: self.optimizer_bytes,
            Part.ACTIVATIONS: live.kept,
            Part.LOGITS: live.logits,
            Part.WORKSPACE: live.total - live.kept - live.logits - live.gradients + self.cublas,
        }
        return Moment(at, Breakdown({part: size for part, size in sizes.items() if size}), layer)

    def saved_bytes(self) -> int:
        """Alive when the forward has returned: what layers and loss keep, the ids that they hold, three scalars."""
        positions = decoder(self.setup, Operators()).ids(self._holds_arguments)
        # the leaf of the micro-batch before
        earlier = self.held_by_the_loss // 2 if self.setup.micro_batches > 1 else 0
        return self.stored_bytes + self.tail_bytes + self.tables + positions + earlier + (SCALARS - 1) * BLOCK_BYTES

    def end_of_forward(self) -> Moment:
        """In the loss; or, with few logits, in the last layer, while the model's forward holds its arguments."""
        return self._moment(Point.END_OF_FORWARD, *self._forward_spots)

    def backward_of_loss(self) -> Moment:
        return self._moment(Point.LOSS, self.tail[Point.LOSS])

    def backward_of_lm_head(self) -> Moment:
        return self._moment(Point.LM_HEAD, self.tail[Point.LM_HEAD])

    def backward_of_final_norm(self) -> Moment:
        return self._moment(Point.FINAL_NORM, self.tail[Point.FINAL_NORM])

    def candidate_peak_layers(self) -> list[int]:
        """The last layer, the first, or the ends of their segments; and where it is highest."""
        heights = {at: max(live.total for live in spots) for at, spots in self._spots.items()}
        last, every = len(self.model.layers) - 1, self.setup.checkpoint_every
        ends = {last, 0} if not every else {last, (last + 1) // every * every - 1, every - 1}
        highest = max(heights, key=heights.__getitem__)
        if every is None or heights[highest] > max(heights[at] for at in ends):
            ends.add(highest)
        return sorted(ends, reverse=True)

    def backward_of_layer(self, at: int) -> Moment:
        """The widest point of one layer's backward, or of the forward that is run again before it."""
        return self._moment(Point.LAYER, *self._spots[at], layer=at)

    def backward_of_embedding(self) -> Moment:
        """All gradients are there, and that of the embedding's output, until a trained embedding's own is made.

        Tied weights then hold three of vocab x hidden: the head's, the embedding's, their sum. Under autocast two: the
        head's is a cast, no view, and autograd adds the embedding's to it in place.
        """
        if self.adapter:
            held = (self.held_by_the_loss or self.residual) + self.beside
            return self._moment(Point.EMBEDDING, Live(held + self.all_gradients, 0, self.all_gradients))
        found = self._at_embedding(tensors_bytes([(self.model.vocab, self.model.embedding_width)], self.new_bytes))
        return max(found, self.optimizer_step(), key=lambda one: one.total) if self.setup.in_backward else found

    def _at_embedding(self, table: int) -> Moment:
        waiting = table if self.model.tied else 0
        made = waiting + self.residual + self._summing()
        if not self.width.casts_weights:
            made = max(made, 2 * waiting)
        made += table if self.accumulates else self.all_gradients
        return self._moment(Point.EMBEDDING, Live(made, 0, 0 if self.accumulates else self.all_gradients))

    def _summing(self) -> int:
        """Of the kernel that adds up an embedding's gradient, on CUDA."""
        model, tokens = self.model, self.setup.micro_batch * self.setup.sequence
        held = held_while_summing(tokens, model.vocab, model.embedding_width, self.new_bytes) if self.cuda else ()
        return sum(map(rounded, held))

    def optimizer_step(self) -> Moment:
        """Weights, gradients, states, and the copies that the optimizer makes while it steps."""
        gradients = 0 if self.accumulates else self.all_gradients
        made = update_bytes(self.setup.optimizer_rule, self.stepping, self.optimized_bytes)
        return self._moment(Point.OPTIMIZER, Live(made + self.held_by_the_loss + gradients, 0, gradients))


def bytes_saved_by(setup: TrainSetup, layer: Layer) -> int:
    """What one layer keeps for its backward where nothing is recomputed.

    Llama-2-7B, micro-batch 1, sequence 2048, BF16, SDPA: 364.3 MiB.
    """
    run = layer_run(setup, layer)
    return run.saved.total + (run.input.total if run.keeps_input else 0)
