"""The ZeRO calculator: what each stage leaves on a rank, what it sends, and whether link or arithmetic is the floor."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...catalog.devices import DEVICES, Device, device
from ...catalog.errors import WorkbookError
from ...catalog.models import MODELS
from ...catalog.models import model as resolve_model
from ...catalog.recipes import PRECISIONS
from ...catalog.setup import OFFLOADS, TrainSetup
from ...memory.closed_form import activations, budget
from ...memory.closed_form import zero as sharding
from ...memory.closed_form.breakdown import Breakdown, format_bytes
from ...memory.closed_form.ring import Traffic
from ..drawing.bars import stacked_rows
from ..drawing.pictures import Picture
from ..drawing.plots import stacked_bars
from ..units import si
from .shell import Calculator, MemoryAnswer
from .zero_words import NAMES, at_stage, by_kind, fits, formula, sentences

OWN_LINK = "the GPU's own"
LINKS: dict[str, float | None] = {
    OWN_LINK: None,
    "400 Gb/s network": 50e9,
    "100 Gb/s network": 12.5e9,
    "10 Gb/s network": 1.25e9,
}


@dataclass(frozen=True)
class StageRow:
    """One stage: the peak on a rank by part, what is held beside the GPU, and what a step sends."""

    stage: int
    parts: Breakdown
    peak_name: str
    held: sharding.Tiers
    traffic: Traffic

    @property
    def peak_bytes(self) -> int:
        return self.parts.total


@dataclass(frozen=True)
class ZeroAnswer(MemoryAnswer):
    """The chosen stage among all four. A floor is None where a rate is not known, or no GPU is named."""

    setup: TrainSetup | None = None
    rows: tuple[StageRow, ...] = ()
    link: str = ""
    link_s: float | None = None
    compute_s: float | None = None
    host_s: float | None = None

    @property
    def chosen(self) -> StageRow:
        return self.rows[self.setup.zero]

    @property
    def moved(self) -> sharding.LinkBytes:
        """What offload moves in a step."""
        return sharding.link_bytes(self.setup)

    @property
    def bars(self) -> dict[str, Breakdown]:
        return {NAMES[row.stage]: row.parts for row in self.rows}

    @property
    def picture(self) -> Picture:
        return stacked_rows(self.title, self.bars, NAMES[self.setup.zero], self.capacity_bytes, self.device)

    @property
    def png(self) -> bytes:
        rows = {f"› {name}" if name == NAMES[self.setup.zero] else name: parts for name, parts in self.bars.items()}
        return stacked_bars(self.title, rows, {self.device: self.capacity_bytes} if self.capacity_bytes else None).png

    @property
    def figures(self) -> dict[str, object]:
        """Every number of the answer by name, unrounded, for JSON."""
        one = self.chosen
        stages = [
            {
                "stage": row.stage,
                "parts": dict(row.parts),
                "peak_bytes": row.peak_bytes,
                "payload_bytes": row.traffic.payload_bytes,
                "sent_bytes": row.traffic.sent_bytes,
                "fits": fits(row, self.capacity_bytes),
            }
            for row in self.rows
        ]
        held = {tier: dict(getattr(one.held, tier)) for tier in ("device", "host", "nvme")}
        return {
            "parts": dict(self.parts),
            "peak_bytes": self.parts.total,
            "stage": one.stage,
            "held": held,
            "collectives": by_kind(one.traffic),
            "sent_bytes": one.traffic.sent_bytes,
            "offload": vars(self.moved),
            "link": self.link or None,
            "link_s": self.link_s,
            "compute_s": self.compute_s,
            "host_s": self.host_s,
            "stages": stages,
        }


def zero_answer(setup: TrainSetup, gpu: str | Device | None = None, link: str | float | None = None) -> ZeroAnswer:
    """`setup` at its own stage and at the others, per rank: peak on a GPU, bytes sent, floors of the step's time.

    `link` between ranks is one of the GPU's by name, or bytes per second in one direction; None is the GPU's fastest.
    WorkbookError for a model without a closed form, a link that the GPU has not, a rate that is none.

    >>> setup = TrainSetup("llama-2-7b", "bf16", "adamw-fused", checkpointing="full", zero=3, ranks=8)
    >>> answer = zero_answer(setup, "a100-80gb")
    >>> round(answer.parts.total / 2**30, 1), round(answer.link_s, 2), round(answer.compute_s, 2)
    (8.5, 0.12, 0.36)
    """
    where = device(gpu) if gpu else None
    rows = tuple(_row(at_stage(setup, stage)) for stage in range(len(NAMES)))
    one = rows[setup.zero]
    name, rate = _link(where, link)
    size = (where.capacity_bytes, where.title) if where else (None, "")
    ranks = f"{setup.ranks:,} rank{'s' * (setup.ranks > 1)}"
    title = f"{setup.model.name}, {NAMES[setup.zero]} on {ranks}: {format_bytes(one.peak_bytes)} on each"
    answer = ZeroAnswer(
        title,
        (),
        "",
        one.parts,
        *size,
        setup,
        rows,
        name,
        sharding.floor_s(one.traffic, rate) if rate else None,
        _compute_s(setup, where),
        _host_s(setup, where),
    )
    return replace(answer, formula=tuple(formula(answer, rate)), sentence=" ".join(sentences(answer)))


def _row(setup: TrainSetup) -> StageRow:
    peak = budget.train(setup, cuda=True).peak
    return StageRow(setup.zero, peak.parts, peak.name, sharding.held(setup), sharding.traffic(setup))


def _link(where: Device | None, link: str | float | None) -> tuple[str, float | None]:
    """What ranks send over, in words and in bytes per second one way."""
    if isinstance(link, (int, float)):
        return f"a link of {si(sharding.require_rate(link), 'B/s')}", link
    if where is None:
        if link is not None:
            raise WorkbookError(f"the link {link!r} of no GPU", "a GPU, or bytes per second", "name a GPU: gpu='h100'")
        return "", None
    if link is None and not (where.links and not where.unified):
        return "", None
    name = max(where.links, key=where.link_bytes_per_s) if link is None else link
    return f"{name} of the {where.title}", where.link_bytes_per_s(name)


def _compute_s(setup: TrainSetup, where: Device | None) -> float | None:
    """The step's FLOPs at the GPU's peak; None where the GPU has none in the recipe's format."""
    wanted = setup.precision_recipe.activation_format
    if where is None or wanted not in where.peak_flops:
        return None
    return budget.step_flops(setup).total / where.flops_per_s(wanted)


