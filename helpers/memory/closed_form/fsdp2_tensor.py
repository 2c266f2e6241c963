"""A training step on one rank of a mesh, FSDP2 by tensor parallelism, in closed form: a shard of a part. No torch.

Each layer is first divided over the ranks of tensor parallelism, as in `tensor_parts`; FSDP2 then shards that part, as
in `fsdp2`. Whole on every rank are hidden states, gathered logits and, until FSDP2 reduces the root, the gradient of
the embedding, which DTensor divides no earlier.
"""

from __future__ import annotations

from ...catalog.setup import TrainSetup
from .breakdown import Moment, Point, rounded
from .fsdp2 import FullyShardedMoments
from .moments import tensors_bytes
from .sharded import more
from .tensor_parts import of_rank


class ShardedPartMoments(FullyShardedMoments):
    """The moments of a step on one of `ranks` that shard what one of `tensor` ranks has of the model."""

    def __init__(
        self, setup: TrainSetup, ranks: int, tensor: int, cublas_bytes: int, on_cuda: bool, reduced: str
    ) -> None:
        super().__init__(of_rank(setup, tensor), ranks, cublas_bytes, on_cuda, reduced)
        logits = setup.tokens * setup.model.vocab
        self.tensor = tensor
        self.logits, self.logits_fp32 = rounded(logits * self.width.compute), rounded(4 * logits)
        self.table = tensors_bytes([(setup.model.vocab, setup.model.hidden)], self.gathered_width)
        self.share = self._gathered(self.head)

    def end_of_forward(self) -> Moment:
        """In the loss; or earlier, when logits are gathered: a rank's, all of them by rank, and again by word."""
        made = super().end_of_forward()
        gathering = 2 * self.logits + self.logits // self.tensor
        gathered = self._moment(Point.END_OF_FORWARD, (), self.stored_bytes + self.outside_bytes, gathering)
        return max(made, more(gathered, workspace=self.root + self.layer), key=lambda moment: moment.total)

    def _tables_coming(self) -> int:
        """The embedding's whole gradient, the head's, and the share that is made of the first; a tied table's sum."""
        shares = self.share * (3 if self.model.tied else 2)
        return self.table + max(shares, self.share + self.residual)
