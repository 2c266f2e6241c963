"""How a call ended on each rank, and the error that says which rank failed first, how, and at which line."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ...catalog.errors import WorkbookError
from .recorder import Location, format_location

# What the other ranks raise when a rank fails and its connections close: an effect, not the cause.
_CONNECTION_LOST = re.compile(
    r"closed by peer|reset by peer|Broken pipe|gloo/|NCCL|TCPStore|Timed out waiting", re.IGNORECASE
)
_RECENT_S = 1.0


@dataclass(frozen=True)
class Returned:
    """The function returned `value`; `printed` is what it wrote to standard output."""

    value: object
    printed: str


@dataclass(frozen=True)
class Raised:
    """The function raised an error of type `kind`, at `seconds` of the rank's clock."""

    kind: str
    message: str
    location: Location
    seconds: float
    printed: str = ""


@dataclass(frozen=True)
class Died:
    """The process is gone: `code` is its exit code, minus the signal that killed it, or None where it is unknown."""

    code: int | None
    location: Location


@dataclass(frozen=True)
class Running:
    """No answer in time; it was at `location` when seen last, `age_s` seconds ago."""

    location: Location
    age_s: float


Outcome = Returned | Raised | Died | Running


class RankError(WorkbookError):
    """A call that did not return on every rank. `ranks` are those where it went wrong first.

    `alive` says whether the ranks are still there, with what they kept: only where every one of them raised the same
    error in the same place. Else all were ended, and the next call starts new ones.
    """

    def __init__(self, what: str, expected: str, do: str, ranks: tuple[int, ...], alive: bool = False) -> None:
        super().__init__(what, expected, do)
        self.ranks, self.alive = ranks, alive


def rank_error(outcomes: Sequence[Outcome], name: str, timeout_s: float) -> RankError | None:
    """The error that names the cause; None where the function `name` returned on every rank.

    A death comes before an error, an error before a rank that did not answer; of several errors the first in time,
    lost connections left aside.
    """
    count = len(outcomes)
    died = {rank: outcome for rank, outcome in enumerate(outcomes) if isinstance(outcome, Died)}
    raised = {rank: outcome for rank, outcome in enumerate(outcomes) if isinstance(outcome, Raised)}
    running = {rank: outcome for rank, outcome in enumerate(outcomes) if isinstance(outcome, Running)}
    if died:
        return _of_deaths(died, name, count)
    if raised:
        return _of_errors(raised, name, count)
    return _of_a_hang(running, name, count, timeout_s) if running else None


def _of_errors(raised: dict[int, Raised], name: str, count: int) -> RankError:
    own = {rank: error for rank, error in raised.items() if not _CONNECTION_LOST.search(error.message)} or raised
    cause = min(own.values(), key=lambda error: error.seconds)
    same = tuple(rank for rank, error in own.items() if (error.kind, error.location) == (cause.kind, cause.location))
    alive = len(same) == count
    what = f"{_ranks(same, count)} raised {cause.kind}: {_short(cause.message)}"
    what += f"\n  at: {format_location(cause.location)}" if cause.location else ""
    again = "the ranks and what they keep are still there; ranks.restart() starts new ones" if alive else _anew(count)
    return RankError(what, _expected(name, count), f"mend it and run the cell again: {again}", same, alive)


def _of_deaths(died: dict[int, Died], name: str, count: int) -> RankError:
    lines = [
        f"rank {rank} {_cause_of_death(death.code)}\n  last seen at: {format_location(death.location)}"
        for rank, death in died.items()
    ]
    killed = any(death.code == -signal.SIGKILL for death in died.values())
    hint = "if nobody killed it, the system did, for want of memory: make it smaller; " if killed else ""
    do = f"{hint}run the cell again: {_anew(count)}"
    return RankError("\n".join(lines), _expected(name, count), do, tuple(died))


def _cause_of_death(code: int | None) -> str:
    if code is None:
        return "is gone: its process or its machine no longer answers"
    if code < 0:
        name = next((known.name for known in signal.Signals if known == -code), f"signal {-code}")
        meaning = (signal.strsignal(-code) or "unknown").partition(":")[0]  # macOS appends its number
        return f"died of {name} ({meaning.lower()})"
    return f"ended its process with exit code {code}"


def _of_a_hang(running: dict[int, Running], name: str, count: int, timeout_s: float) -> RankError:
    stuck: dict[str, list[int]] = {}
    for rank, outcome in running.items():
        stuck.setdefault(_last_seen(outcome), []).append(rank)
    lines = [f"{name} had not returned after {timeout_s:g} s on {_ranks(running, count)}"]
    lines += [f"  {_ranks(ranks, count)} at: {location}" for location, ranks in stuck.items()]
    if rest := [rank for rank in range(count) if rank not in running]:
        lines.append(f"  {_ranks(rest, count)} had returned")
    do = f"look for a collective that not all ranks call, or pass a longer timeout_s; run it again: {_anew(count)}"
    return RankError("\n".join(lines), _expected(name, count), do, tuple(running))


def _last_seen(running: Running) -> str:
    old = running.location and running.age_s > _RECENT_S
    age = f" (seen {running.age_s:.0f} s before; no Python has run since)" if old else ""
    return format_location(running.location) + age


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
    """Without the C++ frames that torch appends; a WorkbookError's three lines stay."""
    lines = message.split("\nException raised from")[0].splitlines() or [""]
    return "\n    ".join(lines[:6])
