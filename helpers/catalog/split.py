"""How GPUs share a training run: by data and shards, by parts of each layer, by stages of layers."""

from __future__ import annotations

from dataclasses import dataclass

from .errors import require_name, require_whole

MOST_RANKS = 2**17
REDUCED = ("fp32", "bf16")
STAGES_PER_RANK = {"GPipe": 1, "1F1B": 1, "Interleaved1F1B": 2, "InterleavedZeroBubble": 2}  # by PyTorch's names


@dataclass(frozen=True)
class Split:
    """How many GPUs share what of a run, and which of them is traced.

    `fsdp` ranks share every parameter, gradient and state, and each has its own micro-batch; `tensor_parallel` ranks
    share each layer, `pipeline` ranks the layers. `rank` counts as torchrun does where tensor parallelism is innermost:
    pipeline, fsdp, tensor. `schedule` is the pipeline's, by PyTorch's name. With `reshard` False gathered parameters
    stay from the forward to the backward. `reduced` is the format in which FSDP2's mixed precision adds gradients over
    the ranks: "fp32" in torchtitan, "bf16" in accelerate. WorkbookError for what cannot be.

    >>> Split(fsdp=8, tensor_parallel=4, pipeline=2).ranks
    64
    """

    fsdp: int = 1
    tensor_parallel: int = 1
    pipeline: int = 1
    schedule: str = "1F1B"
    reshard: bool = True
    rank: int = 0
    reduced: str = "fp32"

    def __post_init__(self) -> None:
        for name in ("fsdp", "tensor_parallel", "pipeline"):
            require_whole(name, getattr(self, name), most=MOST_RANKS, do="pass 1 for a run that is not split so")
        require_name("schedule", self.schedule, STAGES_PER_RANK)
        require_name("format that gradients are reduced in", self.reduced, REDUCED)
        require_whole("rank", self.rank, 0, self.ranks - 1, do=f"the {self.ranks} ranks are 0 to {self.ranks - 1}")

    @property
    def ranks(self) -> int:
        return self.fsdp * self.tensor_parallel * self.pipeline

    @property
    def stage(self) -> int:
        """Which rank of the pipeline `rank` is."""
        return self.rank // (self.fsdp * self.tensor_parallel)

    def __str__(self) -> str:
        parts = {"FSDP": self.fsdp, "TP": self.tensor_parallel, "PP": self.pipeline}
        return " × ".join(f"{name} {size:,}" for name, size in parts.items() if size > 1) or "one GPU"
