"""The checkpointing calculator: what each policy keeps, what it costs, and which of them no other beats on both."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ...catalog.devices import DEVICES, Device, device
from ...catalog.hardware import REFERENCE, without_cuda
from ...catalog.recipes import PRECISIONS
from ...catalog.setup import TrainSetup
from ...memory.closed_form import activations, budget
from ...memory.closed_form.breakdown import GIB, format_bytes
from ..drawing.marks import FAINT, LINES
from ..drawing.pareto import Measure, Point, bargain, unbeaten
from ..drawing.pictures import Card
from ..units import si
from .calculator import Calculator, MemoryAnswer, fits
from .choices import MICRO_BATCHES, SEQUENCES, train_setup, trained_models

COMPARED = (
    "none",
    "full",
    "every:2",
    "every:4",
    "sqrt-n",
    "selective",
    "selective:matmuls",
    "selective:attention",
    "module:attention",
    "module:mlp",
    "offload:inputs",
)
POLICIES = (*COMPARED, "first:2", "nested:4", "recursive")  # what the control offers; one that is chosen is compared
NEEDED_LAYERS = {"every:2": 2, "every:4": 4}
HELPS = 0.01  # a peak that falls by less has not been helped


@dataclass(frozen=True)
class PolicyRow:
    """One policy: bytes that the layers keep to the end of forward, the peak, and FLOPs that run again."""

    policy: str
    kept_bytes: int
    peak_bytes: int
    peak_name: str
    extra_flops: int
    extra_share: float  # of the FLOPs of a step without checkpointing

    def fits(self, capacity_bytes: int | None) -> bool | None:
        """Whether the peak is within the device; None without one."""
        return None if capacity_bytes is None else self.peak_bytes <= capacity_bytes


@dataclass(frozen=True)
class CheckpointingAnswer(MemoryAnswer):
    """The chosen policy's peak by part against the device, among all the others."""

    setup: TrainSetup
    rows: tuple[PolicyRow, ...]

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
        return next((row for row in self.front if row.fits(self.capacity_bytes)), None)

    @property
    def title(self) -> str:
        row = self.chosen
        return f"{self.setup.model.name}, {row.policy}: {format_bytes(row.peak_bytes)} in the {row.peak_name}"

    @property
    def formula(self) -> tuple[str, ...]:
        return (*_table(self), *_chosen(self))

    @property
    def sentence(self) -> str:
        return " ".join((*_effect(self), *_verdict(self), *without_cuda(self.gpu)))

    @property
    def cards(self) -> tuple[Card, ...]:
        return (*super().cards, _front_card(self))

    @property
    def figures(self) -> dict[str, Any]:
        front, capacity = self.front, self.capacity_bytes
        rows = [{**vars(row), "on_front": row in front, "fits": row.fits(capacity)} for row in self.rows]
        return {**super().figures, "policy": self.setup.checkpointing, "policies": rows}


def checkpointing_answer(setup: TrainSetup, gpu: str | Device | None = None) -> CheckpointingAnswer:
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
        name: budget.train(replace(setup, checkpointing=name), where or REFERENCE)
        for name in dict.fromkeys((*names, setup.checkpointing))
    }
    parts = predicted[setup.checkpointing].parts
    return CheckpointingAnswer(parts, where, setup, tuple(_row(name, one) for name, one in predicted.items()))


def _row(policy: str, predicted: budget.TrainBudget) -> PolicyRow:
    flops, peak = predicted.flops, predicted.peak
    return PolicyRow(policy, predicted.kept_bytes, predicted.peak_bytes, peak.name, flops.recomputed, flops.ratio - 1)


def _table(answer: CheckpointingAnswer) -> Iterator[str]:
    """Every policy, with a mark at those on the front."""
    front, capacity = answer.front, answer.capacity_bytes
    yield f"  {'policy':<20}{'kept':>12}{'peak':>12}{'more FLOPs':>12}{'   fits' if capacity else ''}"
    for row in answer.rows:
        fitting = {None: "", True: "yes", False: "no"}[row.fits(capacity)]
        mark = "*" if row in front else " "
        yield (
            f"{mark} {row.policy:<20}{format_bytes(row.kept_bytes):>12}{format_bytes(row.peak_bytes):>12}"
            f"{100 * row.extra_share:>10.1f} %   {fitting}"
        ).rstrip()
    yield "* on the front: no other policy is better in memory and no worse in FLOPs"


