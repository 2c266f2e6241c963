"""How GPUs share a training run: by data and shards, by parts of each layer, by stages of layers."""

from __future__ import annotations

from dataclasses import dataclass

from .errors import WorkbookError, require_name, require_whole

MOST_RANKS = 2**20
REDUCED = ("fp32", "bf16")
STAGES_PER_RANK = {"GPipe": 1, "1F1B": 1, "Interleaved1F1B": 2, "InterleavedZeroBubble": 2}  # by PyTorch's names
ZERO_STAGES = "a ZeRO stage: 0 (nothing sharded), 1 (optimizer states), 2 (and gradients), 3 (and parameters)"


@dataclass(frozen=True)
class Split:
    """How many GPUs share what of a run.

    `data` ranks have a micro-batch each and divide what the stage of `zero` says: 0 is DDP. `fsdp` ranks have one each,
    too, and share parameters, gradients and states as PyTorch's FSDP2 does. `tensor` ranks share each layer, `pipeline`
    ranks the layers. Ranks are counted as torchrun does where tensor parallelism is innermost: pipeline, data or fsdp,
    tensor. `schedule` is the pipeline's, by PyTorch's name. With `reshard` False what FSDP2 gathered stays from the
    forward to the backward. `reduced` is the format in which its mixed precision adds gradients over the ranks: "fp32"
    in torchtitan, "bf16" in accelerate. WorkbookError for what cannot be.

    >>> Split(fsdp=8, tensor=4, pipeline=2).ranks
    64
    """

    data: int = 1
    zero: int = 0
    fsdp: int = 1
    tensor: int = 1
    pipeline: int = 1
    schedule: str = "1F1B"
    reshard: bool = True
    reduced: str = "fp32"

    def __post_init__(self) -> None:
        for name in ("data", "fsdp", "tensor", "pipeline"):
            require_whole(name, getattr(self, name), most=MOST_RANKS, do="pass 1 for a run that is not split so")
        require_whole("zero", self.zero, 0, 3, expected=ZERO_STAGES, do="pass zero=3 for what FSDP calls full sharding")
        require_name("schedule", self.schedule, STAGES_PER_RANK)
        require_name("format that gradients are reduced in", self.reduced, REDUCED)
        if self.zero and self.fsdp > 1:
            what, do = f"ZeRO stage {self.zero} and FSDP over {self.fsdp:,} ranks", "pass data=8, zero=3, or fsdp=8"
            raise WorkbookError(what, "one of them to shard the run", do)

    @property
    def ranks(self) -> int:
        return self.data * self.fsdp * self.tensor * self.pipeline

    @property
    def by_parts(self) -> bool:
        """Whether FSDP2, tensor parallelism or a pipeline has a part in it: all but DDP and ZeRO."""
        return self.ranks > self.data

    def stage_of(self, rank: int) -> int:
        """Which rank of the pipeline `rank` is. WorkbookError for a rank that there is not.

        >>> [Split(tensor=2, pipeline=2).stage_of(rank) for rank in range(4)]
        [0, 0, 1, 1]
        """
        do = f"the {self.ranks:,} ranks are 0 to {self.ranks - 1:,}"
        return require_whole("rank", rank, 0, self.ranks - 1, do=do) // (self.ranks // self.pipeline)

    def __str__(self) -> str:
        replicas = f"ZeRO-{self.zero}" if self.zero else "DDP"
        parts = {replicas: self.data, "FSDP": self.fsdp, "TP": self.tensor, "PP": self.pipeline}
        return " × ".join(f"{name} {size:,}" for name, size in parts.items() if size > 1) or "one GPU"


ONE_GPU = Split()
