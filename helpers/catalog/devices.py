"""GPUs, each figure with its kind, source and date; an entry without them cannot be built."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType

from .errors import WorkbookError, unknown_name

KINDS = ("datasheet", "paper", "measured", "convention")
BOTH_WAYS = "both directions"
DIRECTIONS = (BOTH_WAYS, "per direction", "reads and writes together")

_DATA = Path(__file__).parent / "data" / "devices.json"
_DATE = re.compile(r"\d{4}(-\d{2}(-\d{2})?)?")


@dataclass(frozen=True)
class Figure:
    """A value with its unit and provenance; a bandwidth also says in which direction. Else WorkbookError.

    `kind` is datasheet, paper, measured or convention; `date` is YYYY, YYYY-MM or YYYY-MM-DD.
    """

    value: int | str
    unit: str
    kind: str
    source: str
    date: str
    direction: str = ""

    def __post_init__(self) -> None:
        self._require(isinstance(self.unit, str) and bool(self.unit), "unit", "bytes, bytes/s, FLOP/s …")
        self._require(self.kind in KINDS, "kind", ", ".join(KINDS))
        self._require(
            isinstance(self.source, str) and len(self.source.strip()) > 3,
            "source",
            "where the figure is from",
        )
        self._require(isinstance(self.date, str) and bool(_DATE.fullmatch(self.date)), "date", "YYYY[-MM[-DD]]")
        counted = type(self.value) is int and self.value > 0
        self._require(counted or self.unit in ("type", "class"), "value", "a whole number above 0")
        wants = self.unit == "bytes/s"
        self._require(
            (self.direction in DIRECTIONS) if wants else not self.direction,
            "direction",
            " | ".join(DIRECTIONS) if wants else f"nothing: {self.unit} has no direction",
        )

    def _require(self, true: bool, part: str, expected: str) -> None:
        if not true:
            raise WorkbookError(
                f"a figure has {part}={getattr(self, part)!r} (value {self.value!r} {self.unit!r})",
                f"{part}: {expected}",
                "look the figure up, and write down where",
            )


@dataclass(frozen=True)
class Device:
    """A GPU. Only `capacity` is always known; a live GPU outside the catalogue has None or nothing else.

    `capacity` is the total that PyTorch reports: the H100's "80 GB" are 79.22 GiB. Rates are dense, never
    sparse. `cuda_names` are the names under which PyTorch reports the GPU.

    >>> device("h100").memory_bytes_per_s, device("h100").link_bytes_per_s("nvlink")
    (3350000000000, 450000000000)
    """

    name: str
    title: str
    capacity: Figure
    memory_type: Figure | None = None
    memory_bandwidth: Figure | None = None
    l2: Figure | None = None
    price_class: Figure | None = None
    peak_flops: Mapping[str, Figure] = field(default_factory=dict, hash=False)
    links: Mapping[str, Figure] = field(default_factory=dict, hash=False)
    aliases: tuple[str, ...] = ()
    cuda_names: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<{self.name}: {self.title}, {self.capacity_bytes / 2**30:.2f} GiB>"

    @property
    def capacity_bytes(self) -> int:
        return self.capacity.value

    @property
    def memory_bytes_per_s(self) -> int:
        """Bytes read or written from device memory per second, together."""
        return self._known(self.memory_bandwidth, "memory bandwidth").value

    @property
    def l2_bytes(self) -> int:
        return self._known(self.l2, "L2 size").value

    def flops_per_s(self, number_format: str) -> int:
        """Dense peak of the matrix units in `number_format`; an error where it has none, as T4 for bf16."""
        if number_format not in self.peak_flops:
            raise unknown_name(f"rate of {self.name} for number format", number_format, self.peak_flops)
        return self.peak_flops[number_format].value

    def link_bytes_per_s(self, link: str) -> int:
        """Bytes per second in ONE direction over "pcie" or "nvlink"; datasheets add both directions up."""
        if link not in self.links:
            raise unknown_name(f"link of {self.name}", link, self.links)
        figure = self.links[link]
        return figure.value // 2 if figure.direction == BOTH_WAYS else figure.value

    def figures(self) -> tuple[Figure, ...]:
        """Every figure, for a table of sources."""
        single = (self.capacity, self.memory_type, self.memory_bandwidth, self.l2, self.price_class)
        return (*(f for f in single if f), *self.peak_flops.values(), *self.links.values())

    def _known(self, figure: Figure | None, what: str) -> Figure:
        if figure is None:
            raise WorkbookError(
                f"the {what} of {self.title} is not in the catalogue",
                ", ".join(DEVICES),
                "measure it, or pass one of these devices by name",
            )
        return figure


def device(name: str | Device) -> Device:
    """The catalogue's device by name or alias, in any case; WorkbookError with the nearest match otherwise.

    >>> device("H100").title
    'NVIDIA H100 SXM 80 GB'
    """
    if isinstance(name, Device):
        return name
    wanted = name.strip().lower() if isinstance(name, str) else None
    for entry in DEVICES.values():
        if wanted == entry.name or wanted in entry.aliases:
            return entry
    raise unknown_name("device", name, [n for entry in DEVICES.values() for n in (entry.name, *entry.aliases)])


def build_device(name: str, entry: Mapping[str, object]) -> Device:
    """A Device from an entry of data/devices.json; WorkbookError names the figure that lacks provenance."""
    raw = dict(entry["figures"])
    groups = {
        group: {key: _figure(name, f"{group}.{key}", figure) for key, figure in raw.pop(group, {}).items()}
        for group in ("peak_flops", "links")
    }
    single = {key: _figure(name, key, figure) for key, figure in raw.items()}
    aliases, cuda_names = tuple(entry["aliases"]), tuple(entry["cuda_names"])
    return Device(name, entry["title"], aliases=aliases, cuda_names=cuda_names, **single, **groups)


def _figure(owner: str, key: str, raw: Mapping[str, object]) -> Figure:
    try:
        return Figure(**raw)
    except TypeError as problem:
        raise WorkbookError(
            f"{owner}: the figure {key} cannot be built ({problem})",
            "value, unit, kind, source and date (and a direction for bytes/s)",
            "complete the entry in helpers/catalog/data/devices.json",
        ) from None


@cache
def _load() -> Mapping[str, Device]:
    entries = json.loads(_DATA.read_text(encoding="utf-8"))["devices"]
    return MappingProxyType({name: build_device(name, entry) for name, entry in entries.items()})


DEVICES: Mapping[str, Device] = _load()
