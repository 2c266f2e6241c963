"""A step whose optimizer runs inside the backward: it updates each weight whose gradient is whole, and frees that.

The gradients are never there together, so the peak is where activations are most, with one gradient and what its
update makes. A tied table is one weight with two uses: the head's part of its gradient waits through the whole backward
for the embedding's, and only then the table is updated.
"""

from __future__ import annotations

from ...catalog.layers import Linear
from ...catalog.optimizers import EMBEDDING, HEAD
from ...catalog.setup import TrainSetup
from .activations import Owner, Role
from .breakdown import Moment, Point, rounded
from .float8 import Float8Moments
from .moments import Shapes, StepMoments, tensors_bytes, update_bytes
from .sharded import more


class MomentsInBackward(StepMoments):
    """The moments of `StepMoments` with the gradients that wait, and behind some of them the update of one weight."""

    def __init__(self, setup: TrainSetup, cublas_bytes: int, on_cuda: bool = False) -> None:
        """Each weight has an optimizer of its own, and so its own tables of levels."""
        super().__init__(setup, cublas_bytes, on_cuda)
        self.optimizer_bytes += sum(self.rule.rule_of(*one).table_bytes(one[0]) for one in self.trained)

    def _gradients(self, shapes: Shapes) -> int:
        """The head's or the embedding's, the only one that is there for long enough to be counted with a moment."""
        return tensors_bytes(self.head, self.recipe.grad_bytes) if self.head[0] in shapes else 0

    def _made_above(self, at: int) -> list[tuple[int, ...]]:
        """Of the gradients made before layer `at`, those that wait for more: a tied head's."""
        return [*self.head] if self.model.tied else []

    def _updating(self, shape: tuple[int, ...], role: str = "") -> int:
        """What the update of one weight makes; its gradient is no part of it."""
        return update_bytes(self.rule, [(shape, role)], self.recipe.optimized_bytes)

    def backward_of_lm_head(self) -> Moment:
        """As ever; then the head's update, when the logits and its input are gone."""
        during = super().backward_of_lm_head()
        left = self.stored_bytes + self._before_final_norm(Role.OUTPUT)
        made = 0 if self.model.tied else self._updating(self.head[0], HEAD)
        updating = self._moment(Point.LM_HEAD, self.head, left, 0, self.hidden + made)
        return max(during, updating, key=lambda moment: moment.total)

    def backward_of_final_norm(self) -> Moment:
        made = super().backward_of_final_norm()
        return made if self.model.tied else more(made, gradients=-self._gradients(self.head))

    def backward_of_layer(self, at: int) -> Moment:
        """Where the ordinary backward is widest, with no gradient of a weight; or at the down projection's, the first.

        There its input and the gradient of that stand beside the gradient of the weight, and then its update.
        """
        layer = self.model.layers[at]
        spots = [super().backward_of_layer(at), *(self._at_weight(at, linear) for linear in layer.mlp.linears[-1:])]
        return max(spots, key=lambda moment: moment.total)

    def _at_weight(self, at: int, linear: Linear) -> Moment:
        """When the last product of a layer has been led back: in it, or in the update of its weight."""
        tokens, width, weight = self.setup.tokens, self.width.compute, (linear.outputs, linear.inputs)
        normed = [one for one in self.kept.tensors[at] if one.owner is Owner.MLP_OUTPUT_NORM]
        live = self.kept.live_bytes(at) + self._rotary_tables() - sum(one.size_bytes for one in normed)
        freed = self._in_mlp(self.model.layers[at])[0]
        gradient = tensors_bytes([weight], self.recipe.grad_bytes)
        cast = rounded(2 * linear.weights) if self.width.autocast else 0
        beside = rounded(tokens * linear.inputs * width) + self.residual
        during = self._moment(Point.LAYER, self._made_above(at), live, 0, beside + (cast or gradient), at)
        after = self._moment(
            Point.LAYER, self._made_above(at), live - freed, 0, beside + max(cast, self._updating(weight)), at
        )
        return max(during, more(after, gradients=gradient), key=lambda moment: moment.total)

    def backward_of_embedding(self) -> Moment:
        """The table's own gradient at last, or its sum with a tied head's; then its update."""
        return max(super().backward_of_embedding(), self.optimizer_step(), key=lambda moment: moment.total)

    def optimizer_step(self) -> Moment:
        """The last update of the step, which is the embedding's."""
        return self._moment(Point.OPTIMIZER, self.head, 0, 0, self._updating(self.head[0], EMBEDDING))


class Float8InBackward(MomentsInBackward, Float8Moments):
    """The same with the casts of FP8: the head's products are BF16 there, too."""
