"""What `workbook record` measured on real GPUs: one JSON file for each device, each figure with its setup and date.

This module writes and reads them, and says plainly what is wrong with one that was edited; `recorded` predicts them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from math import isfinite
from pathlib import Path

from ...catalog.devices import DEVICES, Device, describe
from ...catalog.errors import WorkbookError
from ...catalog.hardware import cuda_of
from ..allocator import Snapshot, unpack

FORMAT = 1
UNITS = ("bytes", "bytes/s", "s", "FLOP/s")
HERE = Path(__file__).resolve().parents[3] / "recordings"
ELSEWHERE = "WORKBOOK_RECORDINGS"  # the environment variable that names another folder
DO = "restore the file with git, or record it again: workbook record --force"


@dataclass(frozen=True)
class RecordedDevice:
    """The device of a recording: its name in the catalogue, or one made of what the driver calls it.

    `type` is "cuda"; "cpu" in rehearsals only, which tests make and `workbook record` never writes.
    """

    name: str
    title: str
    type: str
    total_bytes: int
    capability: tuple[int, int]

    @property
    def device(self) -> Device | None:
        """The card as the instruments know it: the catalogue's, else what was recorded of it; None for a CPU."""
        if self.type != "cuda":
            return None
        return DEVICES.get(self.name) or describe(self.title, self.total_bytes, self.capability)

    @property
    def is_traced(self) -> bool:
        """Whether a trace follows its kernels: CUDA's, or a CPU's."""
        return self.device is None or cuda_of(self.device) is not None


@dataclass(frozen=True)
class MeasuredWith:
    """With what an entry was measured, and when. "" means unknown."""

    torch: str
    cuda: str
    driver: str
    workbook: str
    date: str


@dataclass(frozen=True)
class Entry:
    """One thing that was measured: a value, or a curve over `x`.

    `label` says which case of the experiment, `quantity` what of it, `setup` is plain data that rebuilds the prediction
    (`kind` and fields). `snapshot` names a file beside the recording with the history that made the figure.
    """

    experiment: str
    label: str
    quantity: str
    unit: str
    setup: Mapping[str, object]
    values: tuple[float, ...]
    made: MeasuredWith
    x: tuple[float, ...] = ()
    x_unit: str = ""
    snapshot: str = ""

    def __post_init__(self) -> None:
        numbers = (*self.values, *self.x)
        plain = all(type(n) in (int, float) and isfinite(n) and n > 0 for n in numbers)
        for part, fine, expected in (
            ("unit", self.unit in UNITS, ", ".join(UNITS)),
            ("values", plain and bool(self.values), "numbers above 0"),
            ("x", len(self.x) == len(self.values) if self.x else len(self.values) == 1, "a place for each value"),
            ("setup", isinstance(self.setup, Mapping) and isinstance(self.setup.get("kind"), str), "a dict with kind"),
            ("snapshot", Path(self.snapshot).name == self.snapshot, "the name of a file beside the recording"),
        ):
            if not fine:
                what = f"{self.experiment}, {self.label}: {part} is {getattr(self, part)!r:.80}"
                raise WorkbookError(what, f"{part}: {expected}", DO)

    @property
    def value(self) -> float:
        """The figure of an entry that is no curve; of a curve its last point."""
        return self.values[-1]


@dataclass(frozen=True)
class Recording:
    """All that was recorded on one device. `folder` is where its file lies, "" before it was written."""

    machine: RecordedDevice
    entries: tuple[Entry, ...] = ()
    folder: str = ""

    def of(self, experiment: str) -> tuple[Entry, ...]:
        return tuple(entry for entry in self.entries if entry.experiment == experiment)

    @property
    def experiments(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(entry.experiment for entry in self.entries))

    def source(self, entry: Entry) -> str:
        """One line: "NVIDIA H200, torch 2.11.0, driver 580.65, 2026-11-30"."""
        made = entry.made
        driver = f"driver {made.driver}" if made.driver else ""
        return ", ".join(filter(None, (self.machine.title, f"torch {made.torch}", driver, made.date)))

    def snapshot(self, entry: Entry) -> Snapshot:
        """The history behind `entry`. WorkbookError where the file is missing or damaged."""
        path = snapshots_folder(Path(self.folder), self.machine.name) / entry.snapshot
        try:
            return unpack(path.read_bytes())
        except OSError as problem:
            what = f"{path.name} of {entry.experiment} cannot be read: {problem.strerror}"
            raise WorkbookError(what, f"the file in {path.parent.name}", DO) from None


