"""The ZeRO calculator: what each stage leaves on a rank, what it sends, and whether link or arithmetic is the floor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from ...catalog.devices import Device, device
from ...catalog.errors import WorkbookError
from ...catalog.hardware import REFERENCE, without_cuda
from ...catalog.recipes import PRECISIONS
from ...catalog.split import Split
from ...catalog.train_setup import TrainSetup
from ...memory import budget
from ...memory.breakdown import Breakdown, format_bytes
from ...memory.fit import reserve_growth
from ...memory.step.ranks import zero as sharding
from ...memory.step.ranks.zero import Traffic
from ...questions.parameter import Parameter
from ...questions.parameters import ANY_CONFIG, GPU, MODEL, RESERVE, TRAINED, changed, trained_models
from ...questions.question import Question
from ..drawing.bars import stacked_bars
from ..drawing.pictures import Card
from ..units import percent, si
from .answers import MemoryAnswer, mark, plural, row
from .calculator import Calculator

NAMES = ("no ZeRO", "ZeRO-1", "ZeRO-2", "ZeRO-3")
NEVER_DIVIDED = ("activations", "logits", "workspace")
TIERS = {"device": "", "host": ", in host memory", "nvme": ", on NVMe"}
MOST_RANKS = 4096
SHARDED_PRECISIONS = tuple(name for name, recipe in PRECISIONS.items() if not recipe.linear_format)
OWN_LINK = "the GPU's own"
LINKS = {OWN_LINK: None, "400 Gb/s network": 50e9, "100 Gb/s network": 12.5e9, "10 Gb/s network": 1.25e9}


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

    @property
    def figures(self) -> dict[str, Any]:
        peak, traffic = {"parts": dict(self.parts), "peak_bytes": self.peak_bytes}, self.traffic
        sent = {"payload_bytes": traffic.payload_bytes, "sent_bytes": traffic.sent_bytes}
        return {"stage": self.stage, **peak, **sent}


@dataclass(frozen=True)
class ZeroAnswer(MemoryAnswer):
    """The chosen stage among all four. A floor is None where a rate is not known, or no GPU is named."""

    setup: TrainSetup
    rows: tuple[StageRow, ...]
    link: str
    link_bytes_per_s: float | None
    link_asked: str | float | None

    @property
    def ranks(self) -> int:
        return self.setup.ranks

    @property
    def chosen(self) -> StageRow:
        return self.rows[self.setup.zero]

    @property
    def moved(self) -> sharding.LinkBytes:
        """What offload moves in a step."""
        return sharding.link_bytes(self.setup)

    @property
    def link_s(self) -> float | None:
        rate = self.link_bytes_per_s
        return sharding.floor_s(self.chosen.traffic, rate) if rate else None

    @property
    def compute_s(self) -> float | None:
        """The step's FLOPs at the GPU's peak; None where the GPU has none in the recipe's format."""
        wanted = self.setup.precision_recipe.activation_format
        if self.gpu is None or wanted not in self.gpu.peak_flops:
            return None
        return budget.step_flops(self.setup).total / self.gpu.flops_per_s(wanted)

    @property
    def host_s(self) -> float | None:
        """What offload moves, over PCIe; None where it moves nothing, or GPU and host share one memory."""
        gpu, moved = self.gpu, self.moved
        if gpu is None or gpu.unified or "pcie" not in gpu.links or not (moved.down_bytes or moved.up_bytes):
            return None
        return moved.floor_s(gpu.link_bytes_per_s("pcie"))

    @property
    def title(self) -> str:
        ranks, size = plural(self.setup.ranks, "rank"), format_bytes(self.chosen.peak_bytes)
        return f"{self.setup.model.name}, {NAMES[self.setup.zero]} on {ranks}: {size} on each"

    @property
    def question(self) -> Question:
        return ZERO_STAGES

    @property
    def asked(self) -> dict[str, Any]:
        rate = self.link_asked
        link = f"{rate / 1e9:g}" if isinstance(rate, int | float) else rate
        return {"setup": self.setup, **self.on_card, "link": link}

    def lines(self) -> Iterator[str]:
        return chain(_table(self), _held(self), _sent(self))

    def sentences(self) -> Iterator[str]:
        """What is divided, whether it fits, and what sets the time."""
        return chain(_divided(self), _room(self), _time(self), without_cuda(self.gpu))

    @property
    def cards(self) -> tuple[Card, ...]:
        bars = {NAMES[row.stage]: row.parts for row in self.rows}
        return (stacked_bars(self.title, bars, self.capacities, NAMES[self.setup.zero]),)

    @property
    def figures(self) -> dict[str, Any]:
        one = self.chosen
        stages = [
            {**stage.figures, "fits": self.holds(stage.peak_bytes), "verdict": self.verdict(stage.peak_bytes)}
            for stage in self.rows
        ]
        return {
            **super().figures,
            "stage": one.stage,
            "held": {tier: dict(getattr(one.held, tier)) for tier in TIERS},
            "collectives": _by_kind(one.traffic),
            "sent_bytes": one.traffic.sent_bytes,
            "offload": vars(self.moved),
            "link": self.link or None,
            "link_s": self.link_s,
            "compute_s": self.compute_s,
            "host_s": self.host_s,
            "stages": stages,
        }


