"""Runs a schedule: stages of a model on real ranks, which send each other outputs and gradients. Imports torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ....catalog.errors import WorkbookError, require_number
from .deferred import Later, defer_weights
from .messages import Messages
from .schedules import Action, Kind, Schedule
from .timeline import checked

Loss = Callable[[Tensor, Tensor], Tensor]
Head = Callable[[Tensor], Tensor]
After = Callable[[Action], object]


class RankStage:
    """What one rank computes for one stage. Between forward and backward it keeps a micro-batch's input and output.

    Everything else that backward needs hangs on the output, in autograd's graph.
    """

    def __init__(self, module: nn.Module, split_backward: bool = False) -> None:
        self.module = module
        self.later: Later = defer_weights(module) if split_backward else []
        self.in_flight: dict[int, tuple[Tensor, Tensor]] = {}
        self.weights_of: dict[int, Later] = {}

    def forward(self, micro_batch: int, x: Tensor, received: bool, head: Head | None = None) -> Tensor:
        """The stage's output; with `head`, the loss on the last stage. What was received gets a gradient."""
        if received:
            x.requires_grad_()
        output = self.module(x)
        output = output if head is None else head(output)
        self.in_flight[micro_batch] = x, output
        return output

    def backward(self, micro_batch: int, gradient: Tensor | None) -> Tensor | None:
        """From the gradient of the output (None for a loss) to that of the input; what was kept is freed."""
        x, output = self.in_flight.pop(micro_batch)
        if output.requires_grad:  # a first stage may be frozen as a whole
            torch.autograd.backward(output, gradient)
        if self.later:
            self.weights_of[micro_batch] = self.later[:]
            self.later.clear()
        return x.grad

    def weights(self, micro_batch: int) -> None:
        """The gradients of the weights, if `backward` left them for later."""
        for add in self.weights_of.pop(micro_batch, ()):
            add()


class Pipeline:
    """One rank of a pipeline: `stages` has its modules by the number of their stage; each takes and gives one tensor.

    `loss(output, target)` is the mean over one micro-batch; `boundary` has the shape and format of what passes between
    stages. `tied` is the parameter that the first and the last stage have in common, passed on the ranks of both.
    Gradients are those of the mean over all micro-batches, added to what is there.

        pipeline = Pipeline(one_f_one_b(4, 8), {rank: layers}, cross_entropy, torch.empty(2, 128, 512, device="meta"))
        loss = pipeline.step(ids.chunk(8), targets.chunk(8))    # a number on the last rank, None on the others
    """

    def __init__(
        self,
        schedule: Schedule,
        stages: Mapping[int, nn.Module],
        loss: Loss,
        boundary: Tensor,
        tied: nn.Parameter | None = None,
        timeout_s: float = 30,
    ) -> None:
        self.schedule, self.loss, self.boundary, self.tied = checked(schedule), loss, boundary, tied
        self.rank = _require_alike(schedule, stages, boundary, tied)
        self.timeout_s = require_number("timeout_s", timeout_s, expected="seconds, above 0", do="timeout_s=30")
        self.stages = {at: RankStage(module, schedule.splits_backward) for at, module in stages.items()}

    def step(self, inputs: Sequence[Tensor], targets: Sequence[Tensor], after: After | None = None) -> Tensor | None:
        """Forward and backward of all micro-batches, in the schedule's order; `after` is called after each action.

        The first stage reads `inputs`, the last `targets`, one entry for each micro-batch.
        """
        _require_micro_batches(self.schedule, inputs, targets)
        messages = Messages(self.schedule, self.boundary, self.timeout_s)
        losses: list[Tensor] = []
        result: Tensor | None
        before = self._take_tied()
        for action in self.schedule.by_rank[self.rank]:
            stage, received = self.stages[action.stage], messages.receive(action)
            if action.kind == Kind.FORWARD:
                x = inputs[action.micro_batch] if received is None else received
                result = stage.forward(action.micro_batch, x, received is not None, self._head(action, targets))
                del x
                if action.stage == self.schedule.stages - 1:
                    losses.append(result.detach())
            else:
                result = self._backward(stage, action, received)
            del received
            if result is not None:
                messages.send(action, result)
            del result
            if after:
                after(action)
        messages.finish()
        self._exchange_tied(messages, before)
        return torch.stack(losses).sum() if losses else None

    def _head(self, action: Action, targets: Sequence[Tensor]) -> Head | None:
        """On the last stage, from its output to this micro-batch's share of the loss."""
        if action.stage < self.schedule.stages - 1:
            return None
        target, count = targets[action.micro_batch], self.schedule.micro_batches
        return lambda output: self.loss(output, target) / count

    def _backward(self, stage: RankStage, action: Action, received: Tensor | None) -> Tensor | None:
        """What goes to the stage before, if there is one."""
        gradient = None
        if action.kind != Kind.WEIGHT:
            gradient = stage.backward(action.micro_batch, received)
        if action.kind != Kind.INPUT:
            stage.weights(action.micro_batch)
        return gradient if action.stage else None

    @property
    def _shares_tied(self) -> bool:
        """Whether another rank has the same weight: this step's gradients are then exchanged."""
        ends = self.schedule.rank_of(0), self.schedule.rank_of(self.schedule.stages - 1)
        return self.tied is not None and ends[0] != ends[1] and self.rank in ends

    def _take_tied(self) -> Tensor | None:
        """Put aside the tied gradient of earlier steps, which holds both ends' already."""
        if not self._shares_tied or self.tied is None:
            return None
        before, self.tied.grad = self.tied.grad, None
        return before

    def _exchange_tied(self, messages: Messages, before: Tensor | None) -> None:
        """Add the gradient that the other end has found for the same weight, and those of earlier steps."""
        if not self._shares_tied or self.tied is None:
            return
        gradient = torch.zeros_like(self.tied) if self.tied.grad is None else self.tied.grad
        other = self.schedule.rank_of(0) + self.schedule.rank_of(self.schedule.stages - 1) - self.rank
        gradient += messages.exchange(gradient, other)
        self.tied.grad = gradient if before is None else before.add_(gradient)


