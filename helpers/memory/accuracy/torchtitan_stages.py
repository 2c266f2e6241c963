"""A rank of torchtitan's pipelines, as pipeline_llama.py at 9dec370 builds it: FSDP2 and tensor parallelism in stages.

Layers are cut as `generate_split_points` cuts them, micro-batches are as many as the pipeline has ranks where a run
names no other number, gathered weights stay until the step's last backward. Gradients of all but the last micro-batch
are added up whole, in FP32, before FSDP2 reduces them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import get_schedule_class
from torch.distributed.tensor.parallel import loss_parallel
from torch.nn import functional

from ...catalog.split import STAGES_PER_RANK
from .llama_as_torchtitan import Llama

META = torch.device("meta")


def first_layers(layers: int, stages: int) -> list[int]:
    """The layer that each stage begins with, and their number: what is left over goes to those in the middle.

    >>> first_layers(126, 8)
    [0, 15, 31, 47, 63, 79, 95, 111, 126]
    """
    least, over = divmod(layers, stages)
    starts = [0, least]
    for stage in range(1, stages - 1):
        starts.append(starts[-1] + least + (stage <= over))
    return [*starts, layers]


def stages_of(model: Callable[[], Llama], layers: int, rank: int, ranks: int, schedule: str) -> dict[int, Llama]:
    """The parts of the model on rank `rank` of the pipeline, by the number of their stage; `model` builds a whole."""
    stages = ranks * STAGES_PER_RANK[schedule]
    starts = first_layers(layers, stages)
    return {at: _cut(model(), starts[at], starts[at + 1], layers) for at in range(rank, stages, ranks)}


def _cut(llama: Llama, start: int, stop: int, layers: int) -> Llama:
    llama.layers = llama.layers[start:stop]
    if start > 0:
        llama.tok_embeddings = None
    if stop < layers:
        llama.norm = llama.output = None
    return llama


def step_of(
    parts: dict[int, Llama],
    optimizers: list[torch.optim.Optimizer],
    pipeline: DeviceMesh,
    schedule: str,
    batch: int,
    tokens: int,
    hidden: tuple[int, int],
) -> Callable[[], None]:
    """One step of train.py through the schedule; `hidden` is the shape of a sequence that travels between stages."""
    ranks = pipeline.size()
    total, sequences = ranks * STAGES_PER_RANK[schedule], batch // ranks
    between = torch.empty(sequences, *hidden, dtype=torch.bfloat16, device=META, requires_grad=True)
    stages = []
    for at, part in parts.items():
        takes = torch.empty(sequences, tokens, dtype=torch.long, device=META) if at == 0 else between
        made = PipelineStage(part, at, total, torch.device("cpu"), takes, between, group=pipeline.get_group())
        stages.append(made)
    kind: Any = get_schedule_class(schedule)
    runs = kind(stages[0] if len(stages) == 1 else stages, ranks, loss_fn=_loss)

    def step() -> None:
        ids, labels = (torch.zeros(batch, tokens, dtype=torch.long) for _ in range(2))
        for optimizer in optimizers:
            optimizer.zero_grad()
        with loss_parallel():
            if stages[-1].is_last:
                runs.step(target=labels, losses=[])
            else:
                runs.step(*([ids] if stages[0].is_first else []))
        nn.utils.clip_grad_norm_([one for part in parts.values() for one in part.parameters()], 1.0, foreach=True)
        for optimizer in optimizers:
            optimizer.step()

    return step


def _loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(0, 1))
