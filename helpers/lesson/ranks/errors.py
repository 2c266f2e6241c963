"""What a failed call looks like to a reader: which rank, what happened to it, where it was."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Sequence

from ...catalog.errors import WorkbookError
from .outcomes import Died, Outcome, Raised, Running
from .places import tell

# Peers of a rank that failed see its connection close; that is not what went wrong.
_CONSEQUENCE = re.compile(
    r"closed by peer|reset by peer|Broken pipe|gloo/|NCCL|TCPStore|Timed out waiting", re.IGNORECASE
)
_FRESH_S = 1.0


class RankError(WorkbookError):
    """A call that did not return on every rank. `ranks` are those where it went wrong first.

    `alive` says whether the ranks are still there, with what they kept: only where every one of them raised the same
    error in the same place. Else all were ended, and the next call starts new ones.
    """

    def __init__(self, what: str, expected: str, do: str, ranks: tuple[int, ...], alive: bool = False) -> None:
        super().__init__(what, expected, do)
        self.ranks, self.alive = ranks, alive

    def _render_traceback_(self) -> list[str]:
        return [f"RankError: {self}"]


def judge(outcomes: Sequence[Outcome], name: str, timeout_s: float) -> RankError | None:
    """None where the function `name` returned on every rank, else the error that tells the cause.

    A death comes before an error, an error before a rank that did not answer; of several errors the first in time,
    closed connections left aside.
    """
    count = len(outcomes)
    died = {rank: one for rank, one in enumerate(outcomes) if isinstance(one, Died)}
    raised = {rank: one for rank, one in enumerate(outcomes) if isinstance(one, Raised)}
    if died:
        return _of_deaths(died, name, count)
    if raised:
        return _of_errors(raised, name, count)
    if any(isinstance(one, Running) for one in outcomes):
        return _of_a_hang(outcomes, name, timeout_s)
    return None


def _of_errors(raised: dict[int, Raised], name: str, count: int) -> RankError:
    own = {rank: one for rank, one in raised.items() if not _CONSEQUENCE.search(one.message)} or raised
    cause = min(own.values(), key=lambda one: one.seconds)
    same = tuple(rank for rank, one in own.items() if (one.kind, one.place) == (cause.kind, cause.place))
    alive = len(same) == count
    what = f"{_ranks(same, count)} raised {cause.kind}: {_short(cause.message)}"
    what += f"\n  at: {tell(cause.place)}" if cause.place else ""
    again = "the ranks and what they keep are still there; ranks.restart() starts new ones" if alive else _anew(count)
    return RankError(what, _expected(name, count), f"mend it and run the cell again: {again}", same, alive)


def _of_deaths(died: dict[int, Died], name: str, count: int) -> RankError:
    lines = [f"rank {rank} {_death(one.code)}\n  last seen at: {tell(one.place)}" for rank, one in died.items()]
    hint = ""
    if any(one.code == -signal.SIGKILL for one in died.values()):
        hint = "if nobody killed it, the system did, for want of memory: make it smaller; "
    do = f"{hint}run the cell again: {_anew(count)}"
    return RankError("\n".join(lines), _expected(name, count), do, tuple(died))


def _death(code: int | None) -> str:
    if code is None:
        return "is gone: its process or its machine no longer answers"
    if code < 0:
        name = next((one.name for one in signal.Signals if one == -code), f"signal {-code}")
        told = (signal.strsignal(-code) or "unknown").partition(":")[0]  # macOS appends its number
        return f"died of {name} ({told.lower()})"
    return f"ended its process with exit code {code}"


def _of_a_hang(outcomes: Sequence[Outcome], name: str, timeout_s: float) -> RankError:
    count = len(outcomes)
    stuck = tuple(rank for rank, one in enumerate(outcomes) if isinstance(one, Running))
    places: dict[str, list[int]] = {}
    for rank in stuck:
        places.setdefault(_where(outcomes[rank]), []).append(rank)
    lines = [f"{name} had not returned after {timeout_s:g} s on {_ranks(stuck, count)}"]
    lines += [f"  {_ranks(ranks, count)} at: {place}" for place, ranks in places.items()]
    if rest := [rank for rank in range(count) if rank not in stuck]:
        lines.append(f"  {_ranks(rest, count)} had returned")
    do = f"look for a collective that not all ranks call, or pass a longer timeout_s; run it again: {_anew(count)}"
    return RankError("\n".join(lines), _expected(name, count), do, stuck)


def _where(running: Running) -> str:
    old = running.place and running.age_s > _FRESH_S
    return tell(running.place) + (f" (seen {running.age_s:.0f} s before; no Python has run since)" if old else "")


def _expected(name: str, count: int) -> str:
    return f"{name} to return on " + ("the rank" if count == 1 else f"all {count} ranks")


def _anew(count: int) -> str:
    new = "a new rank starts by itself" if count == 1 else f"{count} new ranks start by themselves"
    return f"{new}; what was kept is lost"


def _ranks(ranks: Iterable[int], count: int) -> str:
    names = [str(rank) for rank in ranks]
    if len(names) == count > 1:
        return "every rank"
    return f"rank {names[0]}" if len(names) == 1 else f"ranks {', '.join(names[:-1])} and {names[-1]}"


def _short(message: str) -> str:
    """Without the frames of C++ that torch appends; a WorkbookError's three lines stay."""
    lines = message.split("\nException raised from")[0].splitlines() or [""]
    return "\n    ".join(lines[:6])
