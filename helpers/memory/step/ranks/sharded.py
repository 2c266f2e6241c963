"""What ZeRO makes of a training step: shards that stay, and whole tensors that come and go. No torch.

The engines are those of `helpers.techniques.zero`. From stage 2 on a bucket of gradients is copied into a flat and
reduce-scattered when its last one is there; the flat lives until the next is sent. At stage 3 a bucket is a layer, or
the root, and a layer is whole while it is at work, and while the one beside it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from itertools import accumulate
from math import prod

from ....catalog.layers import TensorShape
from ....catalog.policies import PolicySegment
from ....catalog.train_setup import TrainSetup
from ...breakdown import PARTS, Breakdown, Moment, Part, Point, rounded
from ..layer_run import LayerRun
from ..step import TapedStep
from ..tape import Live
from . import zero

OUTSIDE = None  # of every layer
SHARDED_FROM = {Part.PARAMETERS: 3, Part.GRADIENTS: 2, Part.OPTIMIZER: 1}  # by ZeRO's stages


def rank_share(setup: TrainSetup, part: Part, size_bytes: int) -> int:
    """What one rank holds on its GPU of so many bytes of `part`: all in DDP, a shard, rounded up, where it is sharded.

    What is offloaded is not there: 0. (`TrainSetup` admits an offload only where the stage shards that part.)
    """
    if setup.zero < SHARDED_FROM[part]:
        return size_bytes
    tier = setup.offload_parameters if part is Part.PARAMETERS else setup.offload_optimizer
    return -(-size_bytes // setup.ranks) if tier == "none" else 0


class GatheredStep(TapedStep):
    """A step whose layers are divided, and whole for a while: of `sizes`, by layer; `whole` are those that are now."""

    sizes: list[int]
    whole = range(0)  # or on their way

    def _comes_to(self, segment: PolicySegment) -> None:
        """The layers that are run again are whole together; else one is, and the one before it."""
        self._become_whole(range(max(0, min(segment.start, segment.stop - 2)), segment.stop))

    def _become_whole(self, layers: range) -> None:
        self.now += Live(sum(self.sizes[at] for at in layers) - sum(self.sizes[at] for at in self.whole))
        self.whole = layers


class ShardedStep(GatheredStep):
    """The moments of `TapedStep` on one rank of stage 1, 2 or 3."""

    def _weights(self) -> None:
        super()._weights()
        setup, width = self.setup, self.setup.precision_recipe.weight_bytes
        self.parameter_bytes = rank_share(setup, Part.PARAMETERS, self.parameter_bytes)
        self.optimizer_bytes = rank_share(setup, Part.OPTIMIZER, self.optimizer_bytes)
        self.paged_bytes = rank_share(setup, Part.OPTIMIZER, self.paged_bytes)
        root, *layers = zero.units(setup.model)
        self.root, layer = (rounded(root * width), rounded(max(layers) * width)) if setup.zero == 3 else (0, 0)
        self.sizes, self.gathered = [layer] * len(layers), Live(2 * layer)
        self.buckets = Buckets(setup)
        self.flying = 0  # the flat that was sent last, and its part that does not stay
        self.all_gradients = rank_share(setup, Part.GRADIENTS, self.all_gradients)
        if setup.zero > 1 and setup.micro_batches > 1:
            self.sums, last = True, self.buckets.flats[-1]
            self.flying = self.beside = last + -(-last // setup.ranks)  # of the micro-batch before

    def _moment(self, at: Point, *spots: Live, layer: int | None = None) -> Moment:
        root = self.root if at is not Point.OPTIMIZER else 0
        return more(super()._moment(at, *spots, layer=layer), parameters=root)

    # --- the chain ---------------------------------------------------------------------------------------------------

    def _tail(self) -> None:
        """Head and final norm have their gradients."""
        super()._tail()
        self.gathered = Live()  # layers that are run again are whole already
        if self.setup.zero < 2:
            return
        for arrival in self.tail_arrivals:
            sending, change = self._arrived(OUTSIDE, arrival.shape)
            self.tail[Point.LM_HEAD] += [self.now + spot for spot in sending]
            self.now += change

    def _gradients_of(self, at: int, run: LayerRun, freed: Live) -> tuple[list[Live], Live]:
        """Gradient by gradient: with the last of a bucket that is sent, and its whole gradients are gone."""
        if self.setup.zero < 2:
            return super()._gradients_of(at, run, freed)
        spots, change = [], Live()
        for arrival in run.arrivals:
            spots.append(arrival.highest + change)
            sending, sent = self._arrived(at, arrival.shape)
            spots += [arrival.live + change + spot for spot in sending]
            change += sent
        spots.append(run.last + change)
        self.whole = self.whole[:-1]
        return spots, run.gradients + change - Live(self.sizes[at])

    def _arrived(self, at: int | None, shape: TensorShape) -> tuple[list[Live], Live]:
        """What is alive beside while a bucket is sent, if this gradient was its last; and what that changes.

        The flat before is gone when the gradients are copied into this one; then they are, and a shard is made.
        """
        bucket = self.buckets.arrived(at, shape)
        if bucket is None:
            return [], Live()
        flat, whole, before = self.buckets.flats[bucket], self.buckets.whole[bucket], self.flying
        part = -(-flat // self.setup.ranks)
        stays = 0 if self.summed else rank_share(self.setup, Part.GRADIENTS, flat)
        self.flying = flat + part - stays
        return [Live(flat - before)], Live(flat - whole + part - before, 0, stays - whole)

    # --- the moments -------------------------------------------------------------------------------------------------

    def _behind_layers(self) -> Iterable[Moment]:
        """The embedding's gradient comes; then the buckets that are left are sent, at stage 3 the root."""
        if self.setup.zero < 2:
            return super()._behind_layers()
        spots = [self.now + Live(self.table + self.of_head)]
        live, flying = self.now + Live(self.table - self.of_head - self.residual), self.flying
        for flat, whole in self.buckets.left():
            spots.append(live + Live(flat - flying))
            live, flying = live + Live(flat - whole + -(-flat // self.setup.ranks) - flying), flat
        return [self._moment(Point.EMBEDDING, *spots)]

    def optimizer_step(self) -> Moment:
        """At stage 1 `step()` begins with whole gradients and the flat of a bucket; only then they are divided."""
        if self.setup.zero > 1:
            return super().optimizer_step()
        flats = self.buckets.flats
        freed = accumulate((flat - -(-flat // self.setup.ranks) for flat in flats), initial=0)
        # Beside all gradients a flat, and the one before it, less what those before gave back
        most = max(flat + before - gone for flat, before, gone in zip(flats, [0, *flats], freed, strict=False))
        share = rank_share(self.setup, Part.OPTIMIZER, self.all_gradients)
        spots = self._beside(most, self.all_gradients), self._beside(self._updating(), share)
        return self._moment(Point.OPTIMIZER, *spots)

    def _updating(self) -> int:
        return rank_share(self.setup, Part.OPTIMIZER, super()._updating())


class Buckets:
    """In which bucket each tensor's gradient is sent, and which of them are still to come.

    Bytes of the flats are in `flats`, and of the gradients that go there in `whole`, in the order of sending: by
    parameters from the last to the first, or at stage 3 layer by layer, and then the root.
    """

    def __init__(self, setup: TrainSetup) -> None:
        model = setup.model
        inside = [list(layer.tensors(model.hidden)) for layer in model.layers]
        outside = list(model.tensors())
        behind = 1 - model.tied + model.final_norm_parameters // model.hidden + bool(model.lm_head_bias)
        before = len(outside) - sum(map(len, inside)) - behind
        of_layers = [at for at, shapes in enumerate(inside) for _ in shapes]
        places: list[int | None] = [OUTSIDE] * before + of_layers + [OUTSIDE] * behind
        numbers = zero.numbered(model, zero.BUCKET_BYTES // setup.precision_recipe.weight_bytes)
        values: Counter[int] = Counter()
        self.of_head: dict[int | None, list[tuple[TensorShape, int]]] = {at: [] for at in places}
        for at, (bucket, shape) in zip(reversed(places), numbers, strict=True):
            if setup.zero == 3:
                bucket = len(inside) if at is OUTSIDE else len(inside) - 1 - at
            values[bucket] += prod(shape)
            self.of_head[at].append((shape, bucket))
        recipe = setup.precision_recipe
        self.flats = [rounded(values[at] * recipe.grad_bytes) for at in range(len(values))]
        self.whole = [rounded(values[at] * min(recipe.grad_bytes, recipe.weight_bytes)) for at in range(len(values))]
        self.missing = Counter(bucket for of in self.of_head.values() for _, bucket in of)

    def arrived(self, at: int | None, shape: TensorShape) -> int | None:
        """The bucket that this gradient has filled. Of equal shapes in a layer the last parameter's comes first."""
        found = next((one for one in self.of_head[at] if one[0] == shape), None)
        if found is None:
            return None
        self.of_head[at].remove(found)
        self.missing[found[1]] -= 1
        return None if self.missing[found[1]] else found[1]

    def left(self) -> list[tuple[int, int]]:
        """The flats that are still to be sent, with the bytes of their gradients."""
        return [pair for at, pair in enumerate(zip(self.flats, self.whole, strict=True)) if self.missing[at]]


def more(moment: Moment, **sizes: int) -> Moment:
    """`moment` with so many bytes more of the parts that are named."""
    parts = {part: moment.parts.get(part, 0) + sizes.get(part, 0) for part in PARTS}
    return replace(moment, parts=Breakdown({part: size for part, size in parts.items() if size}))
