"""GPUs, each figure with its kind, source and date; an entry without them cannot be built. `detect` imports torch."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from types import MappingProxyType
from typing import Any, Literal, get_args

from . import device_names
from .device_entries import entries
from .errors import WorkbookError, require_name

Vendor = Literal["nvidia", "amd", "apple", "intel"]
KINDS = ("datasheet", "paper", "measured", "convention")
BOTH_WAYS = "both directions"
DIRECTIONS = (BOTH_WAYS, "per direction", "reads and writes together", "reads", "writes")
ON_CHIP = ("registers", "l1", "l2", "l3")  # nearest to the arithmetic first
SINGLE = ("compute_capability", "memory_type", "capacity", "memory_bandwidth", "units", "price_class")
GROUPS = ("sizes", "bandwidths", "peak_flops", "links")

_DATE = re.compile(r"\d{4}(-\d{2}(-\d{2})?)?")
_VERSION = re.compile(r"\d{1,2}\.\d")
_SIZE = re.compile(r"(?i)(\d{1,6}(?:\.\d{1,3})?) ?(gib|gb|g)")
LEAST_CARD_BYTES, MOST_CARD_BYTES = 2**28, 2**44
SAME_CARD = 0.10  # a vGPU or a partition may carry the name of the whole card: its rates would not be the card's


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
        has_direction = self.unit == "bytes/s"
        directions = " | ".join(DIRECTIONS) if has_direction else f"nothing: {self.unit} has no direction"
        parts = (
            ("unit", _is_text(self.unit), "bytes, bytes/s, FLOP/s …"),
            ("kind", self.kind in KINDS, ", ".join(KINDS)),
            ("source", _is_text(self.source) and len(self.source.strip()) > 3, "where the figure is from"),
            ("date", _is_text(self.date) and _DATE.fullmatch(self.date), "YYYY[-MM[-DD]]"),
            ("value", self._value_fits(), "major.minor" if self.unit == "version" else "a whole number above 0"),
            ("direction", self.direction in DIRECTIONS if has_direction else not self.direction, directions),
        )
        for part, fits, expected in parts:
            if not fits:
                what = f"a figure has {part}={getattr(self, part)!r} (value {self.value!r} {self.unit!r})"
                raise WorkbookError(what, f"{part}: {expected}", "look the figure up, and write down where")

    @property
    def number(self) -> int:
        """The value of a figure that counts something; a type, a class and a version are text."""
        if not isinstance(self.value, int):
            raise TypeError(f"{self.value!r} {self.unit} is no number")
        return self.value

    def _value_fits(self) -> bool:
        if isinstance(self.value, str):
            return self.unit in ("type", "class") or (self.unit == "version" and bool(_VERSION.fullmatch(self.value)))
        return type(self.value) is int and self.value > 0 and self.unit != "version"


@dataclass(frozen=True)
class MemoryLevel:
    """A level of the memory hierarchy over the whole device; `bytes_per_s` is None where no source gives it."""

    name: str
    size_bytes: int
    bytes_per_s: int | None = None


@dataclass(frozen=True)
class Device:
    """A GPU. Only `capacity` is always known; a live GPU outside the catalogue has None or nothing else.

    `capacity` is the total that PyTorch reports: the H100's "80 GB" are 79.22 GiB. Rates are dense, never
    sparse. `units` are streaming multiprocessors, compute units or GPU cores; `sizes` and `bandwidths` are of
    all of them together. `unified`: the CPU uses the same memory, so there is no link to a host; `memories` are the
    sizes in GB with which it was sold, the catalogue's the largest. `cuda_names` are the names under which PyTorch
    reports the GPU. `compute_capability` is that of CUDA's GPUs, None for others.

    >>> device("h100").memory_bytes_per_s, device("h100").link_bytes_per_s("nvlink")
    (3350000000000, 450000000000)
    """

    name: str
    title: str
    capacity: Figure
    vendor: Vendor | None = None
    compute_capability: Figure | None = None
    memory_type: Figure | None = None
    memory_bandwidth: Figure | None = None
    price_class: Figure | None = None
    units: Figure | None = None
    sizes: Mapping[str, Figure] = field(default_factory=dict, hash=False)
    bandwidths: Mapping[str, Figure] = field(default_factory=dict, hash=False)
    peak_flops: Mapping[str, Figure] = field(default_factory=dict, hash=False)
    links: Mapping[str, Figure] = field(default_factory=dict, hash=False)
    unified: bool = False
    memories: tuple[int, ...] = ()
    aliases: tuple[str, ...] = ()
    cuda_names: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<{self.name}: {self.title}, {self.capacity_bytes / 2**30:.2f} GiB>"

    @property
    def capacity_bytes(self) -> int:
        return self.capacity.number

    @property
    def capability(self) -> tuple[int, int] | None:
        """CUDA's compute capability as (major, minor): (9, 0) of an H100. None without CUDA, or where it is unknown."""
        if self.compute_capability is None:
            return None
        major, minor = str(self.compute_capability.value).split(".")
        return int(major), int(minor)

    @property
    def memory_bytes_per_s(self) -> int:
        """Bytes read or written from device memory per second, together."""
        return self._known(self.memory_bandwidth, "memory bandwidth").number

    def levels(self) -> tuple[MemoryLevel, ...]:
        """The levels whose size is known, nearest to the arithmetic first; the last is the device's memory.

        >>> [(level.name, level.size_bytes // 2**20) for level in device("h100").levels()]
        [('registers', 33), ('l1', 33), ('l2', 50), ('memory', 81121)]
        """
        on_chip = [
            MemoryLevel(name, self.sizes[name].number, _number(self.bandwidths.get(name)))
            for name in ON_CHIP
            if name in self.sizes
        ]
        return (*on_chip, MemoryLevel("memory", self.capacity_bytes, _number(self.memory_bandwidth)))

    def flops_per_s(self, number_format: str) -> int:
        """Dense peak of the matrix units in `number_format`; an error where it has none, as T4 for bf16."""
        return self._pick("peak_flops", "rate", f"rate of {self.name} for number format", number_format).number

    def link_bytes_per_s(self, link: str) -> int:
        """Bytes per second in ONE direction over "pcie", "nvlink" or "infinity-fabric"; datasheets add both up."""
        if self.unified:
            expected = "a GPU with memory of its own"
            do = "name a GPU with a link, or take `memory_bytes_per_s`, which both processors share"
            raise WorkbookError(f"{self.title} has no link {link!r}: CPU and GPU share one memory", expected, do)
        figure = self._pick("links", "link speed", f"link of {self.name}", link)
        return figure.number // 2 if figure.direction == BOTH_WAYS else figure.number

    def figures(self) -> tuple[Figure, ...]:
        """Every figure, for a table of sources."""
        single = (getattr(self, name) for name in SINGLE)
        grouped = (figure for group in GROUPS for figure in getattr(self, group).values())
        return (*(figure for figure in single if figure), *grouped)

    def _pick(self, group: str, what: str, kind: str, name: str) -> Figure:
        figures = getattr(self, group)
        return figures[require_name(kind, name, figures)] if figures else self._known(None, what)

    def _known(self, figure: Figure | None, what: str) -> Figure:
        if figure is None:
            expected, do = f"a device whose {what} is known", "measure it, or name another device, as 'h100'"
            raise WorkbookError(f"the {what} of {self.title} is not in the catalogue", expected, do)
        return figure


