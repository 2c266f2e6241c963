"""A rank of thousands, traced: the engines run unchanged, on tensors without memory and a group without peers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist

from ...catalog.devices import Device
from ...catalog.errors import WorkbookError
from ...catalog.setup import TrainSetup
from ...memory import trace
from ...memory.closed_form.breakdown import Breakdown
from ...memory.closed_form.ring import Traffic
from ...memory.measure import held, steps
from ...memory.measure.collectives import Collectives
from ...memory.trace.fake import without_memory
from ...memory.trace.runs import capability_of
from .ddp import DDP
from .stage3 import Zero3
from .stages import Zero1, Zero2

ENGINES = (DDP, Zero1, Zero2, Zero3)


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
        raise WorkbookError(
            "this process is a rank already",
            "a process without a process group",
            "trace in the notebook itself, not on a rank",
        )
    from torch.testing._internal.distributed.fake_pg import FakeStore  # registers the backend "fake"

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
    try:
        yield
    finally:
        dist.destroy_process_group()


def traced(
    setup: TrainSetup, gpu: str | Device | None = None, on: str = "cuda", rank: int = 0, engine: Callable | None = None
) -> RankTrace:
    """Trace one rank's step of `setup`: its stage (`zero`) on its `ranks`, in seconds, for any number of them.

    `on`, `gpu` as in `helpers.memory.trace.train`; `engine(model, make)` in place of the stage's own. Raises
    WorkbookError. Llama-2-7B in BF16, stage 3 on 1,024 ranks: see chapter 09.
    """
    model = steps.build_model(setup, "meta")
    master = torch.float32 if setup.precision_recipe.master_bytes else None
    host = getattr(setup, "offload_optimizer", "none") != "none"
    options = {"master": master, "host": host} if setup.zero else {}
    with fake_ranks(setup.ranks, rank), trace.fake(on, capability_of(gpu)) as session:
        without_memory(model, session.mode)
        runner = (engine or ENGINES[setup.zero])(model, lambda ps: steps.make_optimizer(setup.optimizer, ps), **options)
        run, counts = _step(setup, runner, session.meter), []

        def counted() -> None:
            with Collectives() as mode:
                run()
            counts.append(mode.traffic)

        found = trace.record(counted, model, runner.optimizer)
        return RankTrace(held(runner.holds()), found, counts[-1])


def _step(setup: TrainSetup, runner: object, meter: object) -> Callable[[], None]:
    ids = torch.randint(0, setup.model.vocab, (setup.micro_batch, setup.sequence))

    def label() -> None:
        for category, tensors in runner.holds().items():
            meter.relabel(tensors, category)

    def run() -> None:
        label()
        with steps.precision_context(setup, "cpu"):
            loss = runner.model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        label()
        runner.step()

    return run
