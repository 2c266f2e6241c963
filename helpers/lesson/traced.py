"""A trace in words and numbers: beside the closed form, part by part, with the phases and what is live at the peak."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ..catalog.devices import Device
from ..memory.breakdown import PARTS, Breakdown, format_bytes
from ..memory.fit.room import Room, Verdict
from .drawing.marks import label

if TYPE_CHECKING:
    from ..memory.trace import Trace
    from ..memory.trace.read_ahead import ReservedRange

MOST_NAMES = 8
EXPANDABLE = "expandable_segments:True"
LOADING = "load"  # the phase of what a trace makes before anything runs


def trace_report(
    title: str,
    found: Trace,
    predicted: Breakdown | None,
    where: Device | None = None,
    reserve_bytes: int | None = None,
    loaded_by: str | None = None,
    ranks: int = 1,
) -> str:
    """What `workbook trace` prints; `predicted` is the closed form's breakdown, None where there is none.

    `loaded_by` is the release of Transformers that loads a base in 4 bits, the installed one where it is None.
    """
    return "\n".join(_lines(title, found, predicted, _room(where, reserve_bytes, ranks), loaded_by))


def trace_figures(
    found: Trace,
    predicted: Breakdown | None,
    where: Device | None = None,
    reserve_bytes: int | None = None,
    loaded_by: str | None = None,
    ranks: int = 1,
) -> dict[str, object]:
    """The same for programs: every size in bytes."""
    reserved, room = _reserved(found, loaded_by), _room(where, reserve_bytes, ranks)
    return {
        "parts": {part: found.parts.get(part, 0) for part in PARTS},
        "peak_bytes": found.peak_bytes,
        "peak_allocated_bytes": found.peak_allocated_bytes,
        "peak_reserved_bytes": found.peak_reserved_bytes,
        "peak_reserved_range_bytes": None if reserved is None else [reserved.low, reserved.high],
        "phases": {str(moment.at): moment.total for moment in found.measured.moments},
        "budget_parts": None if predicted is None else {part: predicted.get(part, 0) for part in PARTS},
        "device": None if room is None else fit_figures(room, found.peak_reserved_bytes),
        "out_of_memory": _out_of_memory(found, room) if room else None,
    }


def _room(where: Device | None, reserve_bytes: int | None, ranks: int) -> Room | None:
    return Room(where, reserve_bytes, ranks) if where else None


def fit_figures(room: Room, need_bytes: int) -> dict[str, object]:
    """Whether so many bytes fit a device beside the reserve, for JSON."""
    verdict = room.verdict(need_bytes)
    return {
        "name": room.card.name,
        "capacity_bytes": room.card.capacity_bytes,
        "reserve_bytes": room.reserve_bytes,
        "verdict": verdict,
        "fits": verdict is Verdict.FITS,
    }


def _reserved(found: Trace, loaded_by: str | None) -> ReservedRange | None:
    """The range of what is reserved; None where loading is no race."""
    from ..memory.trace.read_ahead import reserved_range  # here, for it brings torch

    reserved = reserved_range(found, loaded_by)
    return reserved if reserved.low < reserved.high else None


def _lines(
    title: str, found: Trace, predicted: Breakdown | None, room: Room | None, loaded_by: str | None
) -> Iterator[str]:
    yield f"{title}: {format_bytes(found.peak_allocated_bytes)} allocated at the peak, {found.peak.when}"
    yield ""
    yield from _table(found.parts, predicted)
    yield ""
    yield f"{'allocated':<14}{format_bytes(found.peak_allocated_bytes):>12}   torch.cuda.max_memory_allocated()"
    yield f"{'reserved':<14}{format_bytes(found.peak_reserved_bytes):>12}   torch.cuda.max_memory_reserved()"
    reserved = _reserved(found, loaded_by)
    if reserved:
        yield f"{'':<14}{format_bytes(reserved.low):>12} to {format_bytes(reserved.high)}: {reserved.why}"
    yield ""
    yield "highest in each phase"
    for moment in found.measured.moments:
        yield f"  {moment.name:<16}{format_bytes(moment.total):>12}"
    yield ""
    yield "largest at the peak"
    for size, name in _largest(found):
        yield f"  {format_bytes(size):>12}  {name}"
    yield ""
    yield verdict_sentence(found, room)
    if reserved and room:
        yield f"If loading reserves the most: {room.sentence(reserved.high)}"


def _table(parts: Breakdown, predicted: Breakdown | None) -> Iterator[str]:
    yield f"{'':<14}{'trace':>12}" + (f"{'budget':>12}{'residual':>12}" if predicted is not None else "")
    for part in PARTS:
        traced, guess = parts.get(part, 0), predicted.get(part, 0) if predicted else 0
        if traced or guess:
            beside = f"{format_bytes(guess):>12}{format_bytes(traced - guess):>12}" if predicted is not None else ""
            yield f"{part:<14}{format_bytes(traced):>12}{beside}"
    if predicted is not None:
        residual = parts.total - predicted.total
        yield (
            f"{'peak':<14}{format_bytes(parts.total):>12}{format_bytes(predicted.total):>12}"
            f"{format_bytes(residual):>12}   budget off by {-residual / parts.total:+.2%}"
        )


def _largest(found: Trace) -> list[tuple[int, str]]:
    """The largest blocks at the peak, those of the same place in every layer together."""
    together: dict[str, list[int]] = {}
    for block in found.at_peak:
        owner = re.sub(r"\.\d+(?=\.|$)", ".*", block.owner) or f"made in the {block.phase}"
        together.setdefault(f"{label(block.category)}: {owner}", []).append(block.size_bytes)
    count = {name: f", {len(sizes)} tensors" if len(sizes) > 1 else "" for name, sizes in together.items()}
    return sorted(((sum(sizes), name + count[name]) for name, sizes in together.items()), reverse=True)[:MOST_NAMES]


def verdict_sentence(found: Trace, room: Room | None) -> str:
    """Whether the run that was traced runs on the card, through PyTorch's allocator in its default segments."""
    if room is None:
        return "The CUDA context comes on top: a few hundred MiB that PyTorch does not count."
    reserved = room.sentence(found.peak_reserved_bytes)
    if room.verdict(found.peak_reserved_bytes) is Verdict.FITS:
        return reserved
    if found.replayed(capacity_bytes=max(1, room.for_tensors_bytes)).oom is None:
        over = format_bytes(found.peak_reserved_bytes - room.for_tensors_bytes)
        return f"Runs on the {room.card.title}: the allocator gives back {over} of what it has cached on the way."
    failed = _out_of_memory(found, room)
    if failed:
        asked, held = format_bytes(failed["asked_bytes"]), format_bytes(failed["allocated_bytes"])
        where = f"in the {failed['phase']}" + (f", in {failed['module']}" if failed["module"] else "")
        return (
            f"Out of memory on the {room.card.title}, {where}: it asks for {asked} beside {held} in use, and "
            f"{format_bytes(room.for_tensors_bytes)} are for tensors.{_expandable(found, room)}"
        )
    return reserved


def _expandable(found: Trace, room: Room) -> str:
    """Whether the setting that people try first is enough; nothing where the tensors alone are too large."""
    if room.verdict(found.peak_allocated_bytes) is not Verdict.FITS:
        return ""
    failed = found.replayed(EXPANDABLE, max(1, room.for_tensors_bytes)).oom
    return f" With {EXPANDABLE} it {'fails, too' if failed else 'runs'}."


def _out_of_memory(found: Trace, room: Room) -> dict[str, Any] | None:
    """The request that fails where the card is full beside the reserve, and where in the run; None where none does."""
    if room.verdict(found.peak_reserved_bytes) is not Verdict.DOES_NOT_FIT:
        return None
    played = found.replayed(capacity_bytes=max(1, room.for_tensors_bytes))
    if played.oom is None:
        return None
    event = found.events[len(played) - 1]
    phase = "loading of the model" if event.phase == LOADING else str(event.phase)
    return {
        "phase": phase,
        "module": event.block.owner,
        "asked_bytes": played.oom.size_bytes,
        "allocated_bytes": played.oom.allocated_bytes,
        "reason": str(played.oom.reason),
    }
