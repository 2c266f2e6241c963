"""PyTorch's own pipeline on the same stages: torch.distributed.pipelining, to compare with and to use at work."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ....catalog.errors import WorkbookError, require_name, require_whole
from .runner import Loss

# The names of its schedules, and how many stages each of them puts on a rank.
SCHEDULES = {"GPipe": 1, "1F1B": 1, "Interleaved1F1B": 2, "InterleavedZeroBubble": 2, "ZBVZeroBubble": 2}


def stages_of(name: str, rank: int, ranks: int) -> tuple[int, ...]:
    """The stages that a rank holds; ZBV goes down the ranks and up again, so the first has the last stage as well.

    >>> stages_of("Interleaved1F1B", 0, 4), stages_of("ZBVZeroBubble", 0, 4)
    ((0, 4), (0, 7))
    """
    require_name("schedule", name, SCHEDULES)
    if name == "ZBVZeroBubble":
        return rank, 2 * ranks - 1 - rank
    return tuple(range(rank, SCHEDULES[name] * ranks, ranks))


class TorchPipeline:
    """One rank of it, used as `Pipeline` is: `stages` has the modules of `stages_of(name, rank, ranks)`."""

    def __init__(self, name: str, stages: Mapping[int, nn.Module], micro_batches: int, loss: Loss) -> None:
        from torch.distributed.pipelining import PipelineStage
        from torch.distributed.pipelining.schedules import get_schedule_class

        rank, ranks = dist.get_rank(), dist.get_world_size()
        expected, count = stages_of(name, rank, ranks), SCHEDULES[name] * ranks
        require_whole("micro_batches", micro_batches)
        if tuple(stages) != expected:
            do = "pass {stage: modules[stage] for stage in stages_of(name, rank, ranks)}"
            raise WorkbookError(f"rank {rank} has the stages {list(stages)}", f"{list(expected)} for {name}", do)
        device = next((p.device for module in stages.values() for p in module.parameters()), torch.device("cpu"))
        laid = [PipelineStage(module, at, count, device) for at, module in stages.items()]
        make: Any = get_schedule_class(name)
        self.schedule = make(laid if SCHEDULES[name] > 1 else laid[0], micro_batches, loss_fn=loss)
        self.has_first, self.has_last = 0 in stages, count - 1 in stages

    def step(self, inputs: Tensor, targets: Tensor) -> Tensor | None:
        """Forward and backward of the whole batch; the mean loss on the rank of the last stage, None on the others."""
        losses: list[Tensor] = []
        given = (inputs.contiguous(),) if self.has_first else ()  # PyTorch 2.11 takes no other strides
        target = {"target": targets, "losses": losses} if self.has_last else {}
        self.schedule.step(*given, **target, return_outputs=False)
        return torch.stack(losses).mean().detach() if losses else None
