"""The story of one step: blocks born and freed, by part and phase. Pure accounting, no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...catalog.errors import WorkbookError
from ..closed_form.breakdown import PARTS, Breakdown, Moment

FORWARD, BACKWARD, OPTIMIZER = PHASES = ("forward", "backward", "optimizer step")


@dataclass
class Block:
    """One storage from birth to death. `category` is settled when the step is over and its fate is known."""

    size_bytes: int
    phase: str
    owner: str
    shape: tuple[int, ...]
    category: str = "workspace"


@dataclass(frozen=True)
class Event:
    """`block` was born (`sign` +1) or freed (−1) while `phase` ran."""

    block: Block
    sign: int
    phase: str


@dataclass(frozen=True)
class Timeline:
    """Live bytes by part after each allocation and each free of one step.

    `parts[name][i]` is in bytes; `phases[i]` is forward, backward or optimizer step.
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
class Measurement:
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
    def peak(self) -> Moment:
        return max(self.moments, key=lambda moment: moment.total)

    @property
    def parts(self) -> Breakdown:
        return self.peak.parts

    @property
    def saved_bytes(self) -> int:
        """Bytes saved for the backward pass, logits included."""
        return sum(self.saved_by_module.values())


def account(
    events: Sequence[Event],
    born: int,
    vocab: int | None,
    hidden_bytes: int,
    device: str,
    seconds: float | None,
) -> Measurement:
    """Turn events into a measurement, now that every block's fate is known.

    The first `born` events are of blocks that were alive before the step. `vocab` tells logits apart: what has that
    last dimension and is no parameter. `hidden_bytes` is what only the CUDA allocator saw. Raises WorkbookError when
    the step neither made nor freed a tensor.
    """
    if len(events) == born:
        raise WorkbookError(
            "what ran has neither allocated nor freed anything",
            "a callable that runs PyTorch",
            "make the tensors inside it; views and in-place operators need no memory",
        )
    forwards = _saved_by_forward(events)
    saved = {key for forward in forwards for key in forward}
    for block in {id(event.block): event.block for event in events}.values():
        if block.category == "workspace":
            block.category = _fate(block, saved, vocab)
    timeline = _timeline(events, born)
    moments = _moments(timeline, hidden_bytes)
    by_module = max(map(_by_module, forwards), key=lambda sizes: sum(sizes.values()), default={})
    peak_bytes = max(moment.total for moment in moments)
    return Measurement(device, peak_bytes, moments, timeline, by_module, seconds, hidden_bytes)


def _by_module(saved: dict[int, Block]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for block in saved.values():
        if block.category in ("activations", "logits"):
            sizes[block.owner] = sizes.get(block.owner, 0) + block.size_bytes
    return sizes


def _fate(block: Block, saved: set[int], vocab: int | None) -> str:
    if vocab and block.shape and block.shape[-1] == vocab and block.phase != OPTIMIZER:
        return "logits"
    recomputed = block.phase == BACKWARD and block.owner
    return "activations" if id(block) in saved or recomputed else "workspace"


def _saved_by_forward(events: Sequence[Event]) -> list[dict[int, Block]]:
    """For each forward (one per micro-batch): the blocks it made that are alive when its backward begins."""
    live: dict[int, Block] = {}
    forwards: list[dict[int, Block]] = []
    previous = FORWARD
    for event in events:
        if event.phase == BACKWARD and previous == FORWARD:
            forwards.append({key: block for key, block in live.items() if block.phase == FORWARD})
        previous = event.phase
        if event.sign > 0:
            live[id(event.block)] = event.block
        else:
            live.pop(id(event.block), None)
    return forwards


def _timeline(events: Sequence[Event], born: int) -> Timeline:
    now = dict.fromkeys(PARTS, 0)
    series: dict[str, list[int]] = {part: [] for part in PARTS}
    for number, event in enumerate(events):
        now[event.block.category] += event.sign * event.block.size_bytes
        if number >= born:
            for part in PARTS:
                series[part].append(now[part])
    return Timeline({part: values for part, values in series.items() if any(values)}, [e.phase for e in events[born:]])


def _moments(timeline: Timeline, hidden_bytes: int) -> tuple[Moment, ...]:
    """The highest point of each phase, what only the allocator saw added to its workspace."""
    highest: dict[str, int] = {}
    totals = [timeline.total(at) for at in range(len(timeline))]
    for at, phase in enumerate(timeline.phases):
        begins = at > 0 and timeline.phases[at - 1] != phase  # what stands there when a phase begins counts for it
        for point in (at - 1, at) if begins else (at,):
            if phase not in highest or totals[point] > totals[highest[phase]]:
                highest[phase] = point
    moments = []
    for phase, at in highest.items():
        parts = timeline.breakdown(at)
        if hidden_bytes > 0:
            parts = Breakdown({**parts, "workspace": parts.get("workspace", 0) + hidden_bytes})
        moments.append(Moment(phase, parts))
    return tuple(moments)
