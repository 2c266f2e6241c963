"""A schedule laid out in time: whether it can run at all, when each action starts, and the share of time spent idle.

No torch. An action starts when its rank is free and everything that it needs has arrived.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from ....catalog.errors import WorkbookError, require_number
from .schedules import Action, Kind, Schedule

Number = int | float | Fraction


@dataclass(frozen=True)
class Times:
    """How long one micro-batch takes on one stage. A backward in one piece takes the sum of its two parts.

    The three are equal for large matrix products, which are most of the work of a layer. `send` is how long a result
    travels to another rank, while both ranks go on computing.
    """

    forward: Number = 1
    input: Number = 1
    weight: Number = 1
    send: Number = 0

    def __post_init__(self) -> None:
        for name in ("forward", "input", "weight"):
            _require_time(name, getattr(self, name))
        if self.send:
            _require_time("send", self.send)

    def of(self, kind: Kind) -> Number:
        backward = self.input + self.weight
        return {Kind.FORWARD: self.forward, Kind.INPUT: self.input, Kind.WEIGHT: self.weight}.get(kind, backward)


class ActionSpan(NamedTuple):
    """One action of one rank, from `start` to `end`."""

    rank: int
    action: Action
    start: Number
    end: Number


@dataclass(frozen=True)
class PipelineTimeline:
    """Every action with its time, in the order in which they end up on each rank: what a figure draws."""

    spans: tuple[ActionSpan, ...]
    ranks: int

    @property
    def length(self) -> Number:
        """From the first start to the last end."""
        return max(span.end for span in self.spans)

    @property
    def bubble(self) -> Fraction:
        """The share of all ranks' time in which they compute nothing."""
        busy = sum((Fraction(span.end) - Fraction(span.start) for span in self.spans), Fraction(0))
        return 1 - busy / (self.ranks * Fraction(self.length))

    def of(self, rank: int) -> tuple[ActionSpan, ...]:
        return tuple(span for span in self.spans if span.rank == rank)


def lay_out(schedule: Schedule, times: Times | None = None) -> PipelineTimeline:
    """When each action of a schedule runs; WorkbookError where it cannot be run to its end.

    >>> from .schedules import one_f_one_b
    >>> laid = lay_out(one_f_one_b(ranks=4, micro_batches=8))
    >>> laid.length, laid.bubble
    (33, Fraction(3, 11))
    """
    times = times or Times()
    _require_complete(schedule)
    ends: dict[Action, Number] = {}
    free: list[Number] = [0] * schedule.ranks
    at = [0] * schedule.ranks
    spans: list[list[ActionSpan]] = [[] for _ in range(schedule.ranks)]
    progress = True
    while progress:
        progress = False
        for rank, actions in enumerate(schedule.by_rank):
            while at[rank] < len(actions) and all(need in ends for need in schedule.needs(actions[at[rank]])):
                action = actions[at[rank]]
                arrivals = [_arrival(schedule, rank, need, ends, times) for need in schedule.needs(action)]
                start = max([free[rank], *arrivals])
                ends[action] = free[rank] = start + times.of(action.kind)
                spans[rank].append(ActionSpan(rank, action, start, free[rank]))
                at[rank] += 1
                progress = True
    if stuck := [(rank, at[rank]) for rank in range(schedule.ranks) if at[rank] < len(schedule.by_rank[rank])]:
        raise _deadlock(schedule, stuck, ends)
    return PipelineTimeline(tuple(span for row in spans for span in row), schedule.ranks)


def checked(schedule: Schedule) -> Schedule:
    """The schedule, if it can be run: all that a step needs is in it once, on its rank, and no rank waits for ever."""
    lay_out(schedule)
    return schedule


