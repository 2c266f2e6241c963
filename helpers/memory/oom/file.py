"""The file of `workbook explain-oom`, a log or a snapshot by its first byte; and the closed form beside it.

Of a snapshot: the request that failed, the largest holes, who holds what.
"""

from __future__ import annotations

import sys
import zlib
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path

from ...catalog.devices import Device
from ...catalog.engines import engine
from ...catalog.errors import WorkbookError
from ...catalog.hardware import reference_of
from ...catalog.serve_setup import ServeSetup
from ...catalog.train_setup import TrainSetup
from ..allocator import Reason, Segment, Settings, Snapshot, TraceEvent, read_snapshot
from ..breakdown import format_bytes
from ..fit import changes, peak_bytes
from ..serve.engines.vllm import pool_tokens
from ..serve.serving import serve
from .cures import changes_for
from .explain import CardRow, Explanation, explain
from .frames import RequestPlace
from .message import MessageSizes, Oom, Why
from .words import MessageKind

GZIP = b"\x1f\x8b"
PICKLE = b"\x80"  # how a pickle of protocol 2 and later begins, and no UTF-8 text does
MAX_LOG_BYTES = 2**28
OFFERS = 5
BF16_BYTES = 2
LARGEST = 8
NOT_RECORDED = "(no line was recorded)"


def explain_file(
    path: str | Path, card: Device | None = None, setup: TrainSetup | ServeSetup | None = None
) -> Explanation:
    """Explain a log, compressed by gzip or not, or a snapshot; "-" reads from standard input.

    With `setup`, also by the closed form.

    WorkbookError for a file that cannot be read, a log without an out-of-memory message and a pickle that is no
    snapshot.
    """
    data = _unpacked(_read(path), path)
    if str(path) == "-" and data.startswith(PICKLE):
        expected = "a log in the pipe, or a snapshot in a file"
        raise WorkbookError("a snapshot came through the pipe", expected, "give the snapshot's path")
    found = explain_snapshot(read_snapshot(path), card) if data.startswith(PICKLE) else explain(_decoded(data))
    return found if setup is None else with_setup(found, setup, card)


def with_setup(found: Explanation, setup: TrainSetup | ServeSetup, card: Device | None = None) -> Explanation:
    """The explanation with what the closed form says of `setup` in the room that this failure leaves it.

    A server's log that tells what is left for the KV cache is taken at its word.

    The room is the limit, or the card less what is not PyTorch's, where the message tells; else `card`'s capacity.
    """
    if found.cache_bytes is not None or found.cache_tokens is not None:
        return replace(found, predicted=_beside_the_log(found, setup, card or reference_of(setup)))
    on = card or reference_of(setup)
    room, need = found.room_bytes or (card.capacity_bytes if card else None), peak_bytes(setup, on)
    if room is None:
        expected = "a message with its capacity, or a GPU's name"
        raise WorkbookError("nothing here says how large the card is", expected, "add --gpu, as in --gpu rtx-4090")
    what = (
        f"By the closed form {setup.model.name} with these flags needs {format_bytes(need)} at its peak, "
        f"and {format_bytes(room)} is there for it"
    )
    if need <= room:
        how = "The run differs from the flags, something holds tensors from before, or the rest is fragmentation."
        return replace(found, predicted=f"{what}: so it fits. {how}")
    fits = tuple(islice(changes(setup, room, on), OFFERS))
    how = "What would fit:" if fits else "No change that is known here makes it fit."
    return replace(found, fits=fits, predicted=f"{what}. {how}")


