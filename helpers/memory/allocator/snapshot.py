"""Snapshots of a real allocator: `torch.cuda.memory._dump_snapshot`, read without running anything inside; and packed.

A packed snapshot has in a few kilobytes what the replay needs: columns of small numbers, compressed. Left out are
stacks, times and the entries that the replay does not read: a free counts when it is completed. Addresses are kept as
distances from the lowest one, in blocks of 512 bytes, so their order and gaps are those of the device.
"""

from __future__ import annotations

import gzip
import json
import reprlib
import zlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ...catalog.errors import WorkbookError, require_whole
from ..breakdown import BLOCK_BYTES
from . import plain_pickle
from .blocks import BlockState, Segment, SegmentBlock

STATES = {
    "active_allocated": BlockState.ALLOCATED,
    "inactive": BlockState.FREE,
    "active_pending_free": BlockState.PENDING,
    "active_awaiting_free": BlockState.PENDING,
}
LETTERS = {  # PyTorch's names of what a history holds; a packed one has those with a letter
    "alloc": "a",
    "free_completed": "f",
    "segment_alloc": "S",
    "segment_free": "R",
    "segment_map": "M",
    "segment_unmap": "U",
}
ENTRIES = ("segments", "device_traces")
LEAST_ENTRY_BYTES = 8  # of a file, for one event or block; PyTorch writes some eighty
ACTIONS = (*LETTERS, "free_requested", "snapshot", "oom")
MAKE_ONE = "make one with torch.cuda.memory._dump_snapshot('snapshot.pickle')"
T = TypeVar("T")


class TraceEvent(NamedTuple):
    """One entry of `device_traces`. `size_bytes` as requested; for "oom", `address` is what the driver had free."""

    action: str
    address: int
    size_bytes: int
    stream: int
    where: str = ""


@dataclass(frozen=True)
class Snapshot:
    """The segments of all devices, and per device what the history holds; `conf` is its settings' text."""

    segments: tuple[Segment, ...]
    traces: tuple[tuple[TraceEvent, ...], ...] = field(default=(), repr=False)
    conf: str = ""

    @property
    def reserved_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.segments)

    @property
    def allocated_bytes(self) -> int:
        return sum(segment.allocated_bytes for segment in self.segments)

    def trace(self, device: int = 0) -> tuple[TraceEvent, ...]:
        return self.traces[device] if 0 <= device < len(self.traces) else ()


def read_snapshot(source: str | Path | Mapping) -> Snapshot:
    """The snapshot in a file of `_dump_snapshot`, or in the dict that `_snapshot()` returned.

    WorkbookError for a file that is none, or that holds anything but plain data: nothing in it is executed, and a
    small file cannot take much memory or time.
    """
    data = source if isinstance(source, Mapping) else _loaded(Path(source))
    places = _Places()
    if not isinstance(data, Mapping) or not isinstance(data.get("segments"), list):
        name = "this dict" if isinstance(source, Mapping) else Path(source).name
        raise WorkbookError(f"{name} holds no segments", "a dict with the list 'segments'", MAKE_ONE)
    segments = tuple(_segment(number, raw, places) for number, raw in enumerate(data["segments"]))
    traces = _typed(data.get("device_traces") or [], list, "device_traces")
    settings = data.get("allocator_settings")
    settings = settings if isinstance(settings, Mapping) else {}
    conf = settings.get("PYTORCH_CUDA_ALLOC_CONF") or settings.get("PYTORCH_ALLOC_CONF")
    ordered = tuple(sorted(segments, key=lambda segment: (segment.device, segment.address)))
    events = tuple(tuple(_trace(device, raw, places)) for device, raw in enumerate(traces))
    return Snapshot(ordered, events, conf if isinstance(conf, str) else "")


def live_snapshot() -> Snapshot:
    """What this process's CUDA allocator holds now; its history where `_record_memory_history` runs."""
    import torch

    if not torch.cuda.is_available():
        do = "read a file instead: read_snapshot('snapshot.pickle')"
        raise WorkbookError("this machine has no CUDA device", "a GPU whose allocator can be asked", do)
    return read_snapshot(torch.cuda.memory._snapshot())


def _loaded(path: Path) -> object:
    try:
        with path.open("rb") as file:
            data = plain_pickle.load(file)
            _require_own_entries(data, file.tell())
            return data
    except OSError as error:
        raise WorkbookError(f"cannot read {path}: {error.strerror}", "a snapshot file", MAKE_ONE) from None
    except Exception as error:  # a broken pickle raises whatever its bytes stumble over
        reason = str(error) or type(error).__name__
        raise WorkbookError(f"{path.name} is no snapshot: {reason}", "a pickle of plain data", MAKE_ONE) from None


