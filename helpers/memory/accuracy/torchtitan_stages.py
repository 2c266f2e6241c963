"""A rank of torchtitan's pipelines, as pipeline_llama.py at 9dec370 builds it: FSDP2 and tensor parallelism in stages.

Layers are cut as `generate_split_points` cuts them, micro-batches are as many as the pipeline has ranks where a run
names no other number, gathered weights stay until the step's last backward. Gradients of all but the last micro-batch
are added up whole, in FP32, before FSDP2 reduces them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

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


def stages_of(config: Mapping[str, Any], tokens: int, rank: int, ranks: int, schedule: str) -> dict[int, Llama]:
    """The parts of a model that rank `rank` of the pipeline has, by the number of their stage."""
    stages = ranks * STAGES_PER_RANK[schedule]
    starts = first_layers(config["num_hidden_layers"], stages)
    return {at: _cut(Llama(config, tokens), starts[at], starts[at + 1]) for at in range(rank, stages, ranks)}


def _cut(llama: Llama, start: int, stop: int) -> Llama:
    if start > 0:
        llama.tok_embeddings = None
    if stop < len(llama.layers):
        llama.norm = llama.output = None
    llama.layers = llama.layers[start:stop]
    return llama


def schedule_of(
    parts: Mapping[int, Llama], mesh: DeviceMesh, schedule: str, tokens: int, between: tuple[int, int, int]
) -> Any:
    """The schedule over these stages; `between` is the shape of one micro-batch's hidden states on their way."""
    total = mesh.size() * STAGES_PER_RANK[schedule]
    ids = torch.empty(between[0], tokens, dtype=torch.long, device=META)
    hidden = torch.empty(*between, dtype=torch.bfloat16, device=META, requires_grad=True)
    group, device = mesh.get_group(), torch.device("cpu")
    stages = []
    for at, part in parts.items():
        words = None if part.output is None else len(cast("torch.Tensor", part.output.weight))
        made = hidden if words is None else hidden.new_empty(*ids.shape, words)
        stages.append(PipelineStage(part, at, total, device, hidden if at else ids, made, group=group))
    kind: Any = get_schedule_class(schedule)
    return kind(stages[0] if len(stages) == 1 else stages, mesh.size(), loss_fn=_loss)


def step_of(
    schedule: Any, parts: Mapping[int, Llama], optimizers: list[torch.optim.Optimizer], batch: int, tokens: int
) -> Callable[[], None]:
    """One step of the loop in train.py."""
    whole = nn.ModuleList(parts.values())
    last = list(parts.values())[-1].output is not None

    def step() -> None:
        ids, labels = (torch.zeros(batch, tokens, dtype=torch.long) for _ in range(2))
        for optimizer in optimizers:
            optimizer.zero_grad()
        with loss_parallel():
            given = {"target": labels, "losses": []} if last else {}
            schedule.step(*([ids] if 0 in parts else []), **given)
        nn.utils.clip_grad_norm_(whole.parameters(), 1.0, foreach=True)
        for optimizer in optimizers:
            optimizer.step()

    return step


def _loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(0, 1))