def _chosen(answer: CheckpointingAnswer) -> Iterator[str]:
    """The chosen policy with its numbers filled in."""
    setup = answer.setup
    width = activations.Widths.of(setup).residual
    product = f"{setup.micro_batch} × {setup.sequence:,} × {setup.model.hidden:,} × {width} B"
    boundary = format_bytes(activations.boundary_bytes(setup))
    yield f"{'a boundary':<12}{boundary:>12}   {product}: what a segment's input takes"
    saved = format_bytes(activations.saved_by_layer(setup, setup.model.layers[0]).total)
    yield f"{'a layer':<12}{saved:>12}   saved by each of {len(setup.model.layers)} layers that is not recomputed"
    whole = si(budget.step_flops(replace(setup, checkpointing="none")).total, "FLOP")
    again = si(answer.chosen.extra_flops, "FLOP")
    yield f"{'run again':<12}{again:>12}   on {whole} of a step: {_percent(answer.chosen)}"


def _percent(row: PolicyRow) -> str:
    return f"{100 * row.extra_share:.1f} % more"


def _effect(answer: CheckpointingAnswer) -> Iterator[str]:
    """What the policy does to the peak, and what it moves."""
    row, plain = answer.chosen, answer.plain
    spared = 1 - row.peak_bytes / plain.peak_bytes
    if row.policy == "none":
        yield f"Without checkpointing the layers keep {format_bytes(plain.kept_bytes)}."
    elif spared < HELPS:
        yield (
            f"{row.policy} does not help here: the layers keep {format_bytes(row.kept_bytes)} instead of "
            f"{format_bytes(plain.kept_bytes)}, and the peak stays, in the {row.peak_name}."
        )
    else:
        yield (
            f"{row.policy} lowers the peak by {100 * spared:.0f} % for {_percent(row)} FLOPs; it is now in the "
            f"{row.peak_name}."
        )
    if row.policy == "offload:inputs":
        moved = len(answer.setup.model.layers) * activations.boundary_bytes(answer.setup)
        yield f"{format_bytes(moved)} cross the link to the host and come back: time that is no FLOPs."


def _verdict(answer: CheckpointingAnswer) -> Iterator[str]:
    """Whether it fits, and what is cheaper."""
    row, cheapest = answer.chosen, answer.cheapest_that_fits
    if not answer.gpu:
        return
    over = row.peak_bytes > answer.gpu.capacity_bytes
    yield fits(row.peak_bytes, answer.gpu) if over else f"Fits the {answer.gpu.title}."
    if cheapest is None:
        yield "No policy fits: a smaller micro-batch, fewer states or more GPUs must help."
    elif over or cheapest.extra_flops < row.extra_flops:
        yield f"The cheapest that fits: {cheapest.policy}, {_percent(cheapest)} FLOPs."


def _front_card(answer: CheckpointingAnswer) -> Card:
    """Every policy as a point, those on the front joined, the chosen one filled."""
    front, unit, name = answer.front, *((GIB, "GiB") if answer.plain.peak_bytes >= GIB else (2**20, "MiB"))
    points = [
        Point(
            row.policy,
            100 * row.extra_share,
            row.peak_bytes / unit,
            LINES[1] if row is answer.chosen else LINES[0] if row in front else FAINT,
            filled=row is answer.chosen,
            important=row is answer.chosen or row in front,
            tooltip=f"{row.policy}: {format_bytes(row.peak_bytes)}, {_percent(row)} FLOPs",
        )
        for row in answer.rows
    ]
    limits = [(size / unit, f"{title} {format_bytes(size)}") for title, size in answer.capacities.items()]
    return bargain(
        f"{len(front)} of {len(answer.rows)} policies are not beaten on both memory and FLOPs",
        points,
        Measure("more FLOPs than without checkpointing", "{:g} %".format, from_zero=True),
        Measure("peak", f"{{:g}} {name}".format, from_zero=True),
        [(100 * row.extra_share, row.peak_bytes / unit) for row in front],
        steps=True,
        limit=limits[0] if limits else None,
        height=310,
    )


def checkpointing(**start: object) -> Calculator:
    """The live calculator. `start` moves its controls: `checkpointing(model="gpt2", gpu="rtx-4090")`."""
    options = {
        "model": ("model", trained_models()),
        "gpu": ("GPU", tuple(DEVICES)),
        "precision": ("precision", tuple(PRECISIONS)),
        "policy": ("policy", POLICIES),
        "micro_batch": ("micro-batch", MICRO_BATCHES),
        "sequence": ("sequence", SEQUENCES),
    }
    first = {
        "model": "llama-2-7b",
        "gpu": "h100-80gb",
        "precision": "bf16",
        "policy": "full",
        "micro_batch": 4,
        "sequence": 2048,
    }
    return Calculator(_compute, options, {**first, **start})


def _compute(model: str, gpu: str, policy: str, sequence: int, **choices: Any) -> CheckpointingAnswer:
    return checkpointing_answer(train_setup(model, sequence, checkpointing=policy, **choices), gpu)
