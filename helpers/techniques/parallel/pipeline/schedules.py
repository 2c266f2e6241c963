"""Pipeline schedules as data: for each rank, the list of what it computes, in order. No torch.

A stage is a run of consecutive layers. Stage s is on rank s mod `ranks`; a schedule with more stages than ranks gives
each rank several of them, its virtual stages.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from ....catalog.errors import WorkbookError, require_whole
from ....memory.breakdown import TextEnum

MOST = 2**12


class Kind(TextEnum):
    """What is computed; the letters are those of torch.distributed.pipelining."""

    FORWARD = "F"
    BACKWARD = "B"  # the gradients of the input and of the weights
    INPUT = "I"  # the gradient of the input alone: the stage before waits for it
    WEIGHT = "W"  # the gradients of the weights, for which nobody waits


class Action(NamedTuple):
    """One thing that a rank computes. It prints as the figures of the papers do: F of micro-batch 3 on stage 1.

    >>> print(Action(Kind.FORWARD, 1, 3))
    F3 on stage 1
    """

    kind: Kind
    stage: int
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.kind}{self.micro_batch} on stage {self.stage}"


@dataclass(frozen=True)
class Schedule:
    """`by_rank[rank]` is what that rank computes, in order. `checked` says whether it can be run at all."""

    name: str
    stages: int
    micro_batches: int
    by_rank: tuple[tuple[Action, ...], ...]

    @property
    def ranks(self) -> int:
        return len(self.by_rank)

    def rank_of(self, stage: int) -> int:
        return stage % self.ranks

    def stages_of(self, rank: int) -> range:
        return range(rank, self.stages, self.ranks)

    @cached_property
    def positions(self) -> dict[Action, int]:
        """Where each action stands in the list of its rank."""
        return {action: at for actions in self.by_rank for at, action in enumerate(actions)}

    @property
    def splits_backward(self) -> bool:
        return any(action.kind == Kind.WEIGHT for actions in self.by_rank for action in actions)

    def sender(self, action: Action) -> Action | None:
        """The action on a neighbouring stage whose result this one reads; None where it reads none.

        A forward reads the output of the stage before, a backward the gradient from the stage after.
        """
        kind, stage, micro_batch = action
        if kind == Kind.FORWARD:
            return Action(kind, stage - 1, micro_batch) if stage else None
        if kind == Kind.WEIGHT or stage == self.stages - 1:
            return None
        return self._gradient(stage + 1, micro_batch)

    def receiver(self, action: Action) -> Action | None:
        """The action on a neighbouring stage that reads the result of this one."""
        kind, stage, micro_batch = action
        if kind == Kind.FORWARD:
            return Action(kind, stage + 1, micro_batch) if stage < self.stages - 1 else None
        return self._gradient(stage - 1, micro_batch) if stage and kind != Kind.WEIGHT else None

    def needs(self, action: Action) -> list[Action]:
        """All actions that must have ended before this one starts."""
        own = {Kind.FORWARD: [], Kind.WEIGHT: [Action(Kind.INPUT, action.stage, action.micro_batch)]}.get(
            action.kind, [Action(Kind.FORWARD, action.stage, action.micro_batch)]
        )
        sender = self.sender(action)
        return own if sender is None else [*own, sender]

    def _gradient(self, stage: int, micro_batch: int) -> Action:
        """The action that computes the gradient of this stage's input."""
        whole = Action(Kind.BACKWARD, stage, micro_batch)
        return whole if whole in self.positions else Action(Kind.INPUT, stage, micro_batch)


def gpipe(ranks: int, micro_batches: int) -> Schedule:
    """All forwards, then all backwards: simple, and every micro-batch is in flight at once. Huang et al. 2019.

    >>> [str(action) for action in gpipe(2, 2).by_rank[1]]
    ['F0 on stage 1', 'F1 on stage 1', 'B0 on stage 1', 'B1 on stage 1']
    """
    _require_sizes(ranks, micro_batches)
    all_of = range(micro_batches)
    rows = [[(kind, rank, at) for kind in (Kind.FORWARD, Kind.BACKWARD) for at in all_of] for rank in range(ranks)]
    return _schedule("GPipe", ranks, micro_batches, rows)


def one_f_one_b(ranks: int, micro_batches: int) -> Schedule:
    """After a few forwards, one backward after each forward: rank r has at most `ranks` - r micro-batches in flight.

    The bubble is that of GPipe. Narayanan et al. 2019, PipeDream; with a flush after each step, as Megatron-LM runs it.
    """
    _require_sizes(ranks, micro_batches)
    rows = []
    for rank in range(ranks):
        forwards = [(Kind.FORWARD, rank, at) for at in range(micro_batches)]
        backwards = [(Kind.BACKWARD, rank, at) for at in range(micro_batches)]
        rows.append(_alternate(forwards, backwards, warm_up=ranks - rank - 1))
    return _schedule("1F1B", ranks, micro_batches, rows)


