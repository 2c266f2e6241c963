"""Training steps of a 1B shape: by recipe, and by checkpointing policy. Random weights, random tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from ...catalog.hardware import REFERENCE
from ...catalog.train_setup import TrainSetup
from ...memory import budget
from ...memory.measure.steps import TrainingRun, training_run
from .target import ExperimentSizes, MeasuredFigure, MemoryCounters, Target, peak_figures

POLICIES = ("none", "selective", "full")
RECORDED = ("precision", "optimizer", "micro_batch", "sequence", "checkpointing")


@dataclass(frozen=True)
class RecordedCase:
    """A recipe, a micro-batch and a policy; `recorded` is what is written of its `setup`."""

    precision: str = "bf16"
    micro_batch: int = 1
    checkpointing: str = "none"

    def setup(self, sizes: ExperimentSizes) -> TrainSetup:
        return TrainSetup(
            sizes.train,
            precision=self.precision,
            optimizer="adamw-fused",
            micro_batch=self.micro_batch,
            sequence=sizes.sequence,
            checkpointing=self.checkpointing,
        )

    def recorded(self, sizes: ExperimentSizes) -> dict[str, object]:
        setup = self.setup(sizes)
        return {"kind": "train", "model": sizes.train} | {name: getattr(setup, name) for name in RECORDED}

    def needs_bytes(self, sizes: ExperimentSizes) -> int:
        return budget.train(self.setup(sizes), REFERENCE).peak_bytes

    def prepared(self, target: Target) -> TrainingRun:
        """Ready for its second step; the first made the optimizer's states."""
        ready = training_run(self.setup(target.sizes), target.device)
        ready.step()
        return ready


BF16, AUTOCAST = RecordedCase(), RecordedCase("autocast-bf16")
BY_POLICY = tuple(RecordedCase(micro_batch=2, checkpointing=policy) for policy in POLICIES)


def step_of(case: RecordedCase, label: str = "") -> Callable[[Target], Iterator[MeasuredFigure]]:
    """An experiment: the peaks of the second step, the time of later ones; labelled by precision, unless told."""
    label = label or case.precision

    def run(target: Target) -> Iterator[MeasuredFigure]:
        before, setup = target.gpu.memory(), case.recorded(target.sizes)
        ready = case.prepared(target)
        yield from peak_figures(label, setup, target.peak_over(before, ready.step))
        yield MeasuredFigure(label, "time of a step", "s", setup, (target.seconds(ready.step),))

    return run


def policies(target: Target) -> Iterator[MeasuredFigure]:
    """The bill of checkpointing: what each policy peaks at, and how long its step takes."""
    for case in BY_POLICY:
        target.gpu.clear()
        yield from step_of(case, case.checkpointing)(target)


def history(target: Target) -> Iterator[MeasuredFigure]:
    """Two steps of a 1B shape, the model's own making included, with every request that the allocator heard."""
    setup = BF16.recorded(target.sizes)
    kept: list[tuple[TrainingRun, MemoryCounters]] = []  # the model must be alive when the snapshot is taken

    def run() -> None:
        ready = BF16.prepared(target)
        kept.append((ready, target.gpu.peak(ready.step)))

    found = target.gpu.history(run)
    allocated, reserved = peak_figures("two steps", setup, kept[0][1])
    yield from (allocated, replace(reserved, history=found))
