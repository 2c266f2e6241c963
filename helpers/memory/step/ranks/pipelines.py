"""A training step in closed form on a rank of a pipeline, by PyTorch's schedules: GPipe, 1F1B, Interleaved1F1B.

A rank has one stage, or interleaved two: rank r of R has stages r and R + r of 2 R. While one of them goes backward,
the other's weights and states lie beside it, its gradients once its own first backward is over, and its micro-batches
in flight. What was sent is held for a while: true of gloo, whose works hold their tensors, and an upper bound for NCCL.
No torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

from ....catalog.devices import Device
from ....catalog.errors import require_name
from ....catalog.train_setup import TrainSetup
from ...breakdown import Moment
from ..refusals import refuse
from .sharded import more
from .stages import Stage

GPIPE, ONE_F_ONE_B, INTERLEAVED = "GPipe", "1F1B", "Interleaved1F1B"


def works_of(ranks: int, rank: int, micro_batches: int, schedule: str = INTERLEAVED) -> list[str]:
    """What a rank does, in order: forwards to warm up, then forwards and backwards by turns, then backwards.

    Each is of one micro-batch in one of its stages: "F0" is a forward in the first, "B1" a backward in the second. As
    in torch/distributed/pipelining/schedules.py; of two stages each has as many turns in a row as there are ranks.

    >>> " ".join(works_of(ranks=2, rank=1, micro_batches=2))
    'F0 F0 F1 B1 F1 B1 B0 B0'
    >>> " ".join(works_of(ranks=2, rank=0, micro_batches=3, schedule="1F1B"))
    'F0 F0 B0 F0 B0 B0'
    """
    stages = 2 if schedule == INTERLEAVED else 1
    forwards, behind = stages * micro_batches, ranks - 1 - rank
    warm_up = {GPIPE: micro_batches, ONE_F_ONE_B: behind, INTERLEAVED: min(ranks + 2 * behind, forwards)}[schedule]
    works = []
    for at in range(forwards + warm_up):
        if at < forwards:
            works.append(f"F{at // ranks % stages}")
        if at >= warm_up:
            works.append(f"B{stages - 1 - (at - warm_up) // ranks % stages}")
    return works


class PipelineRank:
    """The moments of rank `rank`, counted from 0, of `ranks`; layers are numbered through its stages."""

    def __init__(self, setup: TrainSetup, ranks: int, rank: int, schedule: str, card: Device | None) -> None:
        numbers, self.schedule = [rank], schedule
        if schedule == INTERLEAVED:
            _require_schedule(setup, ranks, schedule)
            numbers = [rank, ranks + rank]
        self.stages = [Stage(setup, ranks * len(numbers), stage, card) for stage in numbers]
        self.begins = [Stage(setup, ranks * len(numbers), stage, card, begun=False) for stage in numbers]
        _require_schedule(setup, ranks, schedule)
        self.setup, self.cublas = setup, self.stages[0].cublas
        self.flying = ranks - rank  # micro-batches under 1F1B
        self.works = works_of(ranks, rank, setup.micro_batches, schedule)
        self.stored_bytes = sum(stage.stored_bytes for stage in self.stages)
        self.paged_bytes = sum(stage.paged_bytes for stage in self.stages)

    def saved_bytes(self) -> int:
        return sum(stage.saved_bytes() for stage in self.stages)

    def moments(self) -> tuple[Moment, ...]:
        """Each at its highest, in the order in which the first backwards meet them; then the optimizer."""
        highest: dict[tuple[object, int | None], Moment] = {}
        for moment in self._backwards():
            key = moment.at, moment.layer
            highest[key] = max(highest.get(key, moment), moment, key=lambda one: one.total)
        return (*highest.values(), self._optimizer_step())

    def _backwards(self) -> Iterator[Moment]:
        """Each state of the rank once: with eight micro-batches in flight a later backward is like the one before."""
        in_flight, done, held = [0, 0], [0, 0], 0
        seen, backward = set[object](), cache(self._backward)
        for work in self.works:
            at = int(work[1])
            if work[0] == "F":
                in_flight[at] += 1
                continue
            state = at, *in_flight, *(count > 0 for count in done), held
            if state not in seen:
                beside: dict[str, int] = {}  # what the other stage has
                for other in self.stages[1 - at : 2 - at]:
                    beside = other.resident(in_flight[1 - at], done[1 - at] > 0, other.copied_bytes)
                found = backward(at, in_flight[at], done[at] > 0)
                yield from (more(moment, **beside, workspace=held) for moment in found)
            seen.add(state)
            in_flight[at] -= 1
            done[at] += 1
            held = self._held(held, self.stages[at])

    def _backward(self, at: int, in_flight: int, accumulates: bool) -> list[Moment]:
        """Of one micro-batch while `in_flight` live, in the forward and the backward of the one at work."""
        before = len(self.stages[0].model.layers) if at else 0
        stage = self.stages[at]
        waiting = stage.waiting(in_flight - 1) + stage.copied_bytes
        at_work = stage if accumulates else self.begins[at]
        found = [more(one, activations=waiting) for one in at_work.of_a_pass()]
        return [one if one.layer is None else replace(one, layer=one.layer + before) for one in found]

    def _held(self, before: int, stage: Stage) -> int:
        """What was sent and is held yet once a backward of `stage` is over, with what was held `before` it.

        Interleaved1F1B waits for its sends at the end of the step. Elsewhere the last gradient is held; GPipe's works
        hold all outputs to the end of the step. Those of 1F1B's last send before its first backward do so to the last
        forward, if one comes after that output's own backward.
        """
        if self.schedule == INTERLEAVED:
            return before + stage.neighbours * stage.residual
        outlives = self.schedule == GPIPE or 1 < self.flying <= (self.setup.micro_batches + 1) // 2
        return (stage.received + (outlives and not stage.last)) * stage.residual

    def _optimizer_step(self) -> Moment:
        """Of the tensors of all stages, whose temporaries exist together where the optimizer makes them so."""
        first, *others = self.stages
        first.stepping = [one for stage in self.stages for one in stage.trained]
        step = more(first.optimizer_step(), activations=first.buffers)
        for other in others:
            step = more(step, **other.resident(in_flight=0, with_gradients=True))
        return step


def _require_schedule(setup: TrainSetup, ranks: int, schedule: str) -> None:
    """WorkbookError for a schedule without a closed form, and for too few micro-batches for these ranks."""
    require_name("schedule with a closed form:", schedule, (GPIPE, ONE_F_ONE_B, INTERLEAVED))
    at_once, many = schedule == INTERLEAVED, setup.micro_batches
    what = f"{many} micro-batches in {ranks} {'ranks' if at_once else 'stages'}"
    expected, do = f"{'a multiple of' if at_once else 'at least'} {ranks}", f"pass micro_batches={ranks * 2}"
    refuse(many < ranks or (at_once and many % ranks), what, expected, f"{do} (--accumulate {ranks * 2})")
