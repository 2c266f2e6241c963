"""What the ZeRO calculator says: the table of stages, the chosen one with its numbers filled in, and the sentences."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from ...catalog.setup import TrainSetup
from ...memory.closed_form import budget
from ...memory.closed_form.breakdown import format_bytes
from ...memory.closed_form.ring import Traffic
from ..units import percent, si

if TYPE_CHECKING:
    from .zero import StageRow, ZeroAnswer

NAMES = ("no ZeRO", "ZeRO-1", "ZeRO-2", "ZeRO-3")
NEVER_DIVIDED = ("activations", "logits", "workspace")
TIERS = {"device": "", "host": ", in host memory", "nvme": ", on NVMe"}
MOST_RANKS = 4096


def at_stage(setup: TrainSetup, stage: int) -> TrainSetup:
    """The same run at another stage, without the offloads that this one has not."""
    return replace(
        setup,
        zero=stage,
        offload_optimizer=setup.offload_optimizer if stage else "none",
        offload_parameters=setup.offload_parameters if stage == 3 else "none",
    )


def fits(row: StageRow, capacity_bytes: int | None) -> bool | None:
    """Whether a stage's peak is within the device; None without one."""
    return None if capacity_bytes is None else row.peak_bytes <= capacity_bytes


def by_kind(traffic: Traffic) -> dict[str, dict[str, int]]:
    parts = {kind: traffic.of(kind) for kind in traffic.kinds}
    return {
        kind: {"calls": len(one.calls), "payload_bytes": one.payload_bytes, "sent_bytes": one.sent_bytes}
        for kind, one in parts.items()
    }


def formula(answer: ZeroAnswer, rate: float | None) -> Iterator[str]:
    """The table of stages, then the chosen one with its numbers filled in."""
    yield from _table(answer)
    yield from _held(answer)
    yield from _sent(answer, rate)


def _table(answer: ZeroAnswer) -> Iterator[str]:
    told = "   fits" if answer.capacity_bytes else ""
    heads = ("parameters", "gradients", "optimizer", "the rest", "peak", "sent")
    yield f"  {'':<9}" + "".join(f"{head:>12}" for head in heads) + told
    for row in answer.rows:
        first = [row.parts.get(part, 0) for part in heads[:3]]
        sizes = (*first, row.peak_bytes - sum(first), row.peak_bytes, row.traffic.sent_bytes)
        told = {None: "", True: "   yes", False: "   no"}[fits(row, answer.capacity_bytes)]
        mark = "›" if row is answer.chosen else " "
        yield f"{mark} {NAMES[row.stage]:<9}" + "".join(f"{format_bytes(size):>12}" for size in sizes) + told


def _held(answer: ZeroAnswer) -> Iterator[str]:
    """Where shards live between backward and step, and what the rest of the peak is."""
    setup, row = answer.setup, answer.chosen
    rest = ", ".join(f"{part} {format_bytes(row.parts[part])}" for part in NEVER_DIVIDED if part in row.parts)
    yield f"{'peak':<12}{format_bytes(row.peak_bytes):>12}   {row.peak_name}; not divided: {rest}"
    n, recipe = setup.model.parameters, setup.precision_recipe
    explained = (
        ("parameters", 3, f"{n:,} × {recipe.weight_bytes} B"),
        ("gradients", 2, f"{n:,} × {recipe.grad_bytes} B"),
        ("optimizer", 1, _states(setup)),
    )
    for part, stage, what in explained:
        tier = next(tier for tier in TIERS if getattr(row.held, tier)[part] or tier == "nvme")
        size = getattr(row.held, tier)[part]
        share = f" / {setup.ranks:,} ranks" if setup.zero >= stage and setup.ranks > 1 else ""
        yield f"{part:<12}{format_bytes(size):>12}   {what}{share}{TIERS[tier]}, after the backward"
    for tier in ("host", "nvme"):
        total = getattr(row.held, tier).total
        if total:
            everywhere = format_bytes(total * setup.ranks)
            yield f"{tier:<12}{format_bytes(total):>12}   a rank; {everywhere} for all {setup.ranks:,}"


def _states(setup: TrainSetup) -> str:
    """What the optimizer keeps: in another memory a copy of the weights too, for it steps there."""
    if setup.offload_optimizer != "none":
        return "states and the weights that they update"
    return "states and master copy" if setup.precision_recipe.master_bytes else "states"


