"""What ZeRO makes of a training step's moments: shards that stay, and whole tensors that come and go. No torch."""

from __future__ import annotations

from dataclasses import replace

from ...catalog.setup import TrainSetup
from . import zero
from .breakdown import PARTS, Breakdown, Moment, Part, Point, rounded
from .moments import StepMoments, rank_share, tensors_bytes


class ShardedMoments(StepMoments):
    """A step of the engines in `helpers.techniques.zero`: one rank's shares, and what is whole beside them for a while.

    From stage 2 on, gradients are whole until they are reduce-scattered, and so is the flat that carries them; at
    stage 3 the root unit until its gradients have left, and two layers, the one at work and the next.
    """

    def __init__(self, setup: TrainSetup, cublas_bytes: int, on_cuda: bool = False) -> None:
        super().__init__(setup, cublas_bytes, on_cuda)
        root, *layers = zero.units(setup.model)
        groups = (root, *layers, root) if setup.zero == 3 else zero.buckets(setup)
        recipe = self.recipe
        self.first_bucket = rounded(groups[0] * recipe.grad_bytes)  # with the head, if it is not tied
        self.bucket = rounded(max(groups[1:-1] or groups) * recipe.grad_bytes)
        self.last_bucket = rounded(groups[-1] * recipe.grad_bytes)  # with the embedding
        self.alone = len(groups) == 1
        self.root = rounded(root * recipe.weight_bytes) if setup.zero == 3 else 0
        self.layer = rounded(max(layers) * recipe.weight_bytes) if setup.zero == 3 else 0
        table = tensors_bytes(self.head, recipe.grad_bytes)
        # At stage 3 it waits for the rest of the root; a tied one waits in autograd for the embedding's. No shard yet.
        waits = setup.zero == 3 or (setup.zero == 2 and setup.model.tied)
        counted = 0 if self.main_gradients or self.accumulates else self._gradients(self.head)
        self.waiting = table - counted if waits else 0
        lingers = self.accumulates and setup.zero > 1  # the micro-batch before's last flat, until the next is sent
        share = rank_share(setup, Part.GRADIENTS, self.last_bucket)
        self.in_flight = self.last_bucket + share if lingers else 0

    def _tied_head_waits(self) -> int:
        """From stage 2 on it is in `waiting`."""
        return super()._tied_head_waits() if self.setup.zero < 2 else 0

    def end_of_forward(self) -> Moment:
        return more(super().end_of_forward(), parameters=self.root, workspace=self.in_flight)

    def backward_of_loss(self) -> Moment:
        return more(super().backward_of_loss(), parameters=self.root, workspace=self.in_flight)

    def backward_of_lm_head(self) -> Moment:
        """The gradient of the head is whole; at stage 2 it is then copied into its flat, when the logits are gone."""
        made = super().backward_of_lm_head()
        if self.setup.zero < 2:
            return made
        whole = tensors_bytes(self.head, self.recipe.grad_bytes)
        during = more(made, parameters=self.root, gradients=whole, workspace=self.in_flight)
        if self.waiting:
            return during
        sent = more(made, workspace=2 * self.first_bucket, logits=-made.parts.get("logits", 0))
        return max(during, sent, key=lambda moment: moment.total)

    def backward_of_final_norm(self) -> Moment:
        flat = 0 if self.waiting or self.setup.zero < 2 else self.first_bucket
        flying = max(flat, self.in_flight if self.waiting else 0)
        return more(super().backward_of_final_norm(), parameters=self.root, gradients=self.waiting, workspace=flying)

    def backward_of_layer(self, at: int) -> Moment:
        """Two spots: in the layer, while the flat before its own travels; behind it, its gradients and their flat."""
        inside = super().backward_of_layer(at)
        if self.setup.zero < 2:
            return inside
        last = at == len(self.model.layers) - 1
        lingering = self.in_flight if last and self.waiting else 0
        if self.setup.zero == 2:
            flying = 0 if self.alone else max(self.bucket, self.first_bucket if last and not self.waiting else 0)
            return more(inside, gradients=self.waiting, workspace=self.bucket + max(flying, lingering))
        whole = {"parameters": self.root, "gradients": self.waiting}
        inside = more(inside, **whole, workspace=2 * self.layer + self.bucket + lingering)
        behind = more(self._behind(at), **whole, workspace=2 * self.layer + self.bucket + max(self.bucket, lingering))
        return max(inside, behind, key=lambda moment: moment.total)

    def _behind(self, at: int) -> Moment:
        """When a layer's last gradient is there: what it saved is gone, its gradients are not yet divided."""
        kept = self.kept.live_bytes(at) + self._rotary_tables() - self.kept.layer_bytes[at]
        return self._moment(Point.LAYER, self._made_above(at), max(0, kept), 0, self.residual, at)

    def backward_of_embedding(self) -> Moment:
        """The last bucket, or the root unit: its gradients and the flat that they are copied into, and no shard yet."""
        made = super().backward_of_embedding()
        if self.setup.zero < 2:
            return made
        shard = 0 if self.accumulates else rank_share(self.setup, Part.GRADIENTS, self.last_bucket)
        beside = self.last_bucket if self.model.tied else self.last_bucket + max(self.last_bucket, self.bucket)
        return more(made, parameters=self.root, gradients=-shard, workspace=beside)

    def optimizer_step(self) -> Moment:
        """At stage 1 `step()` begins with whole gradients and the flat of a bucket; only then they are divided."""
        stepping = super().optimizer_step()
        if self.setup.zero > 1:
            return stepping
        reducing = more(stepping, workspace=self._highest_flat() - self._copies())
        whole = stepping.parts[Part.GRADIENTS]
        stepping = more(stepping, gradients=rank_share(self.setup, Part.OPTIMIZER, whole) - whole)
        return max(reducing, stepping, key=lambda moment: moment.total)

    def _highest_flat(self) -> int:
        """What reducing adds at most to all gradients: a bucket's flat, less what the buckets before it gave back."""
        freed = highest = 0
        for values in zero.buckets(self.setup):
            flat = rounded(values * self.recipe.grad_bytes)
            highest = max(highest, flat - freed)
            freed += flat - zero.Flat(flat, self.setup.ranks).shard
        return highest


def more(moment: Moment, **sizes: int) -> Moment:
    """`moment` with so many bytes more of the parts that are named."""
    parts = {part: moment.parts.get(part, 0) + sizes.get(part, 0) for part in PARTS}
    return replace(moment, parts=Breakdown({part: size for part, size in parts.items() if size}))
