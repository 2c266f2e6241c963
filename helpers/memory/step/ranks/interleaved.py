"""A training step in closed form on a rank with two stages of a pipeline, by PyTorch's schedule Interleaved1F1B.

Rank r of R has stages r and R + r of 2 R. While one of them goes backward, the other's weights and states lie beside
it, its gradients once its own first backward is over, and its micro-batches in flight. The schedule waits for its sends
at the end of the step only, so every output and every gradient that was sent is held until then: true of gloo, whose
works hold their tensors, and an upper bound for NCCL. No torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import NamedTuple

from ....catalog.devices import Device
from ....catalog.errors import require_whole
from ....catalog.setup import TrainSetup
from ...breakdown import Moment, rounded
from ..updates import update_bytes
from .sharded import more
from .stages import INTERLEAVED, Stage, highest_of, require_schedule


class Work(NamedTuple):
    """A forward or a backward of one micro-batch in one of the rank's stages, 0 or 1."""

    stage: int
    backward: bool

    def __str__(self) -> str:
        return f"{'FB'[self.backward]}{self.stage}"


def works_of(ranks: int, rank: int, micro_batches: int) -> list[Work]:
    """What a rank does, in order: forwards to warm up, then forwards and backwards by turns, then backwards.

    As `ScheduleInterleaved1F1B` in torch/distributed/pipelining/schedules.py; a stage has as many turns in a row as
    there are ranks.

    >>> " ".join(map(str, works_of(ranks=2, rank=1, micro_batches=2)))
    'F0 F0 F1 B1 F1 B1 B0 B0'
    """
    warm_up = min(ranks + 2 * (ranks - 1 - rank), 2 * micro_batches)
    works = []
    for at in range(2 * micro_batches + warm_up):
        if at < 2 * micro_batches:
            works.append(Work(at // ranks % 2, backward=False))
        if at >= warm_up:
            works.append(Work(1 - (at - warm_up) // ranks % 2, backward=True))
    return works


class TwoStages:
    """The moments of rank `rank`, counted from 0, of `ranks`; layers are numbered through both of its stages."""

    def __init__(self, setup: TrainSetup, ranks: int, rank: int, card: Device | None) -> None:
        require_schedule(setup, ranks, INTERLEAVED)
        require_whole("stage", rank, 0, ranks - 1, do="a rank has this stage, and the one `ranks` later")
        self.setup = setup
        self.works = works_of(ranks, rank, setup.micro_batches)
        self.stages = [Stage(setup, 2 * ranks, stage, INTERLEAVED, card) for stage in (rank, ranks + rank)]
        self.cublas = self.stages[0].cublas
        self.ids = rounded(8 * setup.tokens * setup.micro_batches)  # both stages count the one batch
        self.stored_bytes = sum(stage.stored_bytes for stage in self.stages)
        self.paged_bytes = sum(stage.paged_bytes for stage in self.stages)

    def saved_bytes(self) -> int:
        return sum(stage.saved_bytes() for stage in self.stages)

    def moments(self) -> tuple[Moment, ...]:
        """Each at its highest, in the order in which the first backwards meet them; then the optimizer."""
        return (*highest_of(self._backwards()), self._optimizer_step())

    def _backwards(self) -> Iterator[Moment]:
        in_flight, done, held = [0, 0], [0, 0], 0
        backward = cache(lambda at, alive, later: self.stages[at].backward(alive, accumulates=later))
        for at, is_backward in self.works:
            if not is_backward:
                in_flight[at] += 1
                continue
            stage, other = self.stages[at], 1 - at
            sent = 0 if stage.first or not done[at] else stage.residual  # which the stage's own moments count
            beside = self._resident(other, in_flight[other], done[other] > 0, self.stages[other].copies)
            for moment in backward(at, in_flight[at], done[at] > 0):
                yield self._numbered(more(moment, **beside, workspace=held - sent), at)
            in_flight[at] -= 1
            done[at] += 1
            held += ((not stage.first) + (not stage.last)) * stage.residual

    def _resident(self, at: int, in_flight: int, with_gradients: bool, copies: int) -> dict[str, int]:
        """What a stage has while the other works."""
        stage = self.stages[at]
        return {
            "parameters": stage.parameter_bytes,
            "optimizer": stage.optimizer_bytes,
            "gradients": stage.gradient_bytes if with_gradients else 0,
            "activations": in_flight * stage.micro_batch() + stage.buffers - self.ids + copies,
        }

    def _numbered(self, moment: Moment, at: int) -> Moment:
        before = len(self.stages[0].whole.model.layers) if at else 0
        return moment if moment.layer is None else replace(moment, layer=moment.layer + before)

    def _optimizer_step(self) -> Moment:
        """Of the tensors of both stages, whose temporaries exist together where the optimizer makes them so."""
        first, second = (stage.whole.trained for stage in self.stages)
        rule, width = self.setup.optimizer_rule, self.setup.precision_recipe.optimized_bytes
        copies = update_bytes(rule, first + second, width) - update_bytes(rule, first, width)
        step = more(self.stages[0].optimizer_step(), workspace=copies)
        return more(step, **self._resident(1, in_flight=0, with_gradients=True, copies=0))