def _host_s(setup: TrainSetup, where: Device | None) -> float | None:
    moved = sharding.link_bytes(setup)
    if where is None or where.unified or "pcie" not in where.links or not (moved.down_bytes or moved.up_bytes):
        return None
    return moved.floor_s(where.link_bytes_per_s("pcie"))


def zero(**start: object) -> Calculator:
    """The live calculator. `start` moves its controls: `zero(model="llama-2-70b", ranks=16, stage=3)`."""
    options = {
        "model": ("model", _models()),
        "gpu": ("GPU", list(DEVICES)),
        "precision": ("precision", list(PRECISIONS)),
        "stage": ("ZeRO stage", [0, 1, 2, 3]),
        "ranks": ("world size", [2**power for power in range(13)]),
        "link": ("link", list(LINKS)),
        "micro_batch": ("micro-batch", [1, 2, 4, 8, 16, 32, 64]),
        "sequence": ("sequence", [256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072]),
        "checkpointing": ("checkpointing", ["none", "full", "every:2", "every:4", "selective"]),
        "offload_optimizer": ("optimizer in", list(OFFLOADS)),
        "offload_parameters": ("parameters in", list(OFFLOADS)),
    }
    first = {
        "model": "llama-2-7b",
        "gpu": "a100-80gb",
        "precision": "megatron-bf16",
        "stage": 3,
        "ranks": 8,
        "link": OWN_LINK,
        "micro_batch": 1,
        "sequence": 2048,
        "checkpointing": "full",
        "offload_optimizer": "none",
        "offload_parameters": "none",
    }
    return Calculator(_compute, options, {**first, **start})


def _models() -> list[str]:
    shapes = (resolve_model(name) for name in MODELS)
    return [shape.name for shape in shapes if shape.family in activations.FAMILIES and shape.is_dense_decoder]


def _compute(model: str, gpu: str, stage: int, link: str, sequence: int, **choices: object) -> ZeroAnswer:
    """A model with a table of positions gets no longer sequence than it has; capped scores need eager attention."""
    shape = resolve_model(model)
    tokens = min(sequence, shape.max_positions) if shape.learned_positions else sequence
    attention = "eager" if shape.family == "gemma2" else "sdpa"
    setup = TrainSetup(shape, optimizer="adamw-fused", sequence=tokens, zero=stage, attention=attention, **choices)
    return zero_answer(setup, gpu, LINKS[link])
