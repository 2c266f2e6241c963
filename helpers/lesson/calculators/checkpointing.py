"""The checkpointing calculator: what each policy keeps, what it costs, and which of them no other beats on both."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any

from ...catalog.devices import Device, device
from ...catalog.hardware import reference_of, without_cuda
from ...catalog.train_setup import TrainSetup
from ...memory import budget
from ...memory.breakdown import GIB, format_bytes, rounded
from ...memory.step.decoders.linears import StepWidths
from ...questions.parameters import ANY_CONFIG, GPU, MODEL, RESERVE, TRAINED, changed, trained_models
from ...questions.question import Question
from ..drawing.marks import FAINT, LINES
from ..drawing.pareto import Measure, ParetoPoint, bargain, unbeaten
from ..drawing.pictures import Card
from ..units import si
from .answers import MemoryAnswer, mark, row
from .calculator import Calculator

SELECTIVE = ("selective", "selective:matmuls", "selective:attention")
COMPARED = (  # of all that the control offers; one that is chosen is compared beside them
    "none",
    "full",
    "every:2",
    "every:4",
    "sqrt-n",
    *SELECTIVE,
    "module:attention",
    "module:mlp",
    "offload:inputs",
)
NEEDED_LAYERS = {"every:2": 2, "every:4": 4}
HELPS = 0.01  # a peak that falls by less has not been helped


@dataclass(frozen=True)
class PolicyRow:
    """One policy: bytes that the layers keep to the end of forward, the peak, and FLOPs that run again."""

    policy: str
    kept_bytes: int
    peak_bytes: int
    peak_when: str
    extra_flops: int
    extra_share: float  # of the FLOPs of a step without checkpointing

    @property
    def percent(self) -> str:
        return f"{100 * self.extra_share:.1f} % more"


@dataclass(frozen=True)
class CheckpointingAnswer(MemoryAnswer):
    """The chosen policy's peak by part against the device, among all the others."""

    setup: TrainSetup
    rows: tuple[PolicyRow, ...]

    @property
    def ranks(self) -> int:
        return self.setup.ranks

    @property
    def chosen(self) -> PolicyRow:
        return next(row for row in self.rows if row.policy == self.setup.checkpointing)

    @property
    def plain(self) -> PolicyRow:
        return next(row for row in self.rows if row.policy == "none")

    @cached_property
    def front(self) -> tuple[PolicyRow, ...]:
        """Rows that no other beats, the cheapest in FLOPs first."""
        rows = {row.policy: row for row in self.rows}
        best = unbeaten({name: (row.extra_flops, row.peak_bytes) for name, row in rows.items()})
        return tuple(rows[name] for name in best)

    @property
    def cheapest_that_fits(self) -> PolicyRow | None:
        """The first on the front that the device holds; None without a device, or where none fits."""
        return next((row for row in self.front if self.holds(row.peak_bytes)), None)

    @property
    def title(self) -> str:
        chosen = self.chosen
        return f"{self.setup.model.name}, {chosen.policy}: {format_bytes(chosen.peak_bytes)} {chosen.peak_when}"

    @property
    def question(self) -> Question:
        return CHECKPOINTING

    @property
    def asked(self) -> dict[str, Any]:
        return {"setup": self.setup, **self.on_card}

    def lines(self) -> Iterator[str]:
        return chain(_table(self), _chosen(self))

    def sentences(self) -> Iterator[str]:
        return chain(_effect(self), _verdict(self), without_cuda(self.gpu))

    @property
    def cards(self) -> tuple[Card, ...]:
        return (*super().cards, _front_card(self))

    @property
    def figures(self) -> dict[str, Any]:
        front = self.front
        rows = [
            {
                **vars(row),
                "on_front": row in front,
                "fits": self.holds(row.peak_bytes),
                "verdict": self.verdict(row.peak_bytes),
            }
            for row in self.rows
        ]
        return {**super().figures, "policy": self.setup.checkpointing, "policies": rows}


def checkpointing_answer(
    setup: TrainSetup, gpu: str | Device | None = None, reserve_bytes: int | None = None
) -> CheckpointingAnswer:
    """`setup` under its own policy and under the usual ones: bytes kept, peak on a GPU, FLOPs that run again.

    Time is told in FLOPs; an offload's transfers are not in them. WorkbookError for a model or a policy whose
    activations have no closed form.

    >>> answer = checkpointing_answer(TrainSetup("llama-2-7b", "bf16", "adamw-fused", 4, checkpointing="full"), "h100")
    >>> answer.chosen.kept_bytes / 2**30, round(answer.chosen.extra_share, 3), answer.cheapest_that_fits.policy
    (2.0, 0.257, 'selective')
    """
    where = device(gpu) if gpu else None
    layers = len(setup.model.layers)
    names = [name for name in COMPARED if NEEDED_LAYERS.get(name, 1) <= layers]
    names.append(f"first:{max(1, layers // 2)}")
    predicted = {
        name: budget.train(replace(setup, checkpointing=name), where or reference_of(setup))
        for name in dict.fromkeys((*names, setup.checkpointing))
    }
    parts = predicted[setup.checkpointing].parts
    rows = tuple(_row(name, one) for name, one in predicted.items())
    return CheckpointingAnswer(parts, where, setup, rows, reserve_bytes=reserve_bytes)


def _row(policy: str, found: budget.TrainBudget) -> PolicyRow:
    flops = found.flops
    return PolicyRow(policy, found.kept_bytes, found.peak_bytes, found.peak.when, flops.recomputed, flops.ratio - 1)


