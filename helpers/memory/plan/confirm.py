"""The finalist once more, by the trace: real code on fake tensors, beside the closed form that chose it. Imports torch.

    confirm(plan_training(goal, fleet)).sentence       # 'The trace allocates 60.9 GiB, 1.2% less than …'

What the trace can run is one rank of DDP, of FSDP2, of adapters, and a replica on one card. Where Megatron divides
tensors and data alone, PyTorch's own tensor parallelism with FSDP2 is traced at the same degrees: it is what
torchtitan's file runs, it keeps other bytes, and `sentence` says the difference. Of the rest it says why it was not
traced; Megatron's closed form is within 3 % of 19 published runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from ...catalog.errors import WorkbookError
from ...catalog.split import ONE_GPU, Split
from .. import trace
from ..breakdown import format_bytes
from .engine_replica import replica_of
from .search import TrainAnswer
from .serve_search import ServeAnswer
from .training import Layout, StepEngine, train_setup

MOST_TRACED = 2  # micro-batches: the second meets gradients, and all after it are like it
MOST_USERS = 64  # that a replica is traced with: each more takes time, and no other kind of tensor


@dataclass(frozen=True)
class Confirmation:
    """Bytes that the trace allocates for the first plan; None, and `why`, where it cannot run it."""

    predicted_bytes: int
    traced_bytes: int | None
    why: str = ""

    @property
    def error(self) -> float | None:
        """The closed form's, against the trace: predicted over traced, less 1."""
        return None if self.traced_bytes is None else self.predicted_bytes / self.traced_bytes - 1

    @property
    def sentence(self) -> str:
        if self.traced_bytes is None:
            return f"The trace does not confirm it: {self.why}."
        size, more = format_bytes(self.traced_bytes), self.traced_bytes / self.predicted_bytes - 1
        than = f"{abs(more):.1%} {'more' if more > 0 else 'less'} than"
        return f"The trace allocates {size}, {than} the closed form that chose the plan{self.why}."


def confirm(answer: TrainAnswer | ServeAnswer, at: int = 0) -> Confirmation:
    """Trace one plan of an answer; some seconds for 8B, more for larger models. Raises WorkbookError without a plan."""
    if not answer.plans:
        raise WorkbookError("no plan to confirm", "an answer with a plan", "loosen the goal, or add cards")
    return _training(answer, at) if isinstance(answer, TrainAnswer) else _serving(answer, at)


def _training(answer: TrainAnswer, at: int) -> Confirmation:
    plan, goal = answer.plans[at], answer.goal
    layout, predicted = plan.layout, plan.need.total
    why = _no_trace(layout)
    if why:
        return Confirmation(predicted, None, why)
    batches = min(MOST_TRACED, layout.micro_batches)
    setup, note = train_setup(replace(layout, micro_batches=batches), goal.model, goal.sequence), ""
    if layout.engine is StepEngine.ZERO:  # at stage 0: what a rank holds is what one holds
        setup = replace(setup, split=ONE_GPU)
    elif layout.engine is StepEngine.MEGATRON:
        split = Split(fsdp=layout.data, tensor=layout.tensor)
        setup = replace(setup, precision="autocast-bf16", split=split)
        note = f"; it is PyTorch's FSDP2 and DTensor at the same degrees ({split}), with FP32 shards, and not Megatron"
    return _traced(predicted, partial(trace.train, setup, plan.cards.device), note)


def _no_trace(layout: Layout) -> str:
    """Why a layout is not traced; "" where it is."""
    if layout.engine is StepEngine.MEGATRON and layout.pipeline * layout.context * layout.expert > 1:
        return "Megatron's code does not run here, and PyTorch's runs tensors and data alone"
    if layout.offload:
        return "an optimizer on the host is DeepSpeed's, whose code does not run here"
    if layout.zero:
        return f"ZeRO-{layout.zero} is DeepSpeed's, whose code does not run here"
    return ""


def _serving(answer: ServeAnswer, at: int) -> Confirmation:
    plan = answer.plans[at]
    if plan.layout.ranks > 1:
        return Confirmation(plan.parts.total, None, "a replica on several cards is not traced")
    replica = replica_of(answer.goal, plan.layout, plan.cards, answer.rates)
    users = min(plan.users, MOST_USERS)
    setup = replace(replica.setup, users=users)
    note = f"; traced with {users} users, as the closed form is here" if users < plan.users else ""
    return _traced(replica.parts(users).total, partial(trace.serve, setup, plan.cards.device), note)


def _traced(predicted: int, run: Callable[[], trace.Trace], note: str = "") -> Confirmation:
    """What a trace allocates; its own refusal is the reason where it cannot run the plan."""
    try:
        return Confirmation(predicted, run().peak_allocated_bytes, note)
    except WorkbookError as refused:
        return Confirmation(predicted, None, refused.what)
