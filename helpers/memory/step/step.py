"""The moments of a training step, read off its chain: what is alive at each turning point, part by part. No torch.

An optimizer inside the backward updates each weight whose gradient is whole, and frees that: gradients are never there
together, and the peak is where activations are most, with one gradient and what its update makes. A tied table is one
weight with two uses: the head's part of its gradient waits through the whole backward for the embedding's.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...catalog.embedding_gradient import held_while_summing
from ...catalog.layers import Layer
from ...catalog.optimizers import EMBEDDING
from ...catalog.train_setup import TrainSetup
from ..breakdown import BLOCK_BYTES, Breakdown, Moment, Part, Point, rounded, tensors_bytes
from .chain import Chain
from .layer_run import layer_run, update_bytes
from .tape import Live

SCALARS = 3  # the loss, the number of targets it is a mean of, and the gradient that backward() begins with


class TapedStep(Chain):
    """One step of `setup`, moment by moment; splits override those that differ."""

    def _weights(self) -> None:
        """Inside the backward each weight has an optimizer with tables of levels; the embedding's is the last."""
        super()._weights()
        self.stepping, self.sums = self.trained, self.accumulates
        embedding = self.model.vocab, self.model.embedding_width
        self.table = tensors_bytes([embedding], self.new_bytes)  # its gradient
        self.of_head = self.table if self.model.tied else 0  # the part of that which waits
        if self.setup.in_backward:
            rule = self.setup.optimizer_rule
            self.optimizer_bytes += sum(rule.rule_of(*one).table_bytes(one[0]) for one in self.trained)
            self.stepping, self.all_gradients = [(embedding, EMBEDDING)], tensors_bytes([embedding], self.grad_bytes)

    def moments(self) -> tuple[Moment, ...]:
        """All of them, in the order of the step."""
        return (*self.of_a_pass(), self.optimizer_step())

    def of_a_pass(self) -> tuple[Moment, ...]:
        """Those of one micro-batch.

        The forward is highest in the loss; or, with few logits, in the last layer, while the model's forward holds its
        arguments. A layer's backward is at its widest, or in the forward that is run again before it.
        """
        return (
            self._moment(Point.END_OF_FORWARD, *self._forward_spots),
            *(self._moment(point, *spots) for point, spots in self.tail.items()),
            *(self._moment(Point.LAYER, *self._spots[at], layer=at) for at in self.candidate_peak_layers()),
            *self._behind_layers(),
        )

    def _moment(self, at: Point, *spots: Live, layer: int | None = None) -> Moment:
        """What is alive at a point, at the highest of its spots."""
        live = max(spots, key=lambda spot: spot.total)
        sizes = {
            Part.PARAMETERS: self.parameter_bytes,
            Part.GRADIENTS: self.summed + live.gradients,
            Part.OPTIMIZER: self.optimizer_bytes,
            Part.ACTIVATIONS: live.kept,
            Part.LOGITS: live.logits,
            Part.WORKSPACE: live.total - live.kept - live.logits - live.gradients + self.cublas,
        }
        return Moment(at, Breakdown({part: size for part, size in sizes.items() if size}), layer)

    def saved_bytes(self) -> int:
        """Alive when the forward has returned: what layers and loss keep, the ids that they hold, three scalars."""
        positions = self.page.ids(self._holds_arguments)
        # the leaf of the micro-batch before
        earlier = self.held_by_the_loss // 2 if self.setup.micro_batches > 1 else 0
        return self.stored_bytes + self.tail_bytes + self.tables + positions + earlier + (SCALARS - 1) * BLOCK_BYTES

    def candidate_peak_layers(self) -> list[int]:
        """The last layer, the first, or the ends of their segments; and where it is highest."""
        heights = {at: max(live.total for live in spots) for at, spots in self._spots.items()}
        last, every = len(self.model.layers) - 1, self.setup.checkpoint_every
        ends = {last, 0} if not every else {last, (last + 1) // every * every - 1, every - 1}
        highest = max(heights, key=heights.__getitem__)
        if every is None or heights[highest] > max(heights[at] for at in ends):
            ends.add(highest)
        return sorted(ends, reverse=True)

    @property
    def summed(self) -> int:
        """Gradients of the micro-batches before, which lie there through all of this one."""
        return self.all_gradients if self.sums else 0

    def _beside(self, made: int, gradients: int) -> Live:
        """What is `made` beside so many gradients in all."""
        new = gradients - self.summed
        return Live(made + new, 0, new)

    def _behind_layers(self) -> Iterable[Moment]:
        """All gradients are there, and that of the embedding's output, until a trained embedding's own is made.

        Tied weights then hold three of vocab x hidden: the head's, the embedding's, their sum. Under autocast two: the
        head's is a cast, no view, and autograd adds the embedding's to it in place.
        """
        if self.adapter:
            held = (self.held_by_the_loss or self.residual) + self.beside
            return [self._moment(Point.EMBEDDING, self._beside(held, self.all_gradients))]
        made = self.of_head + self.residual + self._summing()
        if not self.width.casts_weights:
            made = max(made, 2 * self.of_head)
        found = [*self._at_embedding(made, self.table), *([self.optimizer_step()] if self.setup.in_backward else [])]
        return [max(found, key=lambda one: one.total)]

    def _at_embedding(self, made: int, new: int) -> list[Moment]:
        """So much is made beside all gradients, and beside sums of them a `new` one."""
        return [self._moment(Point.EMBEDDING, self._beside(made + (new if self.sums else 0), self.all_gradients))]

    def _summing(self) -> int:
        """Of the kernel that adds up an embedding's gradient, on CUDA."""
        model, tokens = self.model, self.setup.micro_batch * self.setup.sequence
        held = held_while_summing(tokens, model.vocab, model.embedding_width, self.new_bytes) if self.cuda else ()
        return sum(map(rounded, held))

    def optimizer_step(self) -> Moment:
        """Weights, gradients, states, and the copies that the optimizer makes while it steps."""
        return self._moment(Point.OPTIMIZER, self._beside(self._updating() + self.held_by_the_loss, self.all_gradients))

    def _updating(self) -> int:
        return update_bytes(self.setup.optimizer_rule, self.stepping, self.optimized_bytes)


def bytes_saved_by(setup: TrainSetup, layer: Layer) -> int:
    """What one layer keeps for its backward where nothing is recomputed.

    Llama-2-7B, micro-batch 1, sequence 2048, BF16, SDPA: 364.3 MiB.
    """
    run = layer_run(setup, layer)
    return run.saved.total + (run.input.total if run.keeps_input else 0)
