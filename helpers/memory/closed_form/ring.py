"""What a collective costs on a ring: the bytes that each rank sends. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

# How many times a ring passes the payload along, each rank sending (N-1)/N of it per pass. Patarasuk and Yuan 2009;
# NCCL's own notes on performance count the same way. A broadcast or a reduce is a chain: all ranks but one send.
PASSES = {
    "all_reduce": 2,
    "all_gather": 1,
    "reduce_scatter": 1,
    "broadcast": 1,
    "reduce": 1,
    "all_to_all": 1,
    "gather": 1,
    "scatter": 1,
}


@dataclass(frozen=True)
class Collective:
    """One call: its kind, the whole buffer it is about, and the ranks that take part.

    >>> Collective("all_reduce", 1000, 4).sent_bytes
    1500
    """

    kind: str
    payload_bytes: int
    ranks: int

    @property
    def sent_bytes(self) -> int:
        """What each rank sends on average, rounded up: payload x passes x (N-1)/N; `send` sends all of it."""
        if self.kind == "send":
            return self.payload_bytes
        return -(-(self.payload_bytes * PASSES[self.kind] * (self.ranks - 1)) // self.ranks)


@dataclass(frozen=True)
class Traffic:
    """The collectives of a step, in order."""

    calls: tuple[Collective, ...]

    @property
    def payload_bytes(self) -> int:
        return sum(call.payload_bytes for call in self.calls)

    @property
    def sent_bytes(self) -> int:
        """What this rank sends; as much arrives."""
        return sum(call.sent_bytes for call in self.calls)

    def of(self, kind: str) -> Traffic:
        return Traffic(tuple(call for call in self.calls if call.kind == kind))

    @property
    def kinds(self) -> tuple[str, ...]:
        """In order of first use."""
        return tuple(dict.fromkeys(call.kind for call in self.calls))

    def passes(self, model_bytes: int) -> Fraction:
        """The payload in units of the model, all-reduces counted twice: 2 for DDP and ZeRO-1 and 2, 3 for ZeRO-3."""
        return Fraction(sum(PASSES.get(call.kind, 1) * call.payload_bytes for call in self.calls), model_bytes)