def _table(answer: CheckpointingAnswer) -> Iterator[str]:
    """Every policy, with a mark at those on the front."""
    front = answer.front
    yield f"  {'policy':<20}{'kept':>12}{'peak':>12}{'more FLOPs':>12}{'   fits' if answer.gpu else ''}"
    for policy in answer.rows:
        fitting = mark(answer.verdict(policy.peak_bytes))
        kept, peak = format_bytes(policy.kept_bytes), format_bytes(policy.peak_bytes)
        star = "*" if policy in front else " "
        yield f"{star} {policy.policy:<20}{kept:>12}{peak:>12}{100 * policy.extra_share:>10.1f} %{fitting}"
    yield "* on the front: no other policy is better in memory and no worse in FLOPs"


def _chosen(answer: CheckpointingAnswer) -> Iterator[str]:
    setup = answer.setup
    width = StepWidths.of(setup).residual
    product = f"{setup.micro_batch} × {setup.sequence:,} × {setup.model.hidden:,} × {width} B"
    boundary = format_bytes(_boundary(setup))
    yield row("a boundary", boundary, f"{product}: what a segment's input takes")
    saved = format_bytes(budget.bytes_saved_by(setup, setup.model.layers[0]))
    yield row("a layer", saved, f"saved by each of {len(setup.model.layers)} layers that is not recomputed")
    whole = si(budget.step_flops(replace(setup, checkpointing="none")).total, "FLOP")
    again = si(answer.chosen.extra_flops, "FLOP")
    yield row("run again", again, f"on {whole} of a step: {answer.chosen.percent}")


def _boundary(setup: TrainSetup) -> int:
    return rounded(setup.tokens * setup.model.hidden * StepWidths.of(setup).residual)


def _effect(answer: CheckpointingAnswer) -> Iterator[str]:
    chosen, plain = answer.chosen, answer.plain
    policy, moment, kept = chosen.policy, chosen.peak_when, format_bytes(plain.kept_bytes)
    spared = 1 - chosen.peak_bytes / plain.peak_bytes
    if policy == "none":
        yield f"Without checkpointing the layers keep {kept}."
    elif spared < HELPS:
        still = f"instead of {kept}, and the peak stays, {moment}"
        yield f"{policy} does not help here: the layers keep {format_bytes(chosen.kept_bytes)} {still}."
    else:
        yield f"{policy} lowers the peak by {100 * spared:.0f} % for {chosen.percent} FLOPs; it is now {moment}."
    if policy == "offload:inputs":
        moved = len(answer.setup.model.layers) * _boundary(answer.setup)
        yield f"{format_bytes(moved)} cross the link to the host and come back: time that is no FLOPs."


def _verdict(answer: CheckpointingAnswer) -> Iterator[str]:
    chosen, cheapest = answer.chosen, answer.cheapest_that_fits
    if not answer.room:
        return
    over = not answer.holds(chosen.peak_bytes)
    yield answer.room.sentence(chosen.peak_bytes)
    yield from answer.room.holes(chosen.peak_bytes)
    if cheapest is None:
        yield "No policy fits: a smaller micro-batch, fewer states or more GPUs must help."
    elif over or cheapest.extra_flops < chosen.extra_flops:
        yield f"The cheapest that fits: {cheapest.policy}, {cheapest.percent} FLOPs."


def _front_card(answer: CheckpointingAnswer) -> Card:
    """Every policy as a point, those on the front joined, the chosen one filled."""
    front, unit, name = answer.front, *((GIB, "GiB") if answer.plain.peak_bytes >= GIB else (2**20, "MiB"))
    places = {policy: (100 * policy.extra_share, policy.peak_bytes / unit) for policy in answer.rows}
    points = []
    for policy, place in places.items():
        chosen, on_front = policy is answer.chosen, policy in front
        colour = LINES[1] if chosen else LINES[0] if on_front else FAINT
        tooltip = f"{policy.policy}: {format_bytes(policy.peak_bytes)}, {policy.percent} FLOPs"
        points.append(ParetoPoint(policy.policy, *place, colour, chosen, chosen or on_front, tooltip))
    x = Measure("more FLOPs than without checkpointing", "{:g} %".format, from_zero=True)
    y = Measure("peak", f"{{:g}} {name}".format, from_zero=True)
    gpu, curve = answer.gpu, [places[policy] for policy in front]
    limit = (gpu.capacity_bytes / unit, f"{gpu.title} {format_bytes(gpu.capacity_bytes)}") if gpu else None
    title = f"{len(front)} of {len(points)} policies are not beaten on both memory and FLOPs"
    return bargain(title, points, x, y, curve, steps=True, limit=limit, height=310)


def checkpointing(**start: object) -> Calculator:
    """The live calculator. `start` moves its controls: `checkpointing(model="gpt2", gpu="rtx-4090")`."""
    return Calculator(CHECKPOINTING, start)


CHECKPOINTING = Question(
    "checkpointing",
    "every policy: what it keeps, where it peaks, what it runs again",
    checkpointing_answer,
    changed(
        (MODEL, *TRAINED, GPU, RESERVE, ANY_CONFIG),
        model={"steps": trained_models(), "start": "llama-2-7b"},
        gpu={"start": "h100-80gb"},
        precision={"start": "bf16"},
        checkpointing={"label": "policy", "start": "full"},
        micro_batch={"start": 4},
    ),
    setup=TrainSetup,
    units="bytes and FLOPs",
    title="Activation checkpointing",
    asks="What does each policy keep, and cost?",
    invites="Try selective, which runs next to nothing again. Then twice the micro-batch: which policies fit now?",
    controls=("model", "config", "gpu", "precision", "checkpointing", "micro_batch", "sequence", "reserve"),
    front=("model", "gpu", "checkpointing", "micro_batch", "sequence"),
)