def zero_answer(
    setup: TrainSetup,
    gpu: str | Device | None = None,
    link: str | float | None = None,
    reserve_bytes: int | None = None,
) -> ZeroAnswer:
    """`setup` at its own stage and at the others, per rank: peak on a GPU, bytes sent, floors of the step's time.

    `link` between ranks is one of the GPU's by name, or bytes per second in one direction; None is the GPU's fastest.
    WorkbookError for a model without a closed form, a link that the GPU has not, a rate that is none.

    >>> setup = TrainSetup("llama-2-7b", "bf16", "adamw-fused", checkpointing="full", split=Split(8, zero=3))
    >>> answer = zero_answer(setup, "a100-80gb")
    >>> round(answer.parts.total / 2**30, 1), round(answer.link_s, 2), round(answer.compute_s, 2)
    (8.6, 0.12, 0.36)
    """
    where = device(gpu) if gpu else None
    rows = tuple(_row(at_stage(setup, stage), where) for stage in range(len(NAMES)))
    parts = rows[setup.zero].parts
    return ZeroAnswer(parts, where, setup, rows, *_link(where, link), link, reserve_bytes=reserve_bytes)


def at_stage(setup: TrainSetup, stage: int) -> TrainSetup:
    """The same run at another stage, without the offloads that this one has not."""
    optimizer = setup.offload_optimizer if stage else "none"
    parameters = setup.offload_parameters if stage == 3 else "none"
    return replace(
        setup, split=replace(setup.split, zero=stage), offload_optimizer=optimizer, offload_parameters=parameters
    )


def _row(setup: TrainSetup, where: Device | None) -> StageRow:
    peak = budget.train(setup, where or REFERENCE).peak
    return StageRow(setup.zero, peak.parts, peak.name, sharding.held(setup), sharding.traffic(setup))


def _link(where: Device | None, link: str | float | None) -> tuple[str, float | None]:
    """What ranks send over, in words and in bytes per second one way."""
    if isinstance(link, (int, float)):
        return f"a link of {si(sharding.require_rate(link), 'B/s')}", link
    if where is None and link is not None:
        raise WorkbookError(f"the link {link!r} of no GPU", "a GPU, or bytes per second", "name a GPU: gpu='h100'")
    if where is None or (link is None and (where.unified or not where.links)):
        return "", None
    name = max(where.links, key=where.link_bytes_per_s) if link is None else link
    return f"{name} of the {where.title}", where.link_bytes_per_s(name)


def _by_kind(traffic: Traffic) -> dict[str, dict[str, int]]:
    parts = {kind: traffic.of(kind) for kind in traffic.kinds}
    return {
        kind: {"calls": len(one.calls), "payload_bytes": one.payload_bytes, "sent_bytes": one.sent_bytes}
        for kind, one in parts.items()
    }


def _table(answer: ZeroAnswer) -> Iterator[str]:
    heads = ("parameters", "gradients", "optimizer", "the rest", "peak", "sent")
    rows = [(stage, list(map(format_bytes, _sizes(stage, heads[:3])))) for stage in answer.rows]
    width = max(12, *(1 + len(size) for _, sizes in rows for size in sizes))
    yield f"  {'':<9}" + "".join(f"{head:>{width}}" for head in heads) + "   fits" * bool(answer.gpu)
    for stage, sizes in rows:
        fitting = mark(answer.verdict(stage.peak_bytes))
        pointer = "›" if stage is answer.chosen else " "
        yield f"{pointer} {NAMES[stage.stage]:<9}" + "".join(f"{size:>{width}}" for size in sizes) + fitting


def _sizes(stage: StageRow, parts: Sequence[str]) -> tuple[int, ...]:
    """Of a row: its parts, the rest of the peak, the peak, what is sent."""
    first = [stage.parts.get(part, 0) for part in parts]
    return (*first, stage.peak_bytes - sum(first), stage.peak_bytes, stage.traffic.sent_bytes)


