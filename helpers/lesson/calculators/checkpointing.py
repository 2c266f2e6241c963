"""The checkpointing calculator: what each policy keeps, what it costs, and which of them no other beats on both."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ...catalog.devices import DEVICES, Device, device
from ...catalog.models import MODELS
from ...catalog.models import model as resolve_model
from ...catalog.recipes import PRECISIONS
from ...catalog.setup import TrainSetup
from ...memory.closed_form import activations, budget
from ...memory.closed_form.breakdown import format_bytes
from ..drawing.bars import stacked_bar
from ..drawing.pareto import Point, front_png, front_svg, one_below_another
from ..drawing.pictures import Picture
from ..units import si
from .shell import Calculator, MemoryAnswer

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

    def beats(self, other: PolicyRow) -> bool:
        """Not worse on either axis, and better on one."""
        mine, others = (self.peak_bytes, self.extra_flops), (other.peak_bytes, other.extra_flops)
        return mine != others and mine[0] <= others[0] and mine[1] <= others[1]


@dataclass(frozen=True)
class CheckpointingAnswer(MemoryAnswer):
    """The chosen policy's peak by part against the device, among all the others."""

    setup: TrainSetup | None = None
    rows: tuple[PolicyRow, ...] = ()

    @property
    def chosen(self) -> PolicyRow:
        return next(row for row in self.rows if row.policy == self.setup.checkpointing)

    @property
    def plain(self) -> PolicyRow:
        return next(row for row in self.rows if row.policy == "none")

    @property
    def front(self) -> tuple[PolicyRow, ...]:
        """Rows that no other beats, the cheapest in FLOPs first."""
        best = [row for row in self.rows if not any(other.beats(row) for other in self.rows)]
        return tuple(sorted(best, key=lambda row: (row.extra_flops, row.peak_bytes)))

    @property
    def cheapest_that_fits(self) -> PolicyRow | None:
        """The first on the front that the device holds; None without a device, or where none fits."""
        return next((row for row in self.front if row.peak_bytes <= (self.capacity_bytes or 0)), None)

    @property
    def picture(self) -> Picture:
        bar = stacked_bar(self.title, self.parts, self.capacity_bytes, self.device)
        return one_below_another(bar, front_svg(self._front_title, self._points, self.capacity_bytes, self.device))

    @property
    def png(self) -> bytes:
        return front_png(self._front_title, self._points, self.capacity_bytes, self.device)

    @property
    def _front_title(self) -> str:
        return f"{len(self.front)} of {len(self.rows)} policies are not beaten on both memory and FLOPs"

    @property
    def _points(self) -> list[Point]:
        front, chosen = self.front, self.chosen
        return [Point(row.policy, row.extra_share, row.peak_bytes, row in front, row is chosen) for row in self.rows]

    @property
    def figures(self) -> dict[str, object]:
        """Every number of the answer by name, unrounded, for JSON."""
        front = self.front
        rows = [{**vars(row), "on_front": row in front, "fits": _fits(row, self.capacity_bytes)} for row in self.rows]
        return {
            "parts": dict(self.parts),
            "peak_bytes": self.parts.total,
            "policy": self.setup.checkpointing,
            "policies": rows,
        }


def checkpointing_answer(setup: TrainSetup, gpu: str | Device | None = None) -> CheckpointingAnswer:
    """`setup` under its own policy and under the usual ones: bytes kept, peak on a GPU, FLOPs that run again.

    Time is told in FLOPs; an offload's transfers are not in them. WorkbookError for a model or a policy whose
    activations have no closed form.

    >>> answer = checkpointing_answer(TrainSetup("llama-2-7b", "bf16", "adamw-fused", 4, checkpointing="full"), "h100")
    >>> answer.chosen.kept_bytes / 2**30, round(answer.chosen.extra_share, 3), answer.cheapest_that_fits.policy
    (2.0, 0.257, 'selective')
    """
    where = device(gpu) if gpu else None
    names = [name for name in COMPARED if _layers_needed(name) <= len(setup.model.layers)]
    names.append(f"first:{max(1, len(setup.model.layers) // 2)}")
    predicted = {
        name: budget.train(replace(setup, checkpointing=name), cuda=True)
        for name in dict.fromkeys((*names, setup.checkpointing))
    }
    chosen = predicted[setup.checkpointing]
    size = (where.capacity_bytes, where.title) if where else (None, "")
    answer = CheckpointingAnswer("", (), "", chosen.parts, *size, setup, tuple(map(_row, predicted.values())))
    title = f"{setup.model.name}, {setup.checkpointing}: {format_bytes(chosen.peak_bytes)} in the {chosen.peak.name}"
    return replace(answer, title=title, formula=tuple(_formula(answer)), sentence=" ".join(_sentences(answer)))


