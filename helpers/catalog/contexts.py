"""What a process takes of a card outside PyTorch's allocator, by messages of real runs: the CUDA context. No torch.

context(device("rtx-4090"))                # Context(size_bytes=562036736, basis=Basis.CARD, …): 536 MiB
context(device("rtx-4070-12gb")).basis     # Basis.GENERATION: nobody published one of this card
context(device("m4-32gb")).size_bytes      # a third of its memory: macOS keeps that much of it from the GPU

`data/contexts.json` has the messages. The context grows with the multiprocessors, for each of which the driver keeps
room, and with the kernels that were loaded: 64 MiB and so much per multiprocessor as was seen at most on a card of the
same generation. So no figure of a card's own is above what is said of it. Of 25 more messages, of which no card was
named or no repository known, none was above it by more than its rounding either.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from math import ceil
from pathlib import Path
from typing import Any

from .devices import DEVICES, Device
from .errors import WorkbookError

MIB, GIB = 2**20, 2**30
FIXED_MIB = 64  # whatever the card: the line through a T4 of 40 multiprocessors and a 2080 Ti of 68
ROUNDING_MIB = 15  # three figures that are printed to 0.01 GiB
UNITS = {"MiB": MIB, "GiB": GIB}
_DATA = Path(__file__).parent / "data" / "contexts.json"


class Basis(Enum):
    """What a figure rests on."""

    CARD = "processes on this card"
    GENERATION = "processes on other cards of its generation"
    OTHERS = "processes on other cards: none of its kind is known"
    SYSTEM = "the system's limit on what a GPU may use of the memory that both share"


@dataclass(frozen=True)
class Context:
    """What is kept of a card for one process, at most, and where that is from."""

    size_bytes: int
    basis: Basis
    source: str


@dataclass(frozen=True)
class SeenContext:
    """A process that was seen: what it held of `card`, less what PyTorch had allocated and cached; to 10 MiB."""

    card: Device
    size_bytes: int
    source: str
    date: str

    @property
    def unit_mib(self) -> float:
        """MiB per multiprocessor beside the fixed part; 0 of a card whose multiprocessors are not known."""
        units = self.card.units.number if self.card.units else 0
        return (self.size_bytes / MIB - FIXED_MIB) / units if units else 0.0


def context(card: Device) -> Context:
    """The context of one process on `card`, the most that the published messages give it, in whole MiB.

    >>> from .devices import device
    >>> [context(device(name)).size_bytes // MIB for name in ("t4", "rtx-3090", "a100", "h100", "m4-32gb")]
    [158, 329, 519, 794, 10923]
    """
    if card.vendor == "apple":
        return _working_set(card)
    kin = [one for one in seen() if _generation(one.card) == _generation(card)]
    own = [one for one in kin if one.card.name == card.name]
    if not kin:
        return _most(seen(), Basis.OTHERS)
    if card.units is None:
        return _most(own, Basis.CARD) if own else _most(kin, Basis.GENERATION)
    highest = max(kin, key=lambda one: one.unit_mib)
    mib = ceil(FIXED_MIB + highest.unit_mib * card.units.number + ROUNDING_MIB - 1e-6)
    basis, told = (Basis.CARD, max(own, key=_size_of)) if own else (Basis.GENERATION, highest)
    return Context(mib * MIB, basis, told.source)


@cache
def seen() -> tuple[SeenContext, ...]:
    """Every process of the data. WorkbookError for one without a source or a date, or of no card here."""
    return tuple(_seen(row) for row in _read()["rows"])


def _seen(row: Mapping[str, str]) -> SeenContext:
    if not (row.get("source") and row.get("date") and row.get("card") in DEVICES):
        what = f"a context {row!r:.120}"
        raise WorkbookError(what, "a card of the catalogue, a source and a date", "complete it in data/contexts.json")
    pytorch = sum(_size(row[part]) for part in ("allocated", "cached") if part in row)
    return SeenContext(DEVICES[row["card"]], _size(row["held"]) - pytorch, row["source"], row["date"])


def _most(rows: list[SeenContext] | tuple[SeenContext, ...], basis: Basis) -> Context:
    largest = max(rows, key=_size_of)
    return Context(ceil(largest.size_bytes / MIB + ROUNDING_MIB) * MIB, basis, largest.source)


def _size_of(one: SeenContext) -> int:
    return one.size_bytes


def _working_set(card: Device) -> Context:
    """Metal recommends a working set of two thirds of up to 32 GiB, and of three quarters of more; the rest is kept."""
    rows: list[dict[str, Any]] = _read()["working_sets"]
    row = next((row for row in rows if card.capacity_bytes <= row["to_gib"] * GIB), rows[-1])
    return Context(ceil(card.capacity_bytes / row["kept_of"] / MIB) * MIB, Basis.SYSTEM, row["source"])


def _generation(card: Device) -> object:
    """Cards that run the same kernels: of CUDA by capability, of AMD the Instincts and the Radeons.

    A capability of which nothing was seen counts as the newest before it, or as the oldest.
    """
    if card.capability is None:
        return (card.vendor, card.name.startswith("mi")) if card.vendor == "amd" else card.vendor
    known = _capabilities()
    return max((one for one in known if one <= card.capability), default=known[0])


@cache
def _capabilities() -> tuple[tuple[int, int], ...]:
    rows = {DEVICES[row["card"]].capability for row in _read()["rows"]}
    return tuple(sorted(one for one in rows if one))


def _size(text: str) -> int:
    """Bytes of "13.86 GiB"."""
    number, unit = text.split()
    return round(float(number) * UNITS[unit])


@cache
def _read() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(_DATA.read_text(encoding="utf-8"))
    return found