def bubble(schedule: Schedule, times: Times | None = None) -> Fraction:
    """The bubble by formula, for the four schedules of this package and without sending time.

    The idle time of a step is (p - 1) times what one micro-batch takes on one stage, forward and backward; divided by
    the virtual stages of a rank; less twice the weights' part under ZB-H1, which needs as many micro-batches as ranks
    and a weights' part that is no longer than either of the others. As a share of the whole step, that is
    (p - 1) / (m + p - 1) for GPipe and 1F1B with m micro-batches on p ranks.

    >>> from .schedules import gpipe, interleaved, zero_bubble
    >>> print(bubble(gpipe(4, 8)), bubble(interleaved(4, 8, virtual=2)), bubble(zero_bubble(4, 8)))
    3/11 3/19 1/9
    """
    times = times or Times()
    if times.send:
        raise WorkbookError(f"send is {times.send}", "0: the formula knows no travelling", "lay_out(schedule, times)")
    forward, of_input, of_weight = (Fraction(time) for time in (times.forward, times.input, times.weight))
    one, virtual = forward + of_input + of_weight, schedule.stages // schedule.ranks
    idle = one
    if schedule.splits_backward:
        if schedule.micro_batches < schedule.ranks or of_weight > min(forward, of_input):
            what = f"{schedule.micro_batches} micro-batches on {schedule.ranks} ranks, {times}"
            expected = "for ZB-H1 as many micro-batches as ranks, and weight no longer than forward and input"
            raise WorkbookError(what, expected, "lay_out(schedule, times).bubble")
        idle -= 2 * of_weight
    idle *= schedule.ranks - 1
    return idle / (schedule.micro_batches * virtual * one + idle)


def _arrival(schedule: Schedule, rank: int, need: Action, ends: dict[Action, Number], times: Times) -> Number:
    return ends[need] + (times.send if schedule.rank_of(need.stage) != rank else 0)


def _require_complete(schedule: Schedule) -> None:
    """Each micro-batch has on each stage one forward and one backward, in one piece or in two, on the stage's rank."""
    found = Counter(action for actions in schedule.by_rank for action in actions)
    for rank, actions in enumerate(schedule.by_rank):
        for action in actions:
            if (home := schedule.rank_of(action.stage)) != rank:
                raise _invalid(schedule, f"{action} on rank {rank}, and the stage is on {home}")
            if not (0 <= action.stage < schedule.stages and 0 <= action.micro_batch < schedule.micro_batches):
                raise _invalid(schedule, f"{action}, which is none of its stages and micro-batches")
    for stage in range(schedule.stages):
        for micro_batch in range(schedule.micro_batches):
            counts = tuple(found[Action(kind, stage, micro_batch)] for kind in Kind)
            if counts not in ((1, 1, 0, 0), (1, 0, 1, 1)):
                has = ", ".join(f"{count} {kind}" for count, kind in zip(counts, Kind, strict=True))
                raise _invalid(schedule, f"micro-batch {micro_batch} on stage {stage} with {has}")


def _deadlock(schedule: Schedule, stuck: list[tuple[int, int]], ends: dict[Action, Number]) -> WorkbookError:
    waits = []
    for rank, at in stuck:
        action = schedule.by_rank[rank][at]
        missing = next(need for need in schedule.needs(action) if need not in ends)
        waits.append(f"rank {rank} waits with {action} for {missing}, of rank {schedule.rank_of(missing.stage)}")
    return _invalid(schedule, "a deadlock: " + "; ".join(waits))


def _invalid(schedule: Schedule, what: str) -> WorkbookError:
    expected = "one F and one B (or one I and one W) of each micro-batch on each stage, after what they need"
    do = "take gpipe, one_f_one_b, interleaved or zero_bubble, or reorder the lists in by_rank"
    return WorkbookError(f"the schedule {schedule.name} has {what}", expected, do)


def _require_time(name: str, value: object) -> None:
    if not isinstance(value, Fraction) or value <= 0:
        require_number(name, value, below=float("inf"), expected="a time above 0", do=f"pass Times({name}=1)")
