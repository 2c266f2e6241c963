"""A step whose optimizer runs inside the backward: it updates each weight whose gradient is whole, and frees that.

The gradients are never there together, so the peak is where activations are most, with one gradient and what its
update makes. A tied table is one weight with two uses: the head's part of its gradient waits through the whole backward
for the embedding's, and only then the table is updated.
"""

from __future__ import annotations

from ...catalog.optimizers import EMBEDDING
from ..breakdown import Moment, Point, tensors_bytes
from .step import TapedStep
from .tape import Live
from .updates import update_bytes


class StepInBackward(TapedStep):
    """The moments of `TapedStep`, whose tape updates each weight as its gradient arrives."""

    def _weights(self) -> None:
        """Each weight has an optimizer of its own, and so its own tables of levels."""
        super()._weights()
        rule, self.table = self.setup.optimizer_rule, (self.model.vocab, self.model.embedding_width)
        self.optimizer_bytes += sum(rule.rule_of(*one).table_bytes(one[0]) for one in self.trained)
        self.all_gradients = tensors_bytes([self.table], self.grad_bytes)  # the only one that is there at the end

    def backward_of_embedding(self) -> Moment:
        """The table's own gradient at last, or its sum with a tied head's; then its update."""
        return max(super().backward_of_embedding(), self.optimizer_step(), key=lambda moment: moment.total)

    def optimizer_step(self) -> Moment:
        """The last update of the step, which is the embedding's."""
        made = update_bytes(self.setup.optimizer_rule, [(self.table, EMBEDDING)], self.optimized_bytes)
        return self._moment(Point.OPTIMIZER, Live(made + self.all_gradients, 0, self.all_gradients))