def _layers_needed(policy: str) -> int:
    return int(policy.partition(":")[2]) if policy.startswith("every:") else 1


def _row(predicted: budget.TrainBudget) -> PolicyRow:
    flops = predicted.flops
    return PolicyRow(
        predicted.setup.checkpointing,
        predicted.kept_bytes,
        predicted.peak_bytes,
        predicted.peak.name,
        flops.recomputed,
        flops.ratio - 1,
    )


def _fits(row: PolicyRow, capacity_bytes: int | None) -> bool | None:
    """Whether a policy's peak is within the device; None without one."""
    return None if capacity_bytes is None else row.peak_bytes <= capacity_bytes


def _formula(answer: CheckpointingAnswer) -> Iterator[str]:
    """The table of policies, a mark at those on the front, then the chosen one with its numbers filled in."""
    front, setup, chosen = answer.front, answer.setup, answer.chosen
    told = "   fits" if answer.capacity_bytes else ""
    yield f"  {'policy':<20}{'kept':>12}{'peak':>12}{'more FLOPs':>12}{told}"
    for row in answer.rows:
        told = {None: "", True: "yes", False: "no"}[_fits(row, answer.capacity_bytes)]
        mark = "*" if row in front else " "
        yield (
            f"{mark} {row.policy:<20}{format_bytes(row.kept_bytes):>12}{format_bytes(row.peak_bytes):>12}"
            f"{100 * row.extra_share:>10.1f} %   {told}"
        ).rstrip()
    yield "* on the front: no other policy is better in memory and no worse in FLOPs"
    one = f"{setup.micro_batch} × {setup.sequence:,} × {setup.model.hidden:,} × {_residual_bytes(setup)} B"
    boundary = format_bytes(activations.boundary_bytes(setup))
    yield f"{'a boundary':<12}{boundary:>12}   {one}: what a segment's input takes"
    saved = activations.saved_by_layer(setup, setup.model.layers[0]).total
    layers = f"each of {len(setup.model.layers)} layers"
    yield f"{'a layer':<12}{format_bytes(saved):>12}   saved by {layers} that is not recomputed"
    whole = budget.step_flops(replace(setup, checkpointing="none")).total
    again = si(chosen.extra_flops, "FLOP")
    yield f"{'run again':<12}{again:>12}   on {si(whole, 'FLOP')} of a step: {_percent(chosen)}"


def _residual_bytes(setup: TrainSetup) -> int:
    return activations.Widths.of(setup).residual


def _percent(row: PolicyRow) -> str:
    return f"{100 * row.extra_share:.1f} % more"


def _sentences(answer: CheckpointingAnswer) -> Iterator[str]:
    """What the policy does to the peak, whether it fits, and what is cheaper."""
    row, plain, fewest = answer.chosen, answer.plain, answer.cheapest_that_fits
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
    if not answer.capacity_bytes:
        return
    over = row.peak_bytes - answer.capacity_bytes
    yield (
        f"Does not fit the {answer.device}: {format_bytes(over)} too much."
        if over > 0
        else f"Fits the {answer.device}."
    )
    if fewest is None:
        yield "No policy fits: a smaller micro-batch, fewer states or more GPUs must help."
    elif fewest.extra_flops < row.extra_flops or over > 0:
        yield f"The cheapest that fits: {fewest.policy}, {_percent(fewest)} FLOPs."


def checkpointing(**start: object) -> Calculator:
    """The live calculator. `start` moves its controls: `checkpointing(model="gpt2", gpu="rtx-4090")`."""
    options = {
        "model": ("model", _models()),
        "gpu": ("GPU", list(DEVICES)),
        "precision": ("precision", list(PRECISIONS)),
        "policy": ("policy", list(POLICIES)),
        "micro_batch": ("micro-batch", [1, 2, 4, 8, 16, 32, 64]),
        "sequence": ("sequence", [256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072]),
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


def _models() -> list[str]:
    shapes = (resolve_model(name) for name in MODELS)
    return [shape.name for shape in shapes if shape.family in activations.FAMILIES and shape.is_dense_decoder]


def _compute(model: str, gpu: str, policy: str, sequence: int, **choices: object) -> CheckpointingAnswer:
    """A model with a table of positions gets no longer sequence than it has; capped scores need eager attention."""
    shape = resolve_model(model)
    tokens = min(sequence, shape.max_positions) if shape.learned_positions else sequence
    attention = "eager" if shape.family == "gemma2" else "sdpa"
    setup = TrainSetup(
        shape, optimizer="adamw-fused", sequence=tokens, checkpointing=policy, attention=attention, **choices
    )
    return checkpointing_answer(setup, gpu)