def device(name: str | Device) -> Device:
    """The catalogue's device by name or alias, as people spell them; WorkbookError with the nearest match otherwise.

    A size is a device, too: of "12GiB" or "24GB" nothing else is known, and it counts as one of CUDA, as an A100 is.

    >>> device("H100").title, device("RTX 4090").name, device("m3 max 64gb").capacity_bytes // 2**30
    ('NVIDIA H100 SXM 80 GB', 'rtx-4090-24gb', 64)
    >>> device("12GiB").title
    'card of 12 GiB'
    """
    if isinstance(name, Device):
        return name
    size = _SIZE.fullmatch(name.strip().replace(",", ".")) if isinstance(name, str) else None
    if size:
        return _of_size(size)
    found, memory = device_names.find(name, DEVICES)
    return _with_memory(DEVICES[found], memory) if memory else DEVICES[found]


def _with_memory(entry: Device, gb: int) -> Device:
    """The same chip as it was sold with less memory."""
    largest = f"{entry.capacity_bytes // 2**30}"
    return replace(
        entry,
        name=entry.name.replace(f"{largest}gb", f"{gb}gb"),
        title=entry.title.replace(f"{largest} GB", f"{gb} GB"),
        capacity=replace(entry.capacity, value=gb * 2**30),
    )