def _require_own_entries(data: object, size: int) -> None:
    """ValueError for more events and blocks than `size` bytes of file can hold.

    A pickle may name one object many times: a hundred thousand devices with the same hundred thousand events take
    300 KB, and reading them would take for ever.
    """
    parts = data if isinstance(data, Mapping) else {}
    segments, traces = ([*value] if isinstance(value := parts.get(key), list) else [] for key in ENTRIES)
    lists = [*traces, *(raw.get("blocks") for raw in segments if isinstance(raw, Mapping))]
    entries = len(segments) + sum(len(each) for each in lists if isinstance(each, list))
    if entries > size // LEAST_ENTRY_BYTES:
        raise ValueError(f"{entries:,} entries do not come from {size:,} bytes")


def _segment(number: int, raw: object, places: _Places) -> Segment:
    where = f"segment {number}"
    raw = _typed(raw, dict, where)
    address, size = _int(raw, "address", where), _int(raw, "total_size", where)
    blocks = tuple(_blocks(address, raw, where, places))
    if sum(block.size_bytes for block in blocks) != size:
        raise WorkbookError(f"the blocks of {where} do not add up to its {size} bytes", "a whole snapshot", MAKE_ONE)
    pool = _choice(raw, "segment_type", where, ("small", "large"), "large")
    stream, device = _int(raw, "stream", where, 0), _int(raw, "device", where, 0)
    private = raw.get("segment_pool_id") not in (None, (0, 0), [0, 0])
    return Segment(address, size, stream, pool, bool(raw.get("is_expandable")), blocks, device, private)


def _blocks(address: int, raw: Mapping, where: str, places: _Places) -> Iterator[SegmentBlock]:
    """Blocks in order; their own addresses came with torch 2.0, before that they follow from the sizes."""
    for number, block in enumerate(_typed(raw.get("blocks"), list, f"blocks of {where}")):
        inside = f"block {number} of {where}"
        size = _int(_typed(block, dict, inside), "size", inside)
        state = STATES[_choice(block, "state", inside, STATES)]
        if _int(block, "address", inside, address) != address:
            raise WorkbookError(f"{inside} does not begin where the one before ends", "a whole snapshot", MAKE_ONE)
        requested = 0 if state is BlockState.FREE else _int(block, "requested_size", inside, size)
        yield SegmentBlock(address, size, requested, state, places.of(block) if state is not BlockState.FREE else "")
        address += size


def _trace(device: int, raw: object, places: _Places) -> Iterator[TraceEvent]:
    for number, event in enumerate(_typed(raw, list, f"device_traces[{device}]")):
        where = f"event {number} of device {device}"
        action = _choice(_typed(event, dict, where), "action", where, ACTIONS)
        address = _int(event, "device_free" if action == "oom" else "addr", where, 0)
        size, stream = _int(event, "size", where), _int(event, "stream", where, 0)
        yield TraceEvent(action, address, size, stream, places.of(event))


class _Places:
    """The innermost line of the user's own Python in each stack; many entries share one, which is looked at once."""

    def __init__(self) -> None:
        self.known: dict[int, str] = {}  # by identity: the stacks live as long as the data that is being read

    def of(self, raw: Mapping) -> str:
        """As file:line function; "" where none was recorded."""
        frames = raw.get("frames")
        if not isinstance(frames, list):
            return ""
        if id(frames) not in self.known:
            self.known[id(frames)] = _own_line(frames)
        return self.known[id(frames)]


def _own_line(frames: list) -> str:
    for frame in frames:
        name = _text(frame.get("filename")) if isinstance(frame, Mapping) else ""
        if name.endswith(".py") and "/torch/" not in name.replace("\\", "/"):
            short = name.replace("\\", "/").rsplit("/", 1)[-1]
            line = frame.get("line")
            return f"{short}:{line if isinstance(line, int) else '?'} {_text(frame.get('name'))}".rstrip()
    return ""


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _int(raw: Mapping, key: str, where: str, default: int | None = None) -> int:
    value = raw.get(key, default)
    if isinstance(value, list | tuple | dict):  # whose text may be endless
        value = _typed(value, int, f"{key} of {where}")
    return require_whole(f"{key} of {where}", value, 0, do=MAKE_ONE)