def _sent(answer: ZeroAnswer, rate: float | None) -> Iterator[str]:
    """Collectives, and the least time that link, arithmetic and host need."""
    setup, moved = answer.setup, answer.moved
    for kind, one in by_kind(answer.chosen.traffic).items():
        ring = f"{2 if kind == 'all_reduce' else 1} × {setup.ranks - 1:,}/{setup.ranks:,}"
        yield (
            f"{kind.replace('_', '-'):<15}{format_bytes(one['sent_bytes']):>11}   sent: "
            f"{format_bytes(one['payload_bytes'])} in {one['calls']} calls × {ring}"
        )
    if answer.link_s is not None:
        yield f"{'link':<12}{si(answer.link_s, 's'):>12}   at {si(rate, 'B/s')} each way, {answer.link}"
    if answer.compute_s is not None:
        flops = si(budget.step_flops(setup).total, "FLOP")
        yield f"{'arithmetic':<12}{si(answer.compute_s, 's'):>12}   {flops} at the GPU's peak"
    if moved.down_bytes or moved.up_bytes:
        took = "" if answer.host_s is None else f"; at least {si(answer.host_s, 's')} over PCIe"
        up = format_bytes(moved.up_bytes)
        yield f"{'offload':<12}{format_bytes(moved.down_bytes):>12}   down to the host, {up} up{took}"
    if moved.nvme_read_bytes:
        written = f"{format_bytes(moved.nvme_written_bytes)} written"
        yield f"{'nvme':<12}{format_bytes(moved.nvme_read_bytes):>12}   read, {written}, per rank and step"


def sentences(answer: ZeroAnswer) -> Iterator[str]:
    """What is divided, whether it fits, and what sets the time: each only as far as it is true."""
    yield _divided(answer)
    rest = sum(answer.parts.get(part, 0) for part in NEVER_DIVIDED)
    if answer.setup.zero and rest > answer.parts.total / 2:
        yield (
            f"{percent(rest / answer.parts.total)} of the peak are activations, logits and what is whole for a "
            "while: no stage divides those."
        )
    yield from _room(answer)
    yield from _time(answer)


def _divided(answer: ZeroAnswer) -> str:
    setup, here = answer.setup, answer.chosen.held.device.total
    whole = answer.rows[0].held.device.total
    if setup.ranks == 1:
        offload = ", and only the offload takes bytes off the GPU" if answer.moved.up_bytes else ""
        return f"ZeRO does not help one rank: there is nobody to share with{offload}."
    if not setup.zero:
        return f"All {setup.ranks:,} ranks hold the same {format_bytes(whole)} of parameters, gradients and states."
    return (
        f"{NAMES[setup.zero]} leaves {format_bytes(here)} of {format_bytes(whole)} of parameters, gradients and states "
        f"on each of {setup.ranks:,} GPUs."
    )


def _room(answer: ZeroAnswer) -> Iterator[str]:
    """Fits or not; if not, the lowest stage that does, or the ranks that stage 3 needs."""
    if not answer.capacity_bytes:
        return
    over = answer.parts.total - answer.capacity_bytes
    if over <= 0:
        yield (
            f"Fits the {answer.device} with {format_bytes(-over)} to spare, from which the CUDA context and "
            f"fragmentation still take their part."
        )
        return
    yield f"Does not fit the {answer.device}: {format_bytes(over)} too much."
    lowest = next((row for row in answer.rows if row.peak_bytes <= answer.capacity_bytes), None)
    if lowest:
        yield f"The lowest stage that fits: {NAMES[lowest.stage]}."
        return
    ranks = fewest_ranks(answer.setup, answer.capacity_bytes)
    yield (
        f"ZeRO-3 on {ranks:,} ranks would fit."
        if ranks
        else f"ZeRO-3 would not fit on {MOST_RANKS:,} ranks either: the micro-batch, checkpointing, the recipe or an "
        "offload must change."
    )


def fewest_ranks(setup: TrainSetup, capacity_bytes: int) -> int | None:
    """The fewest ranks, doubled from those of `setup`, whose peak at stage 3 is within `capacity_bytes`."""

    def held_by(ranks: int) -> bool:
        return budget.train(replace(at_stage(setup, 3), ranks=ranks), cuda=True).peak_bytes <= capacity_bytes

    counts = [setup.ranks]
    while counts[-1] * 2 <= MOST_RANKS:
        counts.append(counts[-1] * 2)
    if not held_by(counts[-1]):
        return None
    return next(ranks for ranks in counts if held_by(ranks))


def _time(answer: ZeroAnswer) -> Iterator[str]:
    """Which floor is the higher one. They overlap at best: a step takes at least the largest of them."""
    work = answer.compute_s
    if answer.setup.ranks > 1 and answer.link_s is not None and work:
        sending, working = si(answer.link_s, "s"), si(work, "s")
        cure = "a larger micro-batch" if answer.setup.zero > 1 else "a larger micro-batch, or accumulation,"
        yield (
            f"The link is too slow for it: {sending} to send against {working} of arithmetic; {cure} makes up for it."
            if answer.link_s > work
            else f"Sending takes {sending} at least and can hide behind {working} of arithmetic."
        )
    if answer.host_s is not None and work and answer.host_s > work:
        yield f"The way to the host takes longer than the arithmetic: {si(answer.host_s, 's')}."
