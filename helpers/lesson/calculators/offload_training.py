"""Training with an optimizer, or parameters, off the GPU: bytes in each memory, seconds of each hop beside compute."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any

from ...catalog.devices import Device, device
from ...catalog.hardware import without_cuda
from ...catalog.tiers import TIERS, Tier, tier
from ...catalog.train_setup import TrainSetup
from ...memory import budget, offload
from ...memory.breakdown import Breakdown, Moment, format_bytes
from ...memory.fit.room import Room, Verdict
from ...memory.offload import ONE_RANKS, Hop, Passage
from ...memory.step.ranks.zero import Tiers, held
from ...questions.parameter import Parameter, decimal, whole
from ...questions.parameters import GPU, MODEL, RESERVE, TRAINED
from ...questions.question import Question
from ..drawing.marks import label
from ..drawing.pictures import Card
from ..drawing.shares import Memory, memory_shares, time_bars
from ..units import percent, si
from .answers import CalculatorAnswer, plural, said_of_card
from .offload_places import EXPOSED, HIDDEN, capacity_of, tier_sentence, tier_verdict, worst

USUAL_HOST, USUAL_RANKS, USUAL_EFFICIENCY = "dgx-h100-dram", 8, 0.5
COMPUTE = "compute"
WORDS = {  # of a hop within a sentence
    Passage.DOWN: "the way down over PCIe",
    Passage.UP: "the way up over PCIe",
    Passage.MEMORY: "the host's memory",
    Passage.READ: "reading from the disk",
    Passage.WRITTEN: "writing to the disk",
}
Row = tuple[str, str, str]


@dataclass(frozen=True)
class OffloadTrainingAnswer(CalculatorAnswer):
    """One step of a rank, and what all ranks of a host share: its memory, its disks."""

    setup: TrainSetup
    gpu: Device
    host: Tier
    disk: Tier | None
    ranks_per_host: int
    efficiency: float
    peak: Moment
    held: Tiers
    hops: tuple[Hop, ...]
    compute_s: float
    reserve_bytes: int | None

    @property
    def ranks_here(self) -> int:
        """On one host."""
        return min(self.setup.ranks, self.ranks_per_host)

    @property
    def host_parts(self) -> Breakdown:
        """In the memory of one host, of all its ranks."""
        return _times(self.held.host, self.ranks_here)

    @property
    def disk_parts(self) -> Breakdown:
        return _times(self.held.nvme, self.ranks_here)

    @property
    def longest(self) -> Hop:
        return max(self.hops, key=lambda hop: hop.seconds)

    @property
    def floor_s(self) -> float:
        """Of a step that overlaps all hops and its compute."""
        return max(self.longest.seconds, self.compute_s)

    @property
    def serial_s(self) -> float:
        return sum(hop.seconds for hop in self.hops) + self.compute_s

    @property
    def is_hidden(self) -> bool:
        return self.longest.seconds <= self.compute_s

    @property
    def state(self) -> str:
        return HIDDEN if self.is_hidden else EXPOSED

    @cached_property
    def micro_batch_that_hides(self) -> int | None:
        return offload.micro_batch_that_hides(self.setup, self.gpu, self.hops, self.efficiency)

    @cached_property
    def peak_that_hides_bytes(self) -> int | None:
        """On the card, with that micro-batch."""
        count = self.micro_batch_that_hides
        return budget.train(replace(self.setup, micro_batch=count), self.gpu).peak_bytes if count else None

    @property
    def room(self) -> Room:
        return Room(self.gpu, self.reserve_bytes, self.setup.ranks)

    @property
    def verdicts(self) -> dict[str, Verdict | None]:
        disk = tier_verdict(self.disk, self.disk_parts.total) if self.disk_parts.total else None
        host = tier_verdict(self.host, self.host_parts.total)
        return {"device": self.room.verdict(self.peak.total), "host": host, "disk": disk}

    @property
    def title(self) -> str:
        setup, what = self.setup, COMPUTE if self.is_hidden else WORDS[self.longest.name]
        who = f"{setup.model.name}, ZeRO-{setup.zero} on {plural(setup.ranks, 'rank')}"
        return f"{who}: hops {self.state}, {si(self.floor_s, 's')} a step at least, set by {what}"

    def lines(self) -> Iterator[str]:
        rows = chain(_hops(self), _seconds(self), _bytes(self))
        return (f"{name:<19}{value:>12}   {text}" for name, value, text in rows)

    def sentences(self) -> Iterator[str]:
        """Which hop is the floor, what hides it, what an engine may not overlap, whether all fits."""
        return chain(_floor(self), _cure(self), _order(self), _room(self), _assumed(self), without_cuda(self.gpu))

    @property
    def cards(self) -> tuple[Card, ...]:
        seconds = {str(hop.name): hop.seconds for hop in self.hops}
        times = time_bars(self.title, seconds, (COMPUTE, self.compute_s), "" if self.is_hidden else self.longest.name)
        return (times, memory_shares("Bytes, as shares of what each memory holds", _memories(self)))

    @property
    def figures(self) -> dict[str, Any]:
        verdicts = self.verdicts
        return {
            "state": self.state,
            "floor_s": self.floor_s,
            "serial_s": self.serial_s,
            "compute_s": self.compute_s,
            "hops": [{**vars(hop), "seconds": hop.seconds} for hop in self.hops],
            "longest": self.longest.name,
            "micro_batch_that_hides": self.micro_batch_that_hides,
            "peak_that_hides_bytes": self.peak_that_hides_bytes,
            "device_bytes": dict(self.peak.parts),
            "peak_bytes": self.peak.total,
            "host_bytes": dict(self.host_parts),
            "disk_bytes": dict(self.disk_parts),
            "reserve_bytes": self.room.reserve_bytes,
            **{f"{place}_verdict": verdict for place, verdict in verdicts.items()},
            "verdict": worst(verdicts.values()),
        }

    @property
    def question(self) -> Question:
        return OFFLOAD_TRAIN

    @property
    def asked(self) -> dict[str, Any]:
        return {
            "setup": self.setup,
            **said_of_card(self.gpu, self.reserve_bytes),
            "host": self.host.name,
            "disk": self.disk.name if self.disk else None,
            "ranks_per_host": self.ranks_per_host,
            "efficiency": self.efficiency,
        }


def offload_training_answer(
    setup: TrainSetup,
    gpu: str | Device,
    host: str | Tier = USUAL_HOST,
    disk: str | Tier | None = None,
    ranks_per_host: int = USUAL_RANKS,
    efficiency: float = USUAL_EFFICIENCY,
    reserve_bytes: int | None = None,
) -> OffloadTrainingAnswer:
    """One step of `setup`, which offloads: bytes on the card, in the host's memory and on its disks, seconds of hops.

    `disk` is needed where something is on "nvme". `efficiency` is the share of the card's FLOP rate that is reached.
    WorkbookError where nothing is offloaded, for a model without a closed form, and for a card without a link.

    >>> from helpers.catalog.split import Split
    >>> setup = TrainSetup("llama-2-70b", "megatron-bf16", "adamw-fused", checkpointing="full", split=Split(8, zero=3),
    ...     offload_optimizer="cpu", offload_parameters="cpu")
    >>> answer = offload_training_answer(setup, "h100")
    >>> answer.longest.name, round(answer.floor_s, 2), round(answer.compute_s, 2), answer.micro_batch_that_hides
    ('memory of the host', 4.26, 2.22, 2)
    """
    card, memory, drives = device(gpu), tier(host), tier(disk) if disk is not None else None
    hops = offload.training_hops(setup, card, memory, drives, ranks_per_host)
    compute_s = offload.training_compute_s(setup, card, efficiency)
    peak = budget.train(setup, card).peak
    where = (card, memory, drives, ranks_per_host, efficiency)
    return OffloadTrainingAnswer(setup, *where, peak, held(setup), hops, compute_s, reserve_bytes)


def _times(parts: Breakdown, count: int) -> Breakdown:
    return Breakdown({part: count * size for part, size in parts.items()})


def _hops(answer: OffloadTrainingAnswer) -> Iterator[Row]:
    for hop in answer.hops:
        size, rate = format_bytes(hop.size_bytes), si(hop.bytes_per_s, "B/s")
        who = "a rank" if hop.name in ONE_RANKS else plural(answer.ranks_here, "rank")
        yield hop.name, si(hop.seconds, "s"), f"{size} of {who} / {rate}, {hop.place}"


def _seconds(answer: OffloadTrainingAnswer) -> Iterator[Row]:
    setup, name = answer.setup, answer.setup.precision_recipe.activation_format
    rate, flops = answer.gpu.flops_per_s(name), budget.step_flops(setup).total
    yield COMPUTE, si(answer.compute_s, "s"), f"{si(flops, 'FLOP')} / ({answer.efficiency:g} × {si(rate, 'FLOP/s')})"
    yield "all overlapped", si(answer.floor_s, "s"), "the longest of these: no step is faster"
    yield "nothing overlapped", si(answer.serial_s, "s"), "their sum"
    if count := answer.micro_batch_that_hides:
        text = f"sequences of {setup.sequence:,} tokens: compute is then as long as {WORDS[answer.longest.name]}"
        yield "micro-batch", f"{count:,}", text


def _bytes(answer: OffloadTrainingAnswer) -> Iterator[Row]:
    yield "on the card", format_bytes(answer.peak.total), f"at the peak, {answer.peak.name}"
    for name, parts, place in (("host", answer.host_parts, answer.host), ("disk", answer.disk_parts, answer.disk)):
        if parts.total and place:
            told = " + ".join(f"{label(part)} {format_bytes(size)}" for part, size in parts.items() if size)
            yield f"on the {name}", format_bytes(parts.total), f"{plural(answer.ranks_here, 'rank')}: {told}"


def _floor(answer: OffloadTrainingAnswer) -> Iterator[str]:
    hop, took = WORDS[answer.longest.name], si(answer.longest.seconds, "s")
    work = f"{si(answer.compute_s, 's')} of compute"
    if answer.is_hidden:
        yield f"Hidden: {hop} is the longest hop: its {took} end within {work} if all of them overlap."
    else:
        yield f"Exposed: {hop} takes {took} beside {work}; no step is faster, however well it overlaps."


def _cure(answer: OffloadTrainingAnswer) -> Iterator[str]:
    """How large the micro-batch must be, and whether the card holds it."""
    if answer.is_hidden:
        return
    count, size = answer.micro_batch_that_hides, answer.peak_that_hides_bytes
    if count is None or size is None:
        yield "No micro-batch makes compute as long."
        return
    takes = f"would take {format_bytes(size)} on the card"
    fits = {Verdict.FITS: ", and fits", Verdict.TIGHT: ", which is tight", Verdict.DOES_NOT_FIT: ", and does not fit"}
    yield f"From a micro-batch of {count:,} on compute is as long; it {takes}{fits[answer.room.verdict(size)]}."


def _order(answer: OffloadTrainingAnswer) -> Iterator[str]:
    if answer.setup.offload_optimizer != "none":
        between = f"its step lies between {si(answer.floor_s, 's')} and {si(answer.serial_s, 's')}"
        yield "If gradients are clipped by the norm of all of them, the update begins when the last one is down."
        yield f"An engine that does not delay it by a step then overlaps less: {between}."
    if answer.disk_parts.total:
        yield "What a disk holds passes through the host's memory, and is counted there, too."


def _room(answer: OffloadTrainingAnswer) -> Iterator[str]:
    yield answer.room.sentence(answer.peak.total)
    if answer.host_parts.total:
        yield tier_sentence(answer.host, answer.host_parts.total)
    if answer.disk_parts.total:
        yield tier_sentence(answer.disk, answer.disk_parts.total)


def _assumed(answer: OffloadTrainingAnswer) -> Iterator[str]:
    share = f"{percent(answer.efficiency)} of the card's FLOP rate"
    yield f"Assumed: {share}, and memories and links as fast as their datasheets. Sending between ranks is not counted."


def _memories(answer: OffloadTrainingAnswer) -> list[Memory]:
    memories = [Memory(answer.gpu.title, answer.peak.parts, answer.gpu.capacity_bytes)]
    for parts, place in ((answer.host_parts, answer.host), (answer.disk_parts, answer.disk)):
        if parts.total and place:
            memories.append(Memory(place.title, parts, capacity_of(place)))
    return memories


HOSTS = tuple(name for name, entry in TIERS.items() if entry.kind == "dram")
DISKS = tuple(name for name, entry in TIERS.items() if entry.kind == "nvme")
OFFLOAD_TRAIN = Question(
    "train",
    "a step whose states or parameters are elsewhere",
    offload_training_answer,
    (
        MODEL,
        *TRAINED,
        replace(GPU, required=True),
        RESERVE,
        Parameter("host", ", ".join(HOSTS), USUAL_HOST, metavar="TIER").with_control("host's memory", HOSTS),
        Parameter("disk", f"for what is offloaded to nvme: {', '.join(DISKS)}", metavar="TIER").with_control(
            "disk", DISKS, "nd-h200-v5-nvme"
        ),
        Parameter(
            "ranks_per_host", "ranks that share a host's memory and disks", USUAL_RANKS, whole, metavar="N"
        ).with_control("on one host", (1, 2, 4, 8, 16)),
        Parameter("efficiency", "of the FLOP rate", USUAL_EFFICIENCY, decimal, metavar="SHARE"),
    ),
    setup=TrainSetup,
    family=("estimate", "offload"),
    units="bytes and seconds",
)