def _beside_the_log(found: Explanation, setup: TrainSetup | ServeSetup, card: str | Device) -> str:
    """What a token of the model has in the cache, and what the log leaves makes of that."""
    context = setup.context if isinstance(setup, ServeSetup) else setup.sequence
    a_token = serve(setup).kv_bytes_per_token if isinstance(setup, ServeSetup) else 0
    a_token = a_token or BF16_BYTES * setup.model.kv_values(context) // context
    start = f"By the closed form a token of {setup.model.name} has {format_bytes(a_token)} of keys and values."
    if found.cache_tokens is not None:
        size = format_bytes(found.cache_tokens * a_token)
        return f"{start} The log has room for {found.cache_tokens:,} tokens: {size} of cache."
    held = found.cache_bytes or 0
    tokens, longest = _tokens(setup, held, found.version, card) or (held // a_token, 0)
    alone = f", and one sequence of up to {longest:,}" if longest and longest != tokens else ""
    return f"{start} The log leaves {format_bytes(held)} for the cache: {tokens:,} tokens of all sequences{alone}."


def _tokens(
    setup: TrainSetup | ServeSetup, held_bytes: int, version: str, card: str | Device
) -> tuple[int, int] | None:
    """Those that vLLM logs for a pool of so many bytes, and of one sequence; None where its pages are not known."""
    kv, prefill = (setup.kv, setup.prefill_tokens) if isinstance(setup, ServeSetup) else ("bf16", None)
    context = setup.context if isinstance(setup, ServeSetup) else setup.sequence
    served = engine("vllm")
    with suppress(WorkbookError):  # a version that is not known: the newest
        served = engine("vllm", version or None)
    with suppress(WorkbookError):
        return pool_tokens(
            ServeSetup(setup.model, kv=kv, context=context, prefill_tokens=prefill), served, held_bytes, card
        )
    return None


def _read(path: str | Path) -> bytes:
    if str(path) == "-":
        return sys.stdin.buffer.read(MAX_LOG_BYTES)
    try:
        size = Path(path).stat().st_size
        with Path(path).open("rb") as file:
            head = file.read(1)
            if head != PICKLE and size > MAX_LOG_BYTES:
                what, expected = f"{path} has {format_bytes(size)}", f"a log of up to {format_bytes(MAX_LOG_BYTES)}"
                raise WorkbookError(what, expected, "cut out the failure: grep -B 60 'out of memory' FILE | head -200")
            return head if head == PICKLE else head + file.read(MAX_LOG_BYTES)  # a device may never end
    except OSError as error:
        what, expected = f"cannot read {path}: {error.strerror}", "a log with a traceback, or a snapshot"
        raise WorkbookError(what, expected, "give the path of a file, or - to read from a pipe") from None


def _unpacked(data: bytes, path: str | Path) -> bytes:
    """What gzip has compressed; a file that is still being written ends early, and what is there is read."""
    if not data.startswith(GZIP):
        return data
    try:
        found = zlib.decompressobj(wbits=31).decompress(data, MAX_LOG_BYTES)
    except zlib.error as error:
        raise WorkbookError(f"cannot unpack {path}: {error}", "a file made by gzip", "unpack it with gzip -d") from None
    return found


def _decoded(data: bytes) -> str:
    """UTF-8, or UTF-16 as PowerShell's redirection writes it; what is neither is replaced, never refused."""
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return data.decode("utf-16", errors="replace")
    return data.decode("utf-8-sig", errors="replace")


def explain_snapshot(snapshot: Snapshot, card: Device | None = None) -> Explanation:
    """Explain the last "oom" event of a snapshot; without one, say what is live and where the holes are.

    `card` gives the capacity, which no snapshot holds. The segments are those of the moment of the dump: a dump in an
    out-of-memory observer or in the `except` shows the failure, a later one does not.
    """
    device, event, after = _last_oom(snapshot) or (_fullest(snapshot), None, 0)
    segments = [segment for segment in snapshot.segments if segment.device == device]
    if not segments and not event:
        do = "dump it when the failure happens: in the except, before anything is freed"
        raise WorkbookError("the snapshot holds no segments and no failure", "an allocator that was used", do)
    oom = _facts(segments, event, device, card)
    decided = _why(oom, segments, after, snapshot.conf)
    title = f"No failure is recorded; GPU {device} at the moment of the dump"
    if event:
        title = f"{format_bytes(event.size_bytes)} refused on GPU {device}"
    changes = changes_for(oom, decided.reason, RequestPlace.UNKNOWN) if event else ()
    rows, blocks = tuple(_rows(oom, segments)), tuple(_blocks(segments))
    return Explanation(title, decided, rows, blocks=blocks, changes=changes, room_bytes=oom.capacity_bytes)


def _last_oom(snapshot: Snapshot) -> tuple[int, TraceEvent, int] | None:
    """(device, event, number of allocations and frees after it) of the last failure that the history holds."""
    for device, trace in enumerate(snapshot.traces):
        for at in range(len(trace) - 1, -1, -1):
            if trace[at].action == "oom":
                after = sum(event.action in ("alloc", "free_completed") for event in trace[at + 1 :])
                return device, trace[at], after
    return None


def _fullest(snapshot: Snapshot) -> int:
    held: Counter[int] = Counter()
    for segment in snapshot.segments:
        held[segment.device] += segment.size_bytes
    return max(held, key=lambda device: held[device], default=0)


def _facts(segments: list[Segment], event: TraceEvent | None, device: int, card: Device | None) -> Oom:
    allocated = sum(segment.allocated_bytes for segment in segments)
    cached = sum(segment.size_bytes for segment in segments) - allocated
    asked, free = (event.size_bytes, event.address) if event else (None, None)
    return Oom(MessageKind.ALLOCATOR, "", device, asked, card.capacity_bytes if card else None, free, allocated, cached)


def _holes(segments: Iterable[Segment]) -> int:
    return max((segment.largest_free_bytes for segment in segments), default=0)


def _why(oom: Oom, segments: list[Segment], after: int, conf: str) -> Why:
    notes = []
    if after:
        notes.append(f"{after} allocations and frees follow the failure; the blocks are those of the dump, later.")
    if not any(block.name for segment in segments for block in segment.blocks):
        notes.append("No lines: call torch.cuda.memory._record_memory_history() before the first allocation.")
    if oom.sizes is None:
        sentence = "The history holds no out-of-memory event: record until the failure, and dump there."
        return Why(Reason.UNCLEAR, sentence, tuple(notes))
    return Why(*_reason(oom.sizes, _holes(segments), conf), tuple(notes))


def _reason(sizes: MessageSizes, hole: int, conf: str) -> tuple[Reason, str]:
    free, cached, unused = map(format_bytes, (sizes.free, sizes.cached, sizes.unused))
    segment = _segment_bytes(sizes.asked, conf)
    if segment <= sizes.free:
        return Reason.CAPPED, (
            f"The card had {free} free and a segment of {format_bytes(segment)} would have done: a limit "
            "of this process refused it, set_per_process_memory_fraction or the like."
        )
    if sizes.asked <= sizes.unused:
        return Reason.FRAGMENTED, (
            f"{unused} were unused ({cached} cached, {free} free), but the largest hole is {format_bytes(hole)}."
        )
    return Reason.FULL, (
        f"{format_bytes(sizes.allocated)} are in tensors; even with all unused bytes ({unused}) in one piece, "
        f"{format_bytes(sizes.asked - sizes.unused)} would be missing. A snapshot does not say what other "
        "processes hold."
    )


def _segment_bytes(size_bytes: int, conf: str) -> int:
    """What is asked of the driver for a request; by default settings where the snapshot's cannot be read."""
    try:
        return Settings.parse(conf).segment_bytes(size_bytes)
    except WorkbookError:
        return Settings().segment_bytes(size_bytes)


def _rows(oom: Oom, segments: list[Segment]) -> list[CardRow]:
    small = sum(segment.pool == "small" for segment in segments)
    rows = [
        ("asked", oom.requested_bytes, ""),
        ("the card", oom.capacity_bytes, ""),
        ("reserved", oom.reserved_bytes, f"{len(segments)} segments, {small} of them small"),
        ("in tensors", oom.allocated_bytes, ""),
        ("cached", oom.cached_bytes, "in no tensor"),
        ("largest hole", _holes(segments), ""),
        ("outside", oom.outside_bytes, "by subtraction"),
        ("free", oom.free_bytes, "on the card, when it failed"),
    ]
    return [CardRow(name, size, note) for name, size, note in rows if size is not None]


def _blocks(segments: list[Segment]) -> list[CardRow]:
    """Live bytes by the line that made them, the largest first."""
    sizes: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for block in (block for segment in segments for block in segment.blocks if not block.is_free):
        sizes[block.name or NOT_RECORDED] += block.size_bytes
        counts[block.name or NOT_RECORDED] += 1
    notes = {name: f"{count} blocks" if count > 1 else "1 block" for name, count in counts.items()}
    rows = [CardRow(name, size, notes[name]) for name, size in sizes.most_common(LARGEST)]
    rest = sizes.total() - sum(row.size_bytes for row in rows)
    return [*rows, CardRow("everything else", rest, f"{len(sizes) - LARGEST} lines")] if rest else rows
