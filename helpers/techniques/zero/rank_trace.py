"""One rank of thousands, traced: the engines run unchanged, on fake tensors and in a group without other ranks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist

from ...catalog.devices import Device
from ...catalog.errors import WorkbookError
from ...catalog.train_setup import TrainSetup
from ...memory import trace
from ...memory.breakdown import Breakdown
from ...memory.measure import held, optimizers, steps
from ...memory.measure.ranks import Collectives
from ...memory.meter.meter import Meter
from ...memory.step.ranks.zero import Traffic
from ...memory.trace.fake import without_memory
from ..checkpointing import apply
from .ddp import DDP, DataParallelEngine
from .stage3 import Zero3
from .stages import Zero1, Zero2

STAGES: tuple[Callable[..., DataParallelEngine], ...] = (DDP, Zero1, Zero2, Zero3)  # by number


@dataclass(frozen=True)
class RankTrace:
    """One rank's second step: what it `holds` between steps by category, the trace, and what it sends."""

    holds: Breakdown
    trace: trace.Trace
    traffic: Traffic


@contextlib.contextmanager
def fake_ranks(ranks: int, rank: int = 0) -> Iterator[None]:
    """Be rank `rank` of `ranks` in a process group that has no others: collectives return at once, unfilled."""
    if dist.is_initialized():
        expected = "a process without a process group"
        raise WorkbookError("this process is a rank already", expected, "trace in the notebook itself, not on a rank")
    from torch.testing._internal.distributed.fake_pg import FakeStore  # registers the backend "fake"

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
    try:
        yield
    finally:
        dist.destroy_process_group()


def traced(
    setup: TrainSetup,
    gpu: str | Device | None = None,
    on: str = "cuda",
    rank: int = 0,
    engine: Callable[..., DataParallelEngine] | None = None,
) -> RankTrace:
    """Trace one rank's step of `setup`: its stage (`zero`) on its `ranks`, in seconds, for any number of them.

    `on`, `gpu` as in `helpers.memory.trace.train`; `engine(model, make)` in place of the stage's own. Raises
    WorkbookError, also for offload: a trace counts one device. Llama-2-7B in BF16, stage 3 on 1,024 ranks: chapter 09.
    """
    _require_on_device(setup)
    _require_own_gradients(setup)
    master = torch.float32 if setup.precision_recipe.master_bytes and setup.zero else None
    build = partial(engine or STAGES[setup.zero], **({"master": master} if master else {}))
    model = steps.build_model(setup, "meta")
    if setup.checkpointing != "none":
        apply(model, setup.checkpointing)
    with fake_ranks(setup.ranks, rank), trace.fake(on, gpu) as session:
        without_memory(model, session.mode)
        runner: DataParallelEngine = build(
            model, lambda parameters: optimizers.make_optimizer(setup.optimizer, iter(parameters))
        )
        step, traffic = _step(setup, runner, session.meter), []

        def counted() -> None:
            with Collectives() as collectives:
                step()
            traffic.append(collectives.traffic)

        found = trace.record(counted, model, runner.optimizer)
        return RankTrace(held(runner.holds()), found, traffic[-1])


def _step(setup: TrainSetup, runner: DataParallelEngine, meter: Meter) -> Callable[[], None]:
    ids = torch.randint(0, setup.model.vocab, (setup.micro_batch, setup.sequence))

    def label() -> None:
        for category, tensors in runner.holds().items():
            meter.relabel(tensors, category)

    def step() -> None:
        label()
        for _ in range(setup.micro_batches):
            loss = steps.micro_batch(setup, runner.model, ids, "cpu")  # noqa: F841 - alive until the next
        label()
        runner.step()

    return step


def _require_on_device(setup: TrainSetup) -> None:
    for name in ("offload_optimizer", "offload_parameters"):
        if (tier := getattr(setup, name)) != "none":
            do = "use helpers.memory.zero.held(setup), or measure on ranks with helpers.memory.measure.rank_step"
            raise WorkbookError(f"{name} is {tier!r}", "'none': a trace counts the memory of one device", do)


def _require_own_gradients(setup: TrainSetup) -> None:
    if setup.precision == "megatron-bf16" and setup.zero < 2:
        what = f"an engine of stage {setup.zero} that adds gradients up in FP32 beside BF16 weights"
        do = "predict it: helpers.memory.budget.train(setup); or choose zero=2 or 3, or precision='bf16'"
        raise WorkbookError(what, "gradients in the weights' dtype until they are sharded", do)
