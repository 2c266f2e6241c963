"""A training step on one rank of a mesh, FSDP2 by tensor parallelism, in closed form: a shard of a part. No torch.

Each layer is first divided over the ranks of tensor parallelism, as in `tensor_parts`; FSDP2 then shards that part, as
in `fsdp2`. Whole on every rank are hidden states, gathered logits and, until FSDP2 reduces the root, the gradient of
the embedding, which DTensor divides no earlier.
"""

from __future__ import annotations

from ....catalog.hardware import Cuda
from ....catalog.setup import TrainSetup
from ..chain import KernelOf
from .fsdp2 import FullyShardedStep
from .tensor_parts import of_rank


class ShardedPartStep(FullyShardedStep):
    """The moments of a step on one of `ranks` that shard what one of `tensor` ranks has of the model."""

    def __init__(
        self,
        setup: TrainSetup,
        ranks: int,
        tensor: int,
        cublas_bytes: int,
        kernel_of: KernelOf,
        cuda: Cuda | None,
        reduced: str,
    ) -> None:
        self.parts = tensor
        super().__init__(of_rank(setup, tensor), ranks, cublas_bytes, kernel_of, cuda, reduced)

    def _tables_coming(self, table: int, waiting: int) -> list[int]:
        """The whole gradient; then beside it the share that is made of it, and a tied table's sum."""
        whole = self.parts * table
        return [whole, whole + table + waiting - self.residual]
