"""Memory beside the GPU's own: a host's DRAM, disks, networks. Each figure has its kind, source and date."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from .devices import Figure
from .errors import WorkbookError, require_entry, require_name

TierKind = Literal["dram", "nvme", "network"]
# What an entry of each kind states, and in which unit and direction. `rate` serves reads and writes.
STATED = {
    "dram": {"capacity": ("bytes", ""), "rate": ("bytes/s", "reads and writes together")},
    "nvme": {"capacity": ("bytes", ""), "read": ("bytes/s", "reads"), "write": ("bytes/s", "writes")},
    "network": {"rate": ("bytes/s", "per direction")},
}

_DATA = Path(__file__).parent / "data" / "tiers.json"
_DO = "correct the entry in helpers/catalog/data/tiers.json"


@dataclass(frozen=True)
class Tier:
    """One memory beside the GPU's: a machine's DRAM, a disk or a striped set of them, a network.

    `capacity` is of the whole machine or set, None for a network. Rates are peaks, and of the memory alone: a GPU
    behind a slower link gets no more than the link carries. "nvme" is any disk, as DeepSpeed calls it, one on SATA too.
    `read` and `write` of DRAM are one figure, which reads and writes share; a network has its figure in each direction.

    >>> tier("990-pro").read_bytes_per_s, tier("dgx-h100-dram").write_bytes_per_s
    (7450000000, 614400000000)
    """

    name: str
    title: str
    kind: TierKind
    capacity: Figure | None
    read: Figure
    write: Figure
    aliases: tuple[str, ...] = ()

    def __repr__(self) -> str:
        holds = f", {self.capacity.number / 2**30:,.0f} GiB" if self.capacity else ""
        return f"<{self.name}: {self.title}{holds}>"

    @property
    def capacity_bytes(self) -> int:
        if self.capacity is None:
            expected, do = "a tier that holds bytes: DRAM or a disk", "name one, as 'dgx-h100-dram'"
            raise WorkbookError(f"{self.title} has no capacity: a network only carries", expected, do)
        return self.capacity.number

    @property
    def read_bytes_per_s(self) -> int:
        """Bytes from this tier per second; of DRAM the total, which writes at the same time take their part of."""
        return self.read.number

    @property
    def write_bytes_per_s(self) -> int:
        """Bytes to this tier per second; of DRAM the same total as `read_bytes_per_s`, not another beside it."""
        return self.write.number

    def figures(self) -> tuple[Figure, ...]:
        """Every figure once, for a table of sources."""
        return tuple(dict.fromkeys(figure for figure in (self.capacity, self.read, self.write) if figure))


def tier(name: str | Tier) -> Tier:
    """The catalogue's tier by name or alias, in any case; WorkbookError with the nearest match otherwise.

    >>> tier("100GbE").title
    '100 Gigabit Ethernet'
    """
    return name if isinstance(name, Tier) else require_entry("tier", name, TIERS)


def build_tier(name: str, entry: Mapping[str, Any]) -> Tier:
    """A Tier from an entry of data/tiers.json; WorkbookError names the figure that is missing, or lacks provenance."""
    kind = require_name(f"kind of {name}", entry["kind"], STATED)
    stated, raw = STATED[kind], entry["figures"]
    for key in raw:
        require_name(f"figure of {name}, a tier of kind {kind},", key, stated)
    for key in stated:
        if key not in raw:
            raise WorkbookError(f"{name} has no figure {key}", f"{', '.join(stated)} for a tier of kind {kind}", _DO)
    figures = {key: _figure(f"{name}: the figure {key}", raw[key], *stated[key]) for key in stated}
    rate = figures.get("rate")
    return Tier(
        name,
        entry["title"],
        kind=entry["kind"],
        capacity=figures.get("capacity"),
        read=rate or figures["read"],
        write=rate or figures["write"],
        aliases=tuple(entry["aliases"]),
    )


def _figure(what: str, raw: Mapping[str, Any], unit: str, direction: str) -> Figure:
    try:
        figure = Figure(**raw)
    except TypeError as problem:
        expected = "value, unit, kind, source and date (and a direction for bytes/s)"
        raise WorkbookError(f"{what} cannot be built ({problem})", expected, _DO) from None
    if (figure.unit, figure.direction) != (unit, direction):
        told, expected = (" ".join(pair).strip() for pair in ((figure.unit, figure.direction), (unit, direction)))
        raise WorkbookError(f"{what} is in {told}", expected, _DO)
    return figure


@cache
def _load() -> Mapping[str, Tier]:
    entries = json.loads(_DATA.read_text(encoding="utf-8"))["tiers"]
    return MappingProxyType({name: build_tier(name, entry) for name, entry in entries.items()})


TIERS: Mapping[str, Tier] = _load()
