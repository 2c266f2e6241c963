"""How a call ended on one rank: what a rank sends back, and what the driver sees of a rank that sends nothing."""

from __future__ import annotations

from dataclasses import dataclass

from .places import Place


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
    place: Place
    seconds: float
    printed: str = ""


@dataclass(frozen=True)
class Died:
    """The process is gone: `code` is its exit code, minus the signal that killed it, or None where nobody knows."""

    code: int | None
    place: Place


@dataclass(frozen=True)
class Running:
    """No answer in time; it was at `place`, seen `age_s` seconds ago."""

    place: Place
    age_s: float


Outcome = Returned | Raised | Died | Running