def _held(answer: ZeroAnswer) -> Iterator[str]:
    """Where shards live between backward and step, and what the rest of the peak is."""
    setup, chosen, n, recipe = answer.setup, answer.chosen, answer.setup.model.parameters, answer.setup.precision_recipe
    rest = {part: chosen.parts[part] for part in NEVER_DIVIDED if part in chosen.parts}
    yield row("peak", format_bytes(chosen.peak_bytes), chosen.peak_name)
    undivided = ", ".join(f"{part} {format_bytes(size)}" for part, size in rest.items())
    yield row("not divided", format_bytes(sum(rest.values())), undivided)
    explained = (
        ("parameters", 3, f"{n:,} × {recipe.weight_bytes} B"),
        ("gradients", 2, f"{n:,} × {recipe.grad_bytes} B"),
        ("optimizer", 1, _states(setup)),
    )
    held = {tier: getattr(chosen.held, tier) for tier in TIERS}
    for part, stage, what in explained:
        tier = next((tier for tier in TIERS if held[tier][part]), "nvme")
        share = f" / {setup.ranks:,} ranks" if setup.zero >= stage and setup.ranks > 1 else ""
        yield row(part, format_bytes(held[tier][part]), f"{what}{share}{TIERS[tier]}, after the backward")
    for tier in ("host", "nvme"):
        if total := held[tier].total:
            everywhere = format_bytes(total * setup.ranks)
            yield row(tier, format_bytes(total), f"a rank; {everywhere} for all {setup.ranks:,}")


def _states(setup: TrainSetup) -> str:
    """What the optimizer keeps: in another memory a copy of the weights too, for it steps there."""
    if setup.offload_optimizer != "none":
        return "states and the weights that they update"
    return "states and master copy" if setup.precision_recipe.master_bytes else "states"


def _sent(answer: ZeroAnswer) -> Iterator[str]:
    """Collectives, and the least time that link, arithmetic and host need."""
    setup, moved = answer.setup, answer.moved
    for kind, one in _by_kind(answer.chosen.traffic).items():
        ring = f"{sharding.PASSES[kind]} × {setup.ranks - 1:,}/{setup.ranks:,}"
        payload = f"{format_bytes(one['payload_bytes'])} in {one['calls']} calls × {ring}"
        yield f"{kind.replace('_', '-'):<15}{format_bytes(one['sent_bytes']):>11}   sent: {payload}"
    if answer.link_s is not None and answer.link_bytes_per_s:
        yield row("link", si(answer.link_s, "s"), f"at {si(answer.link_bytes_per_s, 'B/s')} each way, {answer.link}")
    if answer.compute_s is not None:
        flops = si(budget.step_flops(setup).total, "FLOP")
        yield row("arithmetic", si(answer.compute_s, "s"), f"{flops} at the GPU's peak")
    if moved.down_bytes or moved.up_bytes:
        took = "" if answer.host_s is None else f"; at least {si(answer.host_s, 's')} over PCIe"
        up = format_bytes(moved.up_bytes)
        yield row("offload", format_bytes(moved.down_bytes), f"down to the host, {up} up{took}")
    if moved.nvme_read_bytes:
        written = f"{format_bytes(moved.nvme_written_bytes)} written"
        yield row("nvme", format_bytes(moved.nvme_read_bytes), f"read, {written}, per rank and step")


def _divided(answer: ZeroAnswer) -> Iterator[str]:
    setup, peak = answer.setup, answer.parts.total
    whole, here = (format_bytes(stage.held.device.total) for stage in (answer.rows[0], answer.chosen))
    what = "of parameters, gradients and states"
    if setup.ranks == 1:
        offload = ", and only the offload takes bytes off the GPU" if answer.moved.up_bytes else ""
        yield f"ZeRO shards nothing on one rank: there is nobody to share with{offload}."
    elif not setup.zero:
        yield f"All {setup.ranks:,} ranks hold the same {whole} {what}."
    else:
        yield f"{NAMES[setup.zero]} leaves {here} of {whole} {what} on each of {setup.ranks:,} GPUs."
    undivided = sum(answer.parts.get(part, 0) for part in NEVER_DIVIDED)
    if setup.zero and undivided > peak / 2:
        what = "activations, logits and what is whole for a while"
        yield f"{percent(undivided / peak)} of the peak are {what}: no stage divides those."
        if setup.zero == 3 and setup.precision_recipe.autocast:
            cures = "FSDP2's own mixed precision (`workbook estimate train --fsdp`) and megatron-bf16"
            yield f"Autocast's copies of all weights in 16 bits are among them, which {cures} do without."


