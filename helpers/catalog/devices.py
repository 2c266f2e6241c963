"""GPUs, each figure with its kind, source and date; an entry without them cannot be built."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType

from .errors import WorkbookError, unknown_name

KINDS = ("datasheet", "paper", "measured", "convention")
BOTH_WAYS = "both directions"
DIRECTIONS = (BOTH_WAYS, "per direction", "reads and writes together", "reads")
ON_CHIP = ("registers", "l1", "l2", "l3")  # nearest to the arithmetic first
SINGLE = ("memory_type", "capacity", "memory_bandwidth", "units", "price_class")
GROUPS = ("sizes", "bandwidths", "peak_flops", "links")

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
class Level:
    """A level of the memory hierarchy over the whole device; `bytes_per_s` is None where no source gives it."""

    name: str
    size_bytes: int
    bytes_per_s: int | None = None


@dataclass(frozen=True)
class Device:
    """A GPU. Only `capacity` is always known; a live GPU outside the catalogue has None or nothing else.

    `capacity` is the total that PyTorch reports: the H100's "80 GB" are 79.22 GiB. Rates are dense, never
    sparse. `units` are streaming multiprocessors, compute units or GPU cores; `sizes` and `bandwidths` are of
    all of them together. `unified`: the CPU uses the same memory, so there is no link to a host. `cuda_names`
    are the names under which PyTorch reports the GPU.

    >>> device("h100").memory_bytes_per_s, device("h100").link_bytes_per_s("nvlink")
    (3350000000000, 450000000000)
    """

    name: str
    title: str
    capacity: Figure
    memory_type: Figure | None = None
    memory_bandwidth: Figure | None = None
    price_class: Figure | None = None
    units: Figure | None = None
    sizes: Mapping[str, Figure] = field(default_factory=dict, hash=False)
    bandwidths: Mapping[str, Figure] = field(default_factory=dict, hash=False)
    peak_flops: Mapping[str, Figure] = field(default_factory=dict, hash=False)
    links: Mapping[str, Figure] = field(default_factory=dict, hash=False)
    unified: bool = False
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
        return self._known(self.sizes.get("l2"), "L2 size").value

    def levels(self) -> tuple[Level, ...]:
        """The levels whose size is known, nearest to the arithmetic first; the last is the device's memory.

        >>> [(level.name, level.size_bytes // 2**20) for level in device("h100").levels()]
        [('registers', 33), ('l1', 33), ('l2', 50), ('memory', 81121)]
        """
        on_chip = [
            Level(name, self.sizes[name].value, _value(self.bandwidths.get(name)))
            for name in ON_CHIP
            if name in self.sizes
        ]
        return (*on_chip, Level("memory", self.capacity_bytes, _value(self.memory_bandwidth)))

    def flops_per_s(self, number_format: str) -> int:
        """Dense peak of the matrix units in `number_format`; an error where it has none, as T4 for bf16."""
        return self._pick("peak_flops", "rate", f"rate of {self.name} for number format", number_format).value

    def link_bytes_per_s(self, link: str) -> int:
        """Bytes per second in ONE direction over "pcie", "nvlink" or "infinity-fabric"; datasheets add both up."""
        if self.unified:
            raise WorkbookError(
                f"{self.title} has no link {link!r}: CPU and GPU share one memory",
                "a GPU with memory of its own",
                "name a GPU with a link, or take `memory_bytes_per_s`, which both processors share",
            )
        figure = self._pick("links", "link speed", f"link of {self.name}", link)
        return figure.value // 2 if figure.direction == BOTH_WAYS else figure.value

    def figures(self) -> tuple[Figure, ...]:
        """Every figure, for a table of sources."""
        single = (getattr(self, name) for name in SINGLE)
        grouped = (figure for group in GROUPS for figure in getattr(self, group).values())
        return (*(figure for figure in single if figure), *grouped)

    def _pick(self, group: str, what: str, kind: str, name: str) -> Figure:
        figures = getattr(self, group)
        if name in figures:
            return figures[name]
        if not figures:
            return self._known(None, what)
        raise unknown_name(kind, name, figures)

    def _known(self, figure: Figure | None, what: str) -> Figure:
        if figure is None:
            raise WorkbookError(
                f"the {what} of {self.title} is not in the catalogue",
                f"a device whose {what} is known",
                "measure it, or name another device, as 'h100'",
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
    raw = entry["figures"]
    _refuse_others(f"figure of {name}", raw, (*SINGLE, *GROUPS))
    for group in ("sizes", "bandwidths"):
        _refuse_others(f"level in {group} of {name}", raw.get(group, {}), ON_CHIP)
    groups = {
        group: {key: _figure(name, f"{group}.{key}", figure) for key, figure in raw.get(group, {}).items()}
        for group in GROUPS
    }
    single = {key: _figure(name, key, raw[key]) for key in SINGLE if key in raw}
    aliases, cuda_names = tuple(entry["aliases"]), tuple(entry["cuda_names"])
    unified = entry.get("unified", False)
    return Device(name, entry["title"], unified=unified, aliases=aliases, cuda_names=cuda_names, **single, **groups)


def _refuse_others(kind: str, given: Iterable[str], allowed: tuple[str, ...]) -> None:
    for name in given:
        if name not in allowed:
            raise unknown_name(kind, name, allowed)


def _value(figure: Figure | None) -> int | None:
    return figure.value if figure else None


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
