"""The story of one step: blocks allocated and freed, by part and phase. Pure accounting, no torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ...catalog.errors import WorkbookError
from ..breakdown import PARTS, Breakdown, Moment, Moments, Part, Phase

ZERO_GRAD = "zero_grad"  # gradients are freed outside of a backward pass and of an optimizer's step


@dataclass
class StorageLifetime:
    """One storage from its allocation until it is freed.

    `phase` is the Phase that made it, or a name of the caller's own ("" for none); `owner` is the module at work.
    `category` is a Part, or what a caller sorts by; it is settled when it is known who needed the block.
    `place` is the memory it lies in, where a meter tells places apart; `stream` the CUDA stream it was made in.
    """

    size_bytes: int
    phase: str
    owner: str
    shape: tuple[int, ...]
    category: str = Part.WORKSPACE
    place: str = ""
    stream: int = 0


@dataclass(frozen=True)
class AllocationEvent:
    """`block` was allocated (`sign` +1) or freed (−1) while `phase` ran."""

    block: StorageLifetime
    sign: int
    phase: str


def live_after(events: Iterable[AllocationEvent]) -> list[StorageLifetime]:
    """The blocks that `events` leave allocated, the oldest first."""
    live: dict[int, StorageLifetime] = {}
    for event in events:
        if event.sign > 0:
            live[id(event.block)] = event.block
        else:
            live.pop(id(event.block), None)
    return list(live.values())


def live_at_peak(events: Sequence[AllocationEvent], first: int = 0) -> list[StorageLifetime]:
    """The blocks that are live when the bytes are most, looking from event `first` on; the oldest first."""
    total = highest = at = 0
    for number, event in enumerate(events):
        total += event.sign * event.block.size_bytes
        if number >= first and total > highest:
            highest, at = total, number + 1
    return live_after(events[:at])


@dataclass(frozen=True)
class Timeline:
    """Live bytes by part after each allocation and each free of one step: `parts[name][i]` while `phases[i]` ran.

    A phase is a Phase, ZERO_GRAD, or a name of the caller's own.
    """

    parts: dict[str, list[int]]
    phases: list[str]

    def __len__(self) -> int:
        return len(self.phases)

    def total(self, at: int) -> int:
        return sum(series[at] for series in self.parts.values())

    def breakdown(self, at: int) -> Breakdown:
        return Breakdown({name: series[at] for name, series in self.parts.items() if series[at]})


@dataclass(frozen=True)
class Measurement(Moments):
    """One measured step.

    `moments` holds the highest point of each phase. `saved_by_module` holds the bytes alive at the end of the forward
    that the backward needs, by the module that made them; of several micro-batches, the largest's. `seconds` is the
    time of a step without the meter (None when there was no warm-up step to time). On CUDA `peak_bytes` is the
    allocator's own peak; `unseen_bytes` of it no operator returned (cuBLAS workspaces, temporaries inside operators),
    and they are in the part "workspace". 0 on a CPU.
    """

    device: str
    peak_bytes: int
    moments: tuple[Moment, ...]
    timeline: Timeline
    saved_by_module: dict[str, int]
    seconds: float | None
    unseen_bytes: int = 0

    @property
    def tensor_bytes(self) -> int:
        """The peak without `unseen_bytes`: what a prediction of tensors is compared with."""
        return self.peak_bytes - self.unseen_bytes

    @property
    def saved_bytes(self) -> int:
        """Bytes saved for the backward pass, logits included."""
        return sum(self.saved_by_module.values())


PartOf = Callable[[StorageLifetime], str | None]


def account(
    events: Sequence[AllocationEvent],
    before: int,
    vocab: int | None,
    hidden_bytes: int,
    device: str,
    seconds: float | None,
    part_of: PartOf | None = None,
) -> Measurement:
    """Turn events into a measurement, now that it is known who needed each block.

    The first `before` events are of blocks that were alive before the step. `vocab` tells logits apart: what has that
    last dimension and is no parameter. `hidden_bytes` is what only the CUDA allocator saw. `part_of(block)` may name a
    part of the caller's own for a block that is none of the model's or the optimizer's. Raises WorkbookError when the
    step neither made nor freed a tensor.
    """
    if len(events) == before:
        do = "make the tensors inside it; views and in-place operators need no memory"
        raise WorkbookError("what ran has neither allocated nor freed anything", "a callable that runs PyTorch", do)
    forwards = _saved_by_forward(events)
    saved = {id(block) for forward in forwards for block in forward}
    for block in {id(event.block): event.block for event in events}.values():
        if block.category == Part.WORKSPACE:
            block.category = (part_of and part_of(block)) or _part_of(block, saved, vocab)
    timeline = _timeline(events, before)
    moments = _moments(timeline, hidden_bytes)
    by_module = max(map(_by_module, forwards), key=lambda sizes: sum(sizes.values()), default={})
    peak_bytes = max(moment.total for moment in moments)
    return Measurement(device, peak_bytes, moments, timeline, by_module, seconds, hidden_bytes)


def _by_module(saved: Sequence[StorageLifetime]) -> dict[str, int]:
    sizes: Counter[str] = Counter()
    for block in saved:
        if block.category in (Part.ACTIVATIONS, Part.LOGITS) or block.category not in PARTS:
            sizes[block.owner] += block.size_bytes
    return dict(sizes)


def _part_of(block: StorageLifetime, saved: set[int], vocab: int | None) -> Part:
    if vocab and block.shape and block.shape[-1] == vocab and block.phase != Phase.OPTIMIZER:
        return Part.LOGITS
    recomputed = block.phase == Phase.BACKWARD and block.owner
    return Part.ACTIVATIONS if id(block) in saved or recomputed else Part.WORKSPACE


def _saved_by_forward(events: Sequence[AllocationEvent]) -> list[list[StorageLifetime]]:
    """For each forward (one per micro-batch): the blocks it made that are alive when its backward begins."""
    phases = [Phase.FORWARD, *(event.phase for event in events)]
    begins = [at for at, (a, b) in enumerate(pairwise(phases)) if (a, b) == (Phase.FORWARD, Phase.BACKWARD)]
    return [[block for block in live_after(events[:at]) if block.phase == Phase.FORWARD] for at in begins]


def _timeline(events: Sequence[AllocationEvent], before: int) -> Timeline:
    now: dict[str, int] = dict.fromkeys((*PARTS, *(event.block.category for event in events)), 0)
    series: dict[str, list[int]] = {part: [] for part in now}
    for number, event in enumerate(events):
        now[event.block.category] += event.sign * event.block.size_bytes
        if number >= before:
            for part in now:
                series[part].append(now[part])
    return Timeline({part: values for part, values in series.items() if any(values)}, _phases(events[before:]))


def _phases(events: Sequence[AllocationEvent]) -> list[str]:
    """What ran at each event. No phase begins with a free: outside of the others it belongs to what ran before."""
    phases: list[str] = []
    for event in events:
        phase = event.phase
        if event.sign < 0 and phase == Phase.FORWARD:
            phase = ZERO_GRAD if event.block.category == Part.GRADIENTS else (phases or [phase])[-1]
        phases.append(phase)
    return phases


def _moments(timeline: Timeline, hidden_bytes: int) -> tuple[Moment, ...]:
    """The highest point of each phase, what only the allocator saw added to its workspace."""
    highest: dict[str, int] = {}
    totals = [timeline.total(at) for at in range(len(timeline))]
    for at, phase in enumerate(timeline.phases):
        begins = at > 0 and timeline.phases[at - 1] != phase  # what stands there when a phase begins counts for it
        for point in (at - 1, at) if begins else (at,):
            if phase not in highest or totals[point] > totals[highest[phase]]:
                highest[phase] = point
    highest.pop(ZERO_GRAD, None)  # which only frees
    return tuple(Moment(phase, _with_workspace(timeline.breakdown(at), hidden_bytes)) for phase, at in highest.items())


def _with_workspace(parts: Breakdown, hidden_bytes: int) -> Breakdown:
    return Breakdown({**parts, Part.WORKSPACE: parts.get(Part.WORKSPACE, 0) + hidden_bytes}) if hidden_bytes else parts
