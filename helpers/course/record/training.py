"""Training steps of a 1B shape: by recipe, and by checkpointing policy. Random weights, random tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...catalog.setup import TrainSetup
from ...memory.closed_form import budget
from ...memory.measure.steps import TrainingRun, training_run
from ...techniques.checkpointing import apply
from .bench import Bench, Figure, sizes
from .scale import Scale

POLICIES = ("none", "selective", "full")


@dataclass(frozen=True)
class Case:
    """A recipe, a micro-batch and a policy; `fields` is what TrainSetup takes, `setup` what is recorded."""

    precision: str = "bf16"
    micro_batch: int = 1
    checkpointing: str = "none"

    def fields(self, scale: Scale) -> dict[str, object]:
        return {
            "model": scale.train,
            "precision": self.precision,
            "optimizer": "adamw-fused",
            "micro_batch": self.micro_batch,
            "sequence": scale.sequence,
            "checkpointing": self.checkpointing,
        }

    def setup(self, scale: Scale) -> dict[str, object]:
        return {"kind": "train", **self.fields(scale)}

    def needs_bytes(self, scale: Scale) -> int:
        return budget.train(TrainSetup(**self.fields(scale)), cuda=True).peak_bytes

    def prepared(self, bench: Bench) -> TrainingRun:
        """Ready for its second step; the first made the optimizer's states."""
        ready = training_run(TrainSetup(**self.fields(bench.scale)), bench.device, apply)
        ready.step()
        return ready


BF16, AUTOCAST = Case(), Case("autocast-bf16")
CHECKPOINTED = tuple(Case(micro_batch=2, checkpointing=policy) for policy in POLICIES)


def step_of(case: Case, label: str):
    """An experiment: the peaks of the second step, and the time of those that follow."""

    def run(bench: Bench) -> Iterator[Figure]:
        before, setup = bench.gpu.memory(), case.setup(bench.scale)
        ready = case.prepared(bench)
        yield from sizes(label, setup, bench.peak_over(before, ready.step))
        yield Figure(label, "time of a step", "s", setup, (bench.seconds(ready.step),))

    return run


def policies(bench: Bench) -> Iterator[Figure]:
    """The bill of checkpointing: what each policy peaks at, and how long its step takes."""
    for case in CHECKPOINTED:
        bench.gpu.clear()
        yield from step_of(case, case.checkpointing)(bench)


def history(bench: Bench) -> Iterator[Figure]:
    """Two steps of a 1B shape, the model's own making included, with every request that the allocator heard."""
    setup, kept = BF16.setup(bench.scale), []

    def run() -> None:
        ready = BF16.prepared(bench)
        kept.extend((ready, bench.gpu.peak(ready.step)))

    found = bench.gpu.history(run)
    allocated, reserved = sizes("two steps", setup, kept[1])
    yield allocated
    yield Figure(reserved.label, reserved.quantity, reserved.unit, setup, reserved.values, history=found)