def _of_size(size: re.Match[str]) -> Device:
    number, unit = size[1], {"g": "GiB", "gib": "GiB", "gb": "GB"}[size[2].lower()]
    capacity = round(float(number) * (2**30 if unit == "GiB" else 10**9))
    if not LEAST_CARD_BYTES <= capacity <= MOST_CARD_BYTES:
        do = "write the card's memory, as 12GiB"
        raise WorkbookError(f"a card of {number} {unit}", "256 MiB to 16 TiB", do)
    given = {"kind": "convention", "source": "a card of which only the size was given", "date": "2026"}
    return Device(
        f"{number}{unit}",
        f"card of {number} {unit}",
        Figure(capacity, "bytes", **given),
        vendor="nvidia",
        compute_capability=Figure("8.0", "version", **given),
    )


def build_device(name: str, entry: Mapping[str, Any]) -> Device:
    """A Device from an entry of data/; WorkbookError names the figure that lacks provenance."""
    raw: Mapping[str, Any] = entry["figures"]
    require_name(f"vendor of {name}", entry["vendor"], get_args(Vendor))
    _refuse_others(f"figure of {name}", raw, (*SINGLE, *GROUPS))
    for group in ("sizes", "bandwidths"):
        _refuse_others(f"level in {group} of {name}", raw.get(group, {}), ON_CHIP)
    figures: dict[str, Any] = {key: _figure(name, key, raw[key]) for key in SINGLE if key in raw}
    for group in GROUPS:
        figures[group] = {key: _figure(name, f"{group}.{key}", figure) for key, figure in raw.get(group, {}).items()}
    return Device(
        name,
        entry["title"],
        vendor=entry["vendor"],
        unified=entry.get("unified", False),
        memories=tuple(entry.get("memories", ())),
        aliases=tuple(entry["aliases"]),
        cuda_names=tuple(entry["cuda_names"]),
        **figures,
    )


def _refuse_others(kind: str, given: Iterable[str], allowed: tuple[str, ...]) -> None:
    for name in given:
        require_name(kind, name, allowed)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _number(figure: Figure | None) -> int | None:
    return figure.number if figure else None


def _figure(owner: str, key: str, raw: Mapping[str, Any]) -> Figure:
    try:
        return Figure(**raw)
    except TypeError as problem:
        expected = "value, unit, kind, source and date (and a direction for bytes/s)"
        do = "complete the entry in helpers/catalog/data/devices.json"
        raise WorkbookError(f"{owner}: the figure {key} cannot be built ({problem})", expected, do) from None


@cache
def _load() -> Mapping[str, Device]:
    return MappingProxyType({name: build_device(name, entry) for name, entry in entries().items()})


DEVICES: Mapping[str, Device] = _load()
OFFERED = tuple(card for card in DEVICES.values() if card.price_class)  # those that answers name by themselves


def detect() -> Device | None:
    """The current CUDA or ROCm device with the capacity that PyTorch reports for it; None without one."""
    import torch

    if not torch.cuda.is_available():
        return None
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    capability = None if torch.version.hip else (properties.major, properties.minor)
    return describe(properties.name, properties.total_memory, capability)


def describe(cuda_name: str, total_bytes: int, capability: tuple[int, int] | None = None) -> Device:
    """The device called `cuda_name` with `total_bytes` of memory: the catalogue entry, or what is given here alone."""
    capacity = _measured(total_bytes, "bytes")
    for entry in DEVICES.values():
        near = abs(entry.capacity_bytes - total_bytes) <= SAME_CARD * entry.capacity_bytes
        if cuda_name in entry.cuda_names and near:
            return replace(entry, capacity=capacity)
    return Device(
        name=cuda_name.lower().replace(" ", "-"),
        title=cuda_name,
        capacity=capacity,
        vendor="nvidia" if capability else None,
        compute_capability=_measured("{}.{}".format(*capability), "version") if capability else None,
    )


def _measured(value: int | str, unit: str) -> Figure:
    source = "torch.cuda.get_device_properties on this machine"
    return Figure(value, unit, "measured", source, datetime.date.today().isoformat())
