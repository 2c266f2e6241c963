"""A snapshot with its history in a few kilobytes: what the replay needs, in columns of small numbers, compressed.

Left out are stacks, times and the entries that the replay does not read: a free counts when it is completed. Addresses
are kept as distances from the lowest one, in blocks of 512 bytes, so their order and gaps are those of the device.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Mapping, Sequence

from ...catalog.errors import WorkbookError
from ..closed_form.breakdown import BLOCK_BYTES
from .blocks import ALLOCATED, FREE, PENDING, Segment, SegmentBlock
from .snapshot import Snapshot, TraceEvent

FORMAT = 1
LETTERS = {
    "alloc": "a",
    "free_completed": "f",
    "segment_alloc": "S",
    "segment_free": "R",
    "segment_map": "M",
    "segment_unmap": "U",
}
ACTIONS = {letter: action for action, letter in LETTERS.items()}
STATES = (ALLOCATED, FREE, PENDING)
DO = "record it again: workbook record --force --only NAME"
Columns = dict[str, object]


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
        "segments": [_segment(segment, base) for segment in segments],
    }
    return gzip.compress(json.dumps(data, separators=(",", ":")).encode(), mtime=0)


def unpack(packed: bytes) -> Snapshot:
    """The snapshot that `pack` was given, less what it leaves out. WorkbookError for anything else."""
    try:
        data = json.loads(gzip.decompress(packed))
        if not isinstance(data, Mapping) or data.get("format") != FORMAT:
            raise ValueError(f"its format is not {FORMAT}")
        segments = tuple(_segment_of(raw, data["base"]) for raw in data["segments"])
        return Snapshot(segments, (tuple(_events(data)),), data["conf"])
    except (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError, IndexError) as problem:
        raise WorkbookError(f"this is no packed snapshot: {problem}", "what pack() wrote", DO) from None


def _blocks_from(base: int, address: int) -> int:
    blocks, rest = divmod(address - base, BLOCK_BYTES)
    if rest:
        raise WorkbookError(
            f"the address {address:#x} is not a multiple of {BLOCK_BYTES} from {base:#x}",
            "addresses as PyTorch's caching allocator gives them",
            "record it with the native backend, without cudaMallocAsync",
        )
    return blocks


def _segment(segment: Segment, base: int) -> Columns:
    """Blocks as a flat list: size, bytes asked for, and the number of the state."""
    blocks = [
        number
        for block in segment.blocks
        for number in (block.size_bytes, block.requested_bytes, STATES.index(block.state))
    ]
    return {
        "at": _blocks_from(base, segment.address),
        "stream": segment.stream,
        "pool": segment.pool,
        "expandable": segment.expandable,
        "private": segment.private,
        "blocks": blocks,
    }


def _segment_of(raw: Columns, base: int) -> Segment:
    address = base + raw["at"] * BLOCK_BYTES
    blocks, at = [], address
    for size, requested, state in _threes(raw["blocks"]):
        blocks.append(SegmentBlock(at, size, requested, STATES[state]))
        at += size
    return Segment(
        address, at - address, raw["stream"], raw["pool"], raw["expandable"], tuple(blocks), private=raw["private"]
    )


def _threes(numbers: Sequence[int]) -> list[tuple[int, int, int]]:
    return list(zip(numbers[::3], numbers[1::3], numbers[2::3], strict=True))


def _events(data: Columns) -> list[TraceEvent]:
    streams = data["streams"] or [0] * len(data["actions"])
    columns = zip(data["actions"], data["addresses"], data["sizes"], streams, strict=True)
    return [
        TraceEvent(ACTIONS[letter], data["base"] + at * BLOCK_BYTES, size, stream)
        for letter, at, size, stream in columns
    ]
