"""What a rank of a pipeline holds: each stage measured once on one micro-batch, the rest counted along the schedule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ....catalog.errors import WorkbookError
from ....memory.breakdown import rounded
from ....memory.meter import FreshMeter
from .messages import Unread
from .runner import Head, RankStage
from .schedules import Kind, Schedule


@dataclass(frozen=True)
class StageBytes:
    """One micro-batch on one stage, in bytes beside parameters and their gradients.

    `kept` is there from the forward to the backward, the stage's input and output included; `late` from the backward to
    the weights' part of it, where that is apart. `message` is a gradient that is received or sent. The peaks are above
    what was live before each began.
    """

    kept: int
    late: int
    message: int
    forward_peak: int
    backward_peak: int
    weight_peak: int

    def parts(self, kind: Kind) -> list[tuple[int, int]]:
        """What an action consists of: for each part its peak, and how much more or less is held after it."""
        forward = self.forward_peak, self.kept
        of_input, of_weight = (self.backward_peak, self.late - self.kept), (self.weight_peak, -self.late)
        apart = {Kind.FORWARD: [forward], Kind.INPUT: [of_input], Kind.WEIGHT: [of_weight]}
        return apart.get(kind, [of_input, of_weight])


def measure_stage(
    stage: RankStage, x: Tensor, boundary: Tensor, received: bool = True, head: Head | None = None
) -> StageBytes:
    """Run one micro-batch through one stage, and count; gradients of the parameters must be there, as after a step.

    `x` is an input; it is counted where it is `received`, which the first stage's is not. The last stage has a `head`,
    from its output to the loss. Gradients grow by this run's.
    """
    meter, lives, peaks = FreshMeter(), [0], []

    def note() -> None:
        peaks.append(meter.peak_bytes - lives[-1])
        lives.append(meter.live_bytes)
        meter.peak_bytes = meter.live_bytes

    with meter:
        stage.forward(0, torch.empty_like(x) if received else x, received, head)
        note()
        sent = _backward(stage, boundary if head is None else None)
        note()
        stage.weights(0)
        note()
    meter.stop()
    message = rounded(boundary.numel() * boundary.element_size())
    return StageBytes(lives[1], lives[2] - (0 if sent is None else message), message, *peaks)


def _backward(stage: RankStage, boundary: Tensor | None) -> Tensor | None:
    """With a gradient as if it had been received, unless the stage ends in a loss."""
    return stage.backward(0, None if boundary is None else torch.empty(boundary.shape, dtype=boundary.dtype))


def predicted_peak(schedule: Schedule, rank: int, stages: Mapping[int, StageBytes]) -> int:
    """The most that one rank holds in a step beside parameters and gradients, `stages` being its own.

    The losses, one number each, are left out.
    """
    return max(peak for peak, _ in _moments(schedule, rank, stages))


def predicted_bytes(schedule: Schedule, rank: int, stages: Mapping[int, StageBytes]) -> list[int]:
    """The same after each of the rank's actions, for a figure beside the timeline."""
    return [live for _, live in _moments(schedule, rank, stages)]


def _moments(schedule: Schedule, rank: int, stages: Mapping[int, StageBytes]) -> Iterator[tuple[int, int]]:
    """For each action the most that is held while it runs, and what is held after it.

    Gradients that were sent stay until they are known to have been read.
    """
    if schedule.ranks == 1 < schedule.stages:
        what, expected = "several stages on a single rank", "stages whose neighbours are on other ranks"
        raise WorkbookError(what, expected, "measure it: one stage's output is the next one's input there")
    live, unread = 0, Unread(schedule)
    for action in schedule.by_rank[rank]:
        stage, sender, reader, peak = stages[action.stage], schedule.sender(action), schedule.receiver(action), live
        if sender is not None and schedule.rank_of(sender.stage) != rank:
            peak = live + stage.message
            live -= sum(unread.read_before(sender))
        for above, change in stage.parts(action.kind):
            peak = max(peak, live + above)
            live += change
        if action.kind in (Kind.BACKWARD, Kind.INPUT) and reader and schedule.rank_of(reader.stage) != rank:
            live += stage.message
            unread.add(reader, stage.message)
        yield peak, live