def interleaved(ranks: int, micro_batches: int, virtual: int) -> Schedule:
    """1F1B with `virtual` stages on each rank, each of them shorter: the bubble is `virtual` times shorter.

    Micro-batches go through a rank's first stage in groups of `ranks`, then through its second, and so on; therefore
    `ranks` must divide them. Narayanan et al. 2021, section 2.2.
    """
    _require_sizes(ranks, micro_batches)
    require_whole("virtual", virtual, most=MOST, unit="stages on a rank")
    if micro_batches % ranks:
        below, above = micro_batches // ranks * ranks, -(-micro_batches // ranks) * ranks
        what = f"{micro_batches} micro-batches on {ranks} ranks, interleaved"
        do = f"pass micro_batches={above}" + (f" or {below}" if below else "") + ", or take one_f_one_b"
        raise WorkbookError(what, f"a multiple of {ranks}: micro-batches travel in groups of as many as ranks", do)
    rows = []
    groups = range(0, micro_batches, ranks)
    turns = [(chunk, at) for first in groups for chunk in range(virtual) for at in range(first, first + ranks)]
    for rank in range(ranks):
        forwards = [(Kind.FORWARD, chunk * ranks + rank, at) for chunk, at in turns]
        backwards = [(Kind.BACKWARD, (virtual - 1 - chunk) * ranks + rank, at) for chunk, at in turns]
        rows.append(_alternate(forwards, backwards, warm_up=2 * (ranks - rank - 1) + (virtual - 1) * ranks))
    return _schedule("interleaved 1F1B", ranks * virtual, micro_batches, rows)


def zero_bubble(ranks: int, micro_batches: int) -> Schedule:
    """ZB-H1: 1F1B whose backward is in two parts. Gradients of weights, for which nobody waits, fill the idle time.

    Rank r computes them r micro-batches late, so that all ranks hold as many micro-batches as the first of 1F1B.
    Qi et al. 2023, Zero Bubble Pipeline Parallelism, section 2.2.
    """
    _require_sizes(ranks, micro_batches)
    rows = []
    for rank in range(ranks):
        forwards = [(Kind.FORWARD, rank, at) for at in range(micro_batches)]
        inputs = [(Kind.INPUT, rank, at) for at in range(micro_batches)]
        row = []
        for kind, stage, at in _alternate(forwards, inputs, warm_up=ranks - rank - 1):
            row.append((kind, stage, at))
            if kind == Kind.INPUT and at >= rank:
                row.append((Kind.WEIGHT, stage, at - rank))
        row += [(Kind.WEIGHT, rank, at) for at in range(max(0, micro_batches - rank), micro_batches)]
        rows.append(row)
    return _schedule("ZB-H1", ranks, micro_batches, rows)


def in_flight(schedule: Schedule) -> tuple[int, ...]:
    """For each rank the most micro-batches, each counted on each of its stages, whose activations it holds at once.

    From the start of a forward to the end of what reads its activations last: the backward, or the weights' part of it.

    >>> in_flight(gpipe(4, 8)), in_flight(one_f_one_b(4, 8)), in_flight(zero_bubble(4, 8))
    ((8, 8, 8, 8), (4, 3, 2, 1), (4, 4, 4, 4))
    """
    most = []
    for actions in schedule.by_rank:
        held = peak = 0
        for action in actions:
            held += action.kind == Kind.FORWARD
            peak = max(peak, held)
            held -= action.kind in (Kind.BACKWARD, Kind.WEIGHT)
        most.append(peak)
    return tuple(most)


def _alternate(forwards: list, backwards: list, warm_up: int) -> list:
    """`warm_up` forwards, then one forward and one backward in turn, then the backwards that are left."""
    warm_up = min(warm_up, len(forwards))
    pairs = zip(forwards[warm_up:], backwards, strict=False)
    rest = backwards[len(forwards) - warm_up :]
    return [*forwards[:warm_up], *(action for pair in pairs for action in pair), *rest]


def _schedule(name: str, stages: int, micro_batches: int, rows: list) -> Schedule:
    return Schedule(name, stages, micro_batches, tuple(tuple(Action(*action) for action in row) for row in rows))


def _require_sizes(ranks: int, micro_batches: int) -> None:
    require_whole("ranks", ranks, most=MOST, unit="ranks")
    require_whole("micro_batches", micro_batches, most=MOST, unit="micro-batches")