def snapshots_folder(folder: Path, device: str) -> Path:
    return folder / f"{device}.snapshots"


def read_all(folder: Path | None = None) -> tuple[Recording, ...]:
    """Every recording in `folder`, by device name; () where nobody has recorded. WorkbookError for a damaged one.

    None is what WORKBOOK_RECORDINGS names, else recordings/ of the repository that this package lies in.
    """
    where = folder or Path(os.environ.get(ELSEWHERE) or HERE)
    return tuple(read(path) for path in sorted(where.glob("*.json")))


def read(path: Path) -> Recording:
    """The recording in one file."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise WorkbookError(f"{path.name} cannot be read as JSON: {problem}", "a recording", DO) from None
    if not isinstance(data, Mapping) or data.get("format") != FORMAT or not isinstance(data.get("entries"), list):
        raise WorkbookError(f"{path.name} is no recording of format {FORMAT}", "format, device and entries", DO)
    machine = _built(RecordedDevice, data.get("device"), f"device of {path.name}", capability=tuple)
    if machine.name != path.stem:
        raise WorkbookError(f"{path.name} is a recording of {machine.name!r}", f"a file named {machine.name}.json", DO)
    entries = tuple(_entry(raw, f"entry {number} of {path.name}") for number, raw in enumerate(data["entries"]))
    return Recording(machine, entries, str(path.parent))


def write(recording: Recording, folder: Path) -> Path:
    """Write it whole or not at all: readers find the old file or the new one, never half of either."""
    entries = [_plain(entry) for entry in recording.entries]
    data = {"format": FORMAT, "device": asdict(recording.machine), "entries": entries}
    lines = json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False)
    path = folder / f"{recording.machine.name}.json"
    replace_whole(path, (lines + "\n").encode())
    return path


def replace_whole(path: Path, content: bytes) -> None:
    """`content` into `path`, in one step that an interruption cannot divide."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with beside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def _plain(entry: Entry) -> dict[str, object]:
    """An entry as it is stored: one value, or x and y, and nothing that is empty."""
    plain: dict[str, object] = {name: getattr(entry, name) for name in ("experiment", "label", "quantity", "unit")}
    if entry.x:
        plain |= {"x_unit": entry.x_unit, "x": list(entry.x), "y": list(entry.values)}
    else:
        plain["value"] = entry.value
    if entry.snapshot:
        plain["snapshot"] = entry.snapshot
    return {**plain, "setup": dict(entry.setup), **asdict(entry.made)}


def _entry(raw: object, where: str) -> Entry:
    if not isinstance(raw, Mapping):
        raise WorkbookError(f"{where} is of type {type(raw).__name__}", "an object", DO)
    given = dict(raw)
    made = _built(MeasuredWith, {name: given.pop(name) for name in _names(MeasuredWith) if name in given}, where)
    if ("value" in given) == ("y" in given):
        count = "both" if "y" in given else "neither"
        raise WorkbookError(f"{where} has {count} of value and y", "a value, or a curve x and y", DO)
    given["values"] = given.pop("y") if "y" in given else [given.pop("value")]
    return _built(Entry, {"made": made, **given}, where, values=tuple, x=tuple)


def _built(kind: type, raw: object, where: str, **convert: type):
    """`kind` from plain data; WorkbookError names a field that is missing, unknown or of another type."""
    if not isinstance(raw, Mapping):
        raise WorkbookError(f"the {where} is of type {type(raw).__name__}", "an object", DO)
    unknown = sorted(set(raw) - set(_names(kind)))
    try:
        if unknown:
            raise TypeError(f"nobody knows {', '.join(unknown)}")
        return kind(**{**raw, **{name: made(raw[name]) for name, made in convert.items() if name in raw}})
    except TypeError as problem:
        raise WorkbookError(f"the {where} cannot be read: {problem}", ", ".join(_names(kind)), DO) from None


def _names(kind: type) -> Sequence[str]:
    return [field.name for field in fields(kind)]
