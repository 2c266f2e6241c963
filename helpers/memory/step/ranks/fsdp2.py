"""A training step of PyTorch's FSDP2 on one rank: shards that stay, and what is gathered for a while. No torch.

`fully_shard` on each decoder layer, then on the rest, which is called the root here. Its mixed precision takes the
place of autocast: FP32 shards, BF16 where it computes, FP32 or BF16 where gradients are reduced. What lives when is in
torch/distributed/fsdp/_fully_shard (`_fsdp_param_group.py`, `_fsdp_collectives.py`).

On a mesh with tensor parallelism each layer is first divided over the ranks of that, as in `tensor_parts`, and what is
sharded is such a part. Whole on every rank are hidden states, gathered logits and, until the root is reduced, the
gradient of the embedding, which DTensor divides no earlier.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from math import prod

from ....catalog.devices import Device
from ....catalog.errors import require_name, require_whole
from ....catalog.layers import TensorShape
from ....catalog.split import REDUCED
from ....catalog.train_setup import TrainSetup
from ...breakdown import Moment, Point, rounded, tensors_bytes
from ..layer_run import LayerRun
from ..refusals import refuse
from ..tape import Live
from .sharded import GatheredStep

MAX_RANKS = 2**17
WIDTHS = {"autocast-bf16": (4, 2, 4), "bf16": (2, 2, 2), "fp32": (4, 4, 4)}  # of shards; gathered; reduced


def widths(precision: str, reduced: str) -> tuple[int, int, int]:
    """Bytes of a value in shards, gathered, and where gradients are reduced: one precision's throughout, or mixed.

    >>> widths("autocast-bf16", "bf16"), widths("bf16", "fp32")
    ((4, 2, 2), (2, 2, 2))
    """
    require_name("format that gradients are reduced in", reduced, REDUCED)
    shards, gathered, mixed = WIDTHS[precision]
    return shards, gathered, gathered if reduced == "bf16" else mixed


class FullyShardedStep(GatheredStep):
    """The moments of a step on one of `ranks` that shard `setup`, of whose model `tensor` ranks have such a part each.

    `reshard_after_forward` is left on.
    """

    def __init__(
        self, setup: TrainSetup, ranks: int, card: Device | None = None, reduced: str = "fp32", tensor: int = 1
    ) -> None:
        self.parts = tensor
        do = "pass precision='autocast-bf16' for FP32 shards, or 'bf16'"
        refuse(setup.precision not in WIDTHS, f"{setup.precision} under FSDP2", ", ".join(WIDTHS), do)
        self.ranks = require_whole("ranks", ranks, 2, MAX_RANKS, do="predict one rank by budget.train(setup)")
        self.shard_width, self.gathered_width, self.reduced_width = widths(setup.precision, reduced)
        self.adds = setup.micro_batches > 1
        computes = "bf16" if self.gathered_width == 2 else "fp32"
        super().__init__(replace(setup, precision=computes, micro_batches=1), card)

    def _weights(self) -> None:
        super()._weights()
        model, rule = self.model, self.setup.optimizer_rule
        shapes = {layer: list(layer.tensors(model.hidden)) for layer in set(model.layers)}
        self.layer_tensors = [shapes[layer] for layer in model.layers]
        every = Counter(shape for shape, _ in self.trained)
        self.root_tensors = list((every - Counter(one for of in self.layer_tensors for one in of)).elements())
        self.stepping = [(self._mine(shape), role) for shape, role in self.trained]
        self.optimized_bytes, self.sums = self.shard_width, self.adds  # into shards
        self.parameter_bytes = self.all_gradients = tensors_bytes((one for one, _ in self.stepping), self.shard_width)
        self.paged_bytes = sum(rule.paged_bytes(*one) for one in self.stepping) if self.cuda else 0
        self.optimizer_bytes = sum(self._states(*one) for one in self.stepping) - self.paged_bytes
        sizes = {layer: self._gathered(of) for layer, of in shapes.items()}
        self.sizes = [sizes[layer] for layer in model.layers]  # of layers that are whole
        self.root = self._gathered(self.root_tensors)
        self.beside, self.gathered = self.root, Live(2 * max(self.sizes))
        self.flying = 0  # the flat that was reduced last

    # --- sizes -------------------------------------------------------------------------------------------------------

    def _mine(self, shape: TensorShape) -> TensorShape:
        """Rows of a tensor on this rank, those of the first, to which storages are padded."""
        return (-(-shape[0] // self.ranks), *shape[1:])

    def _gathered(self, shapes: Iterable[TensorShape]) -> int:
        """Whole weights, padded until all ranks' rows are equally many."""
        padded = ((self.ranks * rows, *rest) for rows, *rest in map(self._mine, shapes))
        return tensors_bytes(padded, self.gathered_width)

    # --- the chain ---------------------------------------------------------------------------------------------------

    def _tail(self) -> None:
        """What the last layer was gathered in lies there to the end of the forward; then that layer is on its way."""
        self._become_whole(range(len(self.sizes))[-1:])
        self.gathered = Live(max(self.sizes))  # where layers are run again they are whole already
        super()._tail()

    def _gradients_of(self, at: int, run: LayerRun, freed: Live) -> tuple[list[Live], Live]:
        """When the layer's gradients are all there its weights go, and with them the flat of the layer behind."""
        self._become_whole(range(max(0, min(self.whole.start, at - 1)), at + 1))
        self.whole = self.whole[:-1]
        reducing, left = self._reduced(self.layer_tensors[at], run.gradients.total, self.sizes[at])
        return [run.backward, *(run.gradients - freed + spot for spot in reducing)], run.gradients + left

    def _reduced(self, shapes: list[TensorShape], whole: int, weights: int, held: int = 0) -> tuple[list[Live], Live]:
        """The high spots of a reduction, and what it changes: `whole` gradients, of which one is still `held`.

        They are copied into a flat; then they are gone, and shards are made, in the flat's format and then their own.
        """
        values = sum(prod(self._mine(shape)) for shape in shapes)  # in one buffer for all gradients of a unit
        flat = rounded(self.ranks * values * self.reduced_width)
        made, own = rounded(values * self.reduced_width), rounded(values * self.shard_width)
        cast = own if self.reduced_width != self.shard_width else 0
        begun = Live(flat - weights - self.flying)
        self.flying = flat
        stays = Live() if self.sums else Live(own, 0, own)
        gone = Live(whole, 0, whole)
        return [begun, begun - gone + Live(held + made + cast)], begun - gone + stays

    # --- the moments -------------------------------------------------------------------------------------------------

    def _behind_layers(self) -> list[Moment]:
        """The embedding's gradient comes, a tied table's sum with it, of a divided table the whole one, then beside it
        the share that is made of it; then the root is reduced, whose last gradient autograd still holds."""
        table, waiting = self.table, self.of_head
        whole = self.parts * table
        coming = [table + waiting] if self.parts == 1 else [whole, whole + table + waiting - self.residual]
        spots = [self.now + Live(size) for size in coming]
        live = self.now + Live(table - waiting - self.residual)
        whole = tensors_bytes(self.root_tensors, self.gathered_width)
        reducing, _ = self._reduced(self.root_tensors, whole, self.root, table)
        spots += [live + spot for spot in reducing]
        return [self._moment(Point.EMBEDDING, *spots)]