def _choice(raw: Mapping, key: str, where: str, allowed: Collection[str], default: str | None = None) -> str:
    value = raw.get(key, default)
    if not isinstance(value, str) or value not in allowed:
        raise WorkbookError(f"{key} of {where} is {reprlib.repr(value)}", ", ".join(allowed), MAKE_ONE)
    return value


def _typed(value: object, kind: type[T], where: str) -> T:
    if not isinstance(value, kind):
        told = "nothing" if value is None else f"of type {type(value).__name__}"
        raise WorkbookError(f"{where} is {told}", f"a {kind.__name__}", MAKE_ONE)
    return value


# --- packed ----------------------------------------------------------------------------------------------------------

FORMAT = 1
PACKED_STATES = (BlockState.ALLOCATED, BlockState.FREE, BlockState.PENDING)
Columns = Mapping[str, Any]  # JSON: numbers, text and lists of them


def pack(snapshot: Snapshot, device: int = 0) -> bytes:
    """The history and the final segments of one device. Equal snapshots give equal bytes.

    A training step of two thousand events takes about ten kilobytes.
    """
    events = [event for event in snapshot.trace(device) if event.action in LETTERS]
    segments = [segment for segment in snapshot.segments if segment.device == device]
    base = min([*(event.address for event in events), *(segment.address for segment in segments)], default=0)
    data = {
        "format": FORMAT,
        "conf": snapshot.conf,
        "base": base,
        "actions": "".join(LETTERS[event.action] for event in events),
        "addresses": [_blocks_from(base, event.address) for event in events],
        "sizes": [event.size_bytes for event in events],
        "streams": [event.stream for event in events] if any(event.stream for event in events) else [],
        "segments": [_packed(segment, base) for segment in segments],
    }
    return gzip.compress(json.dumps(data, separators=(",", ":")).encode(), mtime=0)


def unpack(packed: bytes) -> Snapshot:
    """The snapshot that `pack` was given, less what it leaves out. WorkbookError for anything else."""
    try:
        data = json.loads(gzip.decompress(packed))
        if not isinstance(data, Mapping) or data.get("format") != FORMAT:
            raise ValueError(f"its format is not {FORMAT}")
        segments = tuple(_unpacked(raw, data["base"]) for raw in data["segments"])
        return Snapshot(segments, (tuple(_events(data)),), data["conf"])
    except (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError, IndexError) as problem:
        do = "record it again: workbook record --force --only NAME"
        raise WorkbookError(f"this is no packed snapshot: {problem}", "what pack() wrote", do) from None


def _blocks_from(base: int, address: int) -> int:
    blocks, rest = divmod(address - base, BLOCK_BYTES)
    if rest:
        expected = "addresses as PyTorch's caching allocator gives them"
        do = "record it with the native backend, without cudaMallocAsync"
        raise WorkbookError(f"the address {address:#x} is not a multiple of {BLOCK_BYTES} from {base:#x}", expected, do)
    return blocks


def _packed(segment: Segment, base: int) -> Columns:
    """Blocks as a flat list: size, bytes asked for, and the number of the state."""
    blocks: list[int] = []
    for block in segment.blocks:
        blocks += (block.size_bytes, block.requested_bytes, PACKED_STATES.index(block.state))
    return {
        "at": _blocks_from(base, segment.address),
        "stream": segment.stream,
        "pool": segment.pool,
        "expandable": segment.expandable,
        "private": segment.private,
        "blocks": blocks,
    }


def _unpacked(raw: Columns, base: int) -> Segment:
    address, numbers = base + raw["at"] * BLOCK_BYTES, raw["blocks"]
    blocks, at = [], address
    for size, requested, state in zip(numbers[::3], numbers[1::3], numbers[2::3], strict=True):
        blocks.append(SegmentBlock(at, size, requested, PACKED_STATES[state]))
        at += size
    kind = raw["stream"], raw["pool"], raw["expandable"]
    return Segment(address, at - address, *kind, tuple(blocks), private=raw["private"])


def _events(data: Columns) -> list[TraceEvent]:
    actions = {letter: action for action, letter in LETTERS.items()}
    streams = data["streams"] or [0] * len(data["actions"])
    addresses = (data["base"] + at * BLOCK_BYTES for at in data["addresses"])
    columns = zip(data["actions"], addresses, data["sizes"], streams, strict=True)
    return [TraceEvent(actions[letter], address, size, stream) for letter, address, size, stream in columns]