class RankPlan(NamedTuple):
    """What a rank was told; `common` must be the same on all."""

    common: tuple
    stages: list[int]
    tied: bool
    on_cpu: bool


def _require_alike(
    schedule: Schedule, stages: Mapping[int, nn.Module], boundary: Tensor, tied: nn.Parameter | None
) -> int:
    """This rank, if it has its stages and all ranks have one plan; all of them raise WorkbookError otherwise."""
    common = schedule.name, schedule.ranks, schedule.stages, schedule.micro_batches, tuple(boundary.shape)
    on_cpu = all(parameter.device.type == "cpu" for module in stages.values() for parameter in module.parameters())
    mine = RankPlan((*common, str(boundary.dtype)), sorted(stages), tied is not None, on_cpu)
    plans: list = [None] * dist.get_world_size()
    dist.all_gather_object(plans, mine)
    for rank, plan in enumerate(plans):
        _require_fitting(schedule, rank, plan, plans[0])
    first, last = schedule.rank_of(0), schedule.rank_of(schedule.stages - 1)
    if plans[first].tied != plans[last].tied:
        what = f"a tied weight on rank {first if plans[first].tied else last} alone"
        raise WorkbookError(what, "the weight on the ranks of the first and the last stage", "pass tied= on both")
    return dist.get_rank()


def _require_fitting(schedule: Schedule, rank: int, plan: RankPlan, first: RankPlan) -> None:
    if plan.common != first.common:
        what = f"rank {rank} has the plan {plan.common}, rank 0 {first.common}"
        raise WorkbookError(what, "one schedule and one boundary on all ranks", "build both from the same numbers")
    if schedule.ranks != dist.get_world_size():
        what, do = f"a schedule for {schedule.ranks} ranks on {dist.get_world_size()}", "build it for as many"
        raise WorkbookError(what, "one list of actions for each rank", do)
    if plan.stages != list(schedule.stages_of(rank)):
        what, expected = f"rank {rank} has the stages {plan.stages}", f"{list(schedule.stages_of(rank))}"
        raise WorkbookError(what, expected, "pass {stage: modules[stage] for stage in schedule.stages_of(rank)}")
    if not plan.on_cpu:
        do = "run torch.distributed.pipelining there, as in engines.TorchPipeline"
        raise WorkbookError(f"rank {rank} has stages on a GPU", "stages on the CPU: gloo carries messages", do)


def _require_micro_batches(schedule: Schedule, *given: Sequence[Tensor]) -> None:
    for tensors in given:
        if len(tensors) != schedule.micro_batches:
            what, expected = f"{len(tensors)} pieces of the batch", f"{schedule.micro_batches}, one a micro-batch"
            raise WorkbookError(what, expected, f"pass batch.chunk({schedule.micro_batches}); its rows must divide")
