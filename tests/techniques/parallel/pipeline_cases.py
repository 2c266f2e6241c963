"""A model to cut into stages, and what one process computes with it. Imported on the ranks."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor, nn

from helpers.memory.measure import Collectives
from helpers.memory.meter import FreshMeter
from helpers.techniques.parallel.pipeline import (
    Pipeline,
    Schedule,
    TorchPipeline,
    gpipe,
    interleaved,
    measure_stage,
    one_f_one_b,
    predicted_bytes,
    predicted_peak,
    stages_of,
    zero_bubble,
)
from helpers.techniques.parallel.pipeline.engines import SCHEDULES

BLOCKS, WIDTH, TOKENS, VOCAB, ROWS = 8, 12, 5, 31, 2


class Block(nn.Module):
    """A residual block with a norm, biases, and a width of its own."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = (
            nn.LayerNorm(width),
            nn.Linear(width, inner),
            nn.Linear(inner, width, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def model(tied: bool = False, width: int = WIDTH, dtype: torch.dtype = torch.float64) -> nn.Sequential:
    torch.manual_seed(0)
    blocks = [Block(width, 2 * width + at) for at in range(BLOCKS)]
    layers = nn.Sequential(nn.Embedding(VOCAB, width), *blocks, nn.Linear(width, VOCAB, bias=False)).to(dtype)
    if tied:
        layers[-1].weight = layers[0].weight
    return layers


def batch(micro_batches: int, tokens: int = TOKENS) -> tuple[Tensor, Tensor]:
    numbers = torch.Generator().manual_seed(1)
    ids = torch.randint(0, VOCAB, (micro_batches * ROWS, tokens + 1), generator=numbers)
    return ids[:, :-1], ids[:, 1:]


def loss(logits: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def alone(micro_batches: int, tied: bool = False) -> tuple[float, dict[str, Tensor]]:
    """The whole batch at once in one process: loss and gradients."""
    whole, (ids, targets) = model(tied), batch(micro_batches)
    found = loss(whole(ids), targets)
    found.backward()
    return found.item(), {name: p.grad for name, p in whole.named_parameters(remove_duplicate=False)}


def schedule_of(name: str, ranks: int, micro_batches: int) -> Schedule:
    if name == "interleaved":
        return interleaved(ranks, micro_batches, virtual=2)
    if name == "turned":  # GPipe whose other ranks take the last micro-batch first
        plain = gpipe(ranks, micro_batches)
        rows = [sorted(row, key=lambda a: (a.kind != "F", -a.micro_batch)) for row in plain.by_rank[1:]]
        return replace(plain, by_rank=(plain.by_rank[0], *map(tuple, rows)))
    return {"gpipe": gpipe, "1f1b": one_f_one_b, "zero-bubble": zero_bubble}[name](ranks, micro_batches)


def cuts(stages: int, uneven: bool) -> list[slice]:
    """Where stages begin and end among the ten layers: nearly equal, or the first of them with all that is left."""
    ends = [(BLOCKS + 2) * at // stages for at in range(stages + 1)]
    if uneven:
        ends = [0, *range(BLOCKS + 3 - stages, BLOCKS + 3)]
    return [slice(*pair) for pair in pairwise(ends)]


def pipeline_of(schedule: Schedule, rank: int, uneven: bool = False, tied: bool = False, **options):
    """(the pipeline, the names of this rank's parameters in the whole model)."""
    whole = model(tied, options.pop("width", WIDTH), options.pop("dtype", torch.float64))
    boundary = options.pop("boundary", torch.empty(ROWS, TOKENS, WIDTH, dtype=torch.float64, device="meta"))
    pieces = {stage: cuts(schedule.stages, uneven)[stage] for stage in schedule.stages_of(rank)}
    stages = {stage: whole[piece] for stage, piece in pieces.items()}
    names = {}
    for stage, piece in pieces.items():
        for at, layer in zip(range(BLOCKS + 2)[piece], stages[stage], strict=True):
            names |= {f"{at}.{name}": parameter for name, parameter in layer.named_parameters()}
    weight = whole[0].weight if tied else None
    return Pipeline(schedule, stages, loss, boundary, tied=weight, **options), names


def step(name: str, micro_batches: int, uneven: bool = False, tied: bool = False):
    """One step on this rank: (loss, gradients by name, bytes sent)."""
    import torch.distributed as dist

    schedule = schedule_of(name, dist.get_world_size(), micro_batches)
    pipeline, names = pipeline_of(schedule, dist.get_rank(), uneven, tied)
    ids, targets = batch(micro_batches)
    with Collectives() as counted:
        mean = pipeline.step(ids.chunk(micro_batches), targets.chunk(micro_batches))
    gradients = {key: parameter.grad for key, parameter in names.items()}
    return mean, gradients, counted.traffic.sent_bytes


MEASURED = {"width": 64, "dtype": torch.float32}
MEASURED_TOKENS = 64
MEASURED_BOUNDARY = torch.empty(ROWS, MEASURED_TOKENS, 64, device="meta")


def measured_step(name: str, micro_batches: int):
    """The second step of this rank: (peak, predicted, bytes held after each action, predicted)."""
    import torch.distributed as dist

    rank = dist.get_rank()
    schedule = schedule_of(name, dist.get_world_size(), micro_batches)
    pipeline, _ = pipeline_of(schedule, rank, boundary=MEASURED_BOUNDARY, **MEASURED)
    ids, targets = (tensor.chunk(micro_batches) for tensor in batch(micro_batches, MEASURED_TOKENS))
    pipeline.step(ids, targets)
    costs = {
        at: measure_stage(
            stage,
            ids[0] if at == 0 else torch.empty(MEASURED_BOUNDARY.shape),
            MEASURED_BOUNDARY,
            at > 0,
            (lambda output: loss(output, targets[0])) if at == schedule.stages - 1 else None,
        )
        for at, stage in pipeline.stages.items()
    }
    meter, live = FreshMeter(), []
    with meter:
        pipeline.step(ids, targets, after=lambda action: live.append(meter.live_bytes))
    meter.stop()
    return meter.peak_bytes, predicted_peak(schedule, rank, costs), live, predicted_bytes(schedule, rank, costs)


def torch_step(name: str, micro_batches: int):
    """One step of PyTorch's pipeline on this rank: (loss, gradients by name)."""
    import torch.distributed as dist

    rank, ranks = dist.get_rank(), dist.get_world_size()
    count = SCHEDULES[name] * ranks
    pieces = {at: cuts(count, uneven=False)[at] for at in stages_of(name, rank, ranks)}
    whole = model()
    pipeline = TorchPipeline(name, {at: whole[piece] for at, piece in pieces.items()}, micro_batches, loss)
    mean = pipeline.step(*batch(micro_batches))
    held = {at for piece in pieces.values() for at in range(BLOCKS + 2)[piece]}
    return mean, {key: p.grad for key, p in whole.named_parameters() if int(key.partition(".")[0]) in held}


def torch_bytes(name: str, micro_batches: int):
    """(what PyTorch's pipeline keeps from one step to the next, its peak above that), beside weights and gradients."""
    import torch.distributed as dist

    rank, ranks = dist.get_rank(), dist.get_world_size()
    whole = model(width=MEASURED["width"], dtype=MEASURED["dtype"])
    for parameter in whole.parameters():
        parameter.grad = torch.zeros_like(parameter)
    pieces = {at: cuts(SCHEDULES[name] * ranks, uneven=False)[at] for at in stages_of(name, rank, ranks)}
    ids, targets = batch(micro_batches, MEASURED_TOKENS)
    with FreshMeter() as meter:
        pipeline = TorchPipeline(name, {at: whole[piece] for at, piece in pieces.items()}, micro_batches, loss)
        pipeline.step(ids, targets)
        kept = meter.peak_bytes = meter.live_bytes
        pipeline.step(ids, targets)
    meter.stop()
    return kept, meter.peak_bytes - kept


def two_steps():
    """Gradients after one step and after two."""
    import torch.distributed as dist

    rank, ids_and_targets = dist.get_rank(), [tensor.chunk(4) for tensor in batch(4)]
    pipeline, names = pipeline_of(schedule_of("1f1b", 2, 4), rank, tied=True)
    pipeline.step(*ids_and_targets)
    once = {name: parameter.grad.clone() for name, parameter in names.items()}
    pipeline.step(*ids_and_targets)
    return once, {name: parameter.grad for name, parameter in names.items()}


def mistaken(wrong: str) -> None:
    """Two ranks that disagree, or a schedule, a boundary or a batch that do not fit."""
    import torch.distributed as dist

    rank = dist.get_rank()
    odd = rank == 1
    schedule = schedule_of("1f1b" if wrong == "schedule" and odd else "gpipe", 3 if wrong == "ranks" else 2, 4)
    tokens = 6 if wrong == "boundary" and odd else 4 if wrong == "pieces" else TOKENS
    boundary = torch.empty(ROWS, tokens, WIDTH, dtype=torch.float64, device="meta")
    pipeline, _ = pipeline_of(
        schedule, 0 if wrong == "stages" else rank, tied=wrong == "tied" and odd, boundary=boundary
    )
    pieces = 3 if wrong == "pieces" else 4
    ids, targets = (tensor.chunk(pieces) for tensor in batch(pieces, 4 if wrong == "output" else TOKENS))
    pipeline.step(ids, targets)


def stops_at_stage(rank_that_stops: int, how: str, timeout_s: float) -> None:
    """1F1B in which one rank hangs or dies in the forward of micro-batch 2."""
    import os
    import signal
    import time

    import torch.distributed as dist

    rank, calls = dist.get_rank(), []
    pipeline, _ = pipeline_of(schedule_of("1f1b", dist.get_world_size(), 8), rank, timeout_s=timeout_s)

    def stop(*_: object) -> None:
        calls.append(1)
        if len(calls) == 3 and how == "hang":
            time.sleep(100)
        elif len(calls) == 3:
            os.kill(os.getpid(), signal.SIGKILL)

    if rank == rank_that_stops:
        pipeline.stages[rank].module.register_forward_pre_hook(stop)
    pipeline.step(*(tensor.chunk(8) for tensor in batch(8)))


def pid() -> int:
    import os

    return os.getpid()
