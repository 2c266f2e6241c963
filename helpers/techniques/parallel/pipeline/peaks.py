"""What a rank of a pipeline holds: each stage measured once on one micro-batch, the rest counted along the schedule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ....memory.closed_form.breakdown import rounded
from ....memory.meter import FreshMeter
from .messages import Unread
from .runner import Stage
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


def measure_stage(
    stage: Stage, x: Tensor, boundary: Tensor, head: Callable[[Tensor], Tensor] | None = None
) -> StageBytes:
    """Run one micro-batch through one stage, and count; gradients of the parameters must be there, as after a step.

    `x` is the input of the first stage; that of others, floating-point, is received and therefore counted. The last
    stage has a `head`, from its output to the loss. Gradients grow by this run's.
    """
    meter, received = FreshMeter(), x.is_floating_point()
    lives, peaks = [0], []
    with meter:
        for part in ("forward", "backward", "weight"):
            meter.peak_bytes = meter.live_bytes
            if part == "forward":
                output = stage.forward(0, torch.empty_like(x) if received else x, head)
                del output
            elif part == "backward":
                gradient = torch.empty(boundary.shape, dtype=boundary.dtype) if head is None else None
                sent = stage.backward(0, gradient)
                del gradient
            else:
                stage.weights(0)
            peaks.append(meter.peak_bytes - lives[-1])
            lives.append(meter.live_bytes)
        message = rounded(boundary.numel() * boundary.element_size())
        late = lives[2] - (message if sent is not None else 0)
    meter.stop()
    return StageBytes(lives[1], late, message, *peaks)


def predicted_peak(schedule: Schedule, rank: int, stages: Mapping[int, StageBytes]) -> int:
    """The most that one rank holds in a step beside parameters and gradients, `stages` being its own.

    Gradients that it has sent stay until they are known to have been read. The losses, one number each, are left out.
    """
    live = peak = 0
    unread = Unread(schedule)
    for action in schedule.by_rank[rank]:
        kind, at, _ = action
        stage, sender, reader = stages[at], schedule.sender(action), schedule.receiver(action)
        if sender is not None and schedule.rank_of(sender.stage) != rank:
            peak = max(peak, live + stage.message)
            live -= sum(unread.read_before(sender))
        above = {Kind.FORWARD: stage.forward_peak, Kind.WEIGHT: stage.weight_peak}.get(kind, stage.backward_peak)
        peak = max(peak, live + above)
        live += {Kind.FORWARD: stage.kept, Kind.WEIGHT: -stage.late}.get(kind, stage.late - stage.kept)
        if kind == Kind.BACKWARD:
            peak = max(peak, live + stage.weight_peak)
            live -= stage.late
        if kind in (Kind.BACKWARD, Kind.INPUT) and reader is not None and schedule.rank_of(reader.stage) != rank:
            live += stage.message
            unread.add(reader, stage.message)
    return peak