def _room(answer: ZeroAnswer) -> Iterator[str]:
    """Fits or not; if not, the lowest stage that does, or the ranks that stage 3 needs."""
    if not answer.gpu or not answer.room:
        return
    yield answer.room.sentence(answer.parts.total)
    if answer.holds(answer.parts.total):
        return
    by_ranks, capacity = answer.reserve_bytes is None, answer.room.for_tensors_bytes
    if lowest := next((stage for stage in answer.rows if answer.holds(stage.peak_bytes)), None):
        yield f"The lowest stage that fits: {NAMES[lowest.stage]}."
    elif ranks := fewest_ranks(answer.setup, capacity, answer.gpu, by_ranks):
        yield f"ZeRO-3 on {ranks:,} ranks would fit."
    else:
        cure = "the micro-batch, checkpointing, the recipe or an offload must change"
        yield f"ZeRO-3 would not fit on {MOST_RANKS:,} ranks either: {cure}."


def fewest_ranks(
    setup: TrainSetup, capacity_bytes: int, gpu: str | Device = REFERENCE, by_ranks: bool = False
) -> int | None:
    """The fewest ranks, doubled from those of `setup`, whose peak on `gpu` at stage 3 is within `capacity_bytes`.

    `by_ranks`: less what more ranks than the setup's keep of the card for their buffers.
    """

    setup_at_3 = at_stage(setup, 3)

    def held_by(ranks: int) -> bool:
        buffers = reserve_growth(device(gpu), setup.ranks, ranks) if by_ranks else 0
        needs = budget.train(replace(setup_at_3, split=Split(ranks, zero=3)), gpu).peak_bytes
        return needs + buffers <= capacity_bytes

    doublings = (max(MOST_RANKS, setup.ranks) // setup.ranks).bit_length()
    counts = [setup.ranks * 2**power for power in range(doublings)]
    return next(filter(held_by, counts)) if held_by(counts[-1]) else None


def _time(answer: ZeroAnswer) -> Iterator[str]:
    """Which floor is the higher one. They overlap at best: a step takes at least the largest of them."""
    work_s, link_s, host_s = answer.compute_s, answer.link_s, answer.host_s
    if not work_s:
        return
    if answer.setup.ranks > 1 and link_s is not None:
        sending, working = si(link_s, "s"), f"{si(work_s, 's')} of arithmetic"
        cure = "a larger micro-batch" if answer.setup.zero > 1 else "a larger micro-batch, or accumulation,"
        hides = f"Sending takes {sending} at least and can hide behind {working}."
        too_slow = f"The link is too slow for it: {sending} to send against {working}; {cure} makes up for it."
        yield too_slow if link_s > work_s else hides
    if host_s is not None and host_s > work_s:
        yield f"The way to the host takes longer than the arithmetic: {si(host_s, 's')}."


def zero(**start: object) -> Calculator:
    """The live calculator. `start` moves its controls: `zero(model="llama-2-70b", ranks=16, zero=3)`."""
    return Calculator(ZERO_STAGES, start)


def link_of(text: str) -> str | float:
    """A name, or a rate in bytes a second of one in GB/s: plain decimal digits only.

    >>> link_of("25"), link_of("nvlink")
    (25000000000.0, 'nvlink')
    """
    plain = text.isascii() and text.replace(".", "", 1).isdigit() and len(text) < 18
    return float(text) * 1e9 if plain else text


ZERO_STAGES = Question(
    "zero",
    "every ZeRO stage: bytes on a rank, bytes sent, link or arithmetic first",
    zero_answer,
    changed(
        (
            MODEL,
            *TRAINED,
            GPU,
            RESERVE,
            Parameter(
                "link",
                "between ranks: a link of the GPU, or GB/s one way, as in 25",
                type=link_of,
                label="link",
                steps=LINKS,
                start=OWN_LINK,
            ),
            ANY_CONFIG,
        ),
        model={"steps": trained_models(), "start": "llama-2-7b"},
        gpu={"start": "a100-40gb"},
        precision={"steps": SHARDED_PRECISIONS, "start": "megatron-bf16"},
        zero={"start": 1},
        ranks={"start": 8},
        checkpointing={"start": "full"},
    ),
    setup=TrainSetup,
    units="bytes and seconds",
    title="ZeRO and FSDP",
    asks="What is left on each rank, and what does a step send?",
    invites="Move the ZeRO stage up by one, and it fits. Move it up once more: what does a step send now?",
    controls=(
        *("model", "config", "gpu", "precision", "zero", "ranks", "link", "micro_batch", "sequence", "checkpointing"),
        *("offload_optimizer", "offload_parameters", "reserve"),
    ),
    front=("model", "gpu", "zero", "ranks", "checkpointing"),
    presets={
        "eight A100 of 40 GB": {"gpu": "a100-40gb", "ranks": 8},
        "eight H100": {"gpu": "h100-80gb", "ranks": 8},
        "four 24 GB cards": {"gpu": "rtx-4090-24gb", "ranks": 4},
    },
)
