"""The allocation-step calculator: a small trace through the caching allocator, one event at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ...catalog.errors import require_name, require_whole
from ...memory.allocator import MIB, AllocationRequest, AllocatorReplay, alloc, empty_cache, free, replay
from ...memory.breakdown import format_bytes
from ...questions.parameter import Parameter, whole
from ...questions.question import Question
from ...questions.setups import Values
from ..drawing.pictures import Card
from ..drawing.segments import SegmentGrid, segments_at_event
from ..units import short_bytes
from .answers import CalculatorAnswer
from .calculator import STEP, Calculator

SETTINGS = ("default", "max_split_size_mb:20", "expandable_segments:True")


@dataclass(frozen=True)
class AllocationAnswer(CalculatorAnswer):
    """The allocator after some events: `ran` is the replay up to there, `full` that of the whole trace."""

    trace: ReadyTrace
    ran: AllocatorReplay
    full: AllocatorReplay
    default: AllocatorReplay  # of the whole trace with default settings
    grid: SegmentGrid
    trace_name: str
    settings: str

    @property
    def title(self) -> str:
        at = len(self.ran)
        return f"event {at} of {len(self.trace.steps)}: {self.trace.steps[at - 1]}"

    @property
    def question(self) -> Question:
        return ALLOCATION

    @property
    def asked(self) -> dict[str, Any]:
        return {"trace_name": self.trace_name, "settings": self.settings, "step": len(self.ran)}

    def lines(self) -> Iterator[str]:
        return _lines(self.ran, self.trace.capacity_bytes)

    def sentences(self) -> Iterator[str]:
        did = str(self.ran.oom or self.ran.outcomes[-1])
        yield f"{did[0].upper()}{did[1:]}."
        if len(self.ran) == len(self.full):
            yield from self._end()

    def _end(self) -> Iterator[str]:
        """At the last event: what came of it, and what default settings make of the same trace."""
        full, default = self.full, self.default
        allocated, most = format_bytes(full.peak_allocated_bytes), format_bytes(full.peak_reserved_bytes)
        yield f"At its peak the trace had {allocated} allocated and {most} reserved."
        if full.settings == default.settings:
            yield self.trace.watch
        elif default.oom:
            yield f"Default settings fail here: {default.format_event(len(default) - 1)}."
        else:
            yield f"Default settings reserve {format_bytes(default.peak_reserved_bytes)}."

    @property
    def cards(self) -> tuple[Card, ...]:
        return (segments_at_event(self.title, self.ran, self.full, self.grid, self.trace.capacity_bytes),)

    @property
    def figures(self) -> dict[str, Any]:
        ran = self.ran
        return {
            "allocated_bytes": ran.allocated[-1],
            "reserved_bytes": ran.reserved[-1],
            "largest_free_bytes": max((segment.largest_free_bytes for segment in ran.segments), default=0),
            "outcome": ran.outcomes[-1].kind,
            "oom": ran.oom.reason if ran.oom else None,
        }


def allocation_answer(trace_name: str, settings: str = "default", step: int = 1) -> AllocationAnswer:
    """What event `step` (from 1) of a ready trace did, and how the segments lie after it.

    A step past the end, or past the request that fails, shows the last event. `settings` is "default" or text as in
    PYTORCH_CUDA_ALLOC_CONF. WorkbookError for an unknown trace or setting and for a step below 1.

    >>> allocation_answer("batch first", step=7).figures["oom"]
    'fragmented'
    """
    chosen = trace(trace_name)
    require_whole("step", step, do="pass step=1 for the first event")
    full, grid = _whole(trace_name, "" if settings == "default" else settings)
    at = min(step, len(full))
    ran = replay(chosen.steps[:at], full.settings, chosen.capacity_bytes)
    return AllocationAnswer(chosen, ran, full, _whole(trace_name, "")[0], grid, trace_name, settings)


@lru_cache(maxsize=32)
def _whole(trace_name: str, settings: str) -> tuple[AllocatorReplay, SegmentGrid]:
    """The whole trace, and the grid that holds all its stages. Only the text is a key, so the cache stays small."""
    chosen = trace(trace_name)
    full = replay(chosen.steps, settings, chosen.capacity_bytes)
    stages = [replay(chosen.steps[:at], full.settings, chosen.capacity_bytes) for at in range(1, len(full) + 1)]
    return full, SegmentGrid.of(stages)


def _lines(ran: AllocatorReplay, capacity_bytes: int) -> Iterator[str]:
    used, held = ran.allocated[-1], ran.reserved[-1]
    blocks = [block for segment in ran.segments for block in segment.blocks]
    hole = max((block.size_bytes for block in blocks if block.is_free), default=0)
    in_cache = f"in the cache; the largest hole is {format_bytes(hole)}" if hole else "nothing in the cache"
    rows = {
        "allocated": (used, _sum("blocks", [block.size_bytes for block in blocks if not block.is_free])),
        "reserved": (held, _sum("segments", [segment.size_bytes for segment in ran.segments])),
        "unused": (held - used, in_cache),
        "driver": (capacity_bytes - held, f"of the card's {short_bytes(capacity_bytes)} not yet asked for"),
    }
    return (f"{name:<10}{format_bytes(value):>12}   {text}".rstrip() for name, (value, text) in rows.items())


def _sum(what: str, sizes: Sequence[int]) -> str:
    """The terms where they fit on a line, else how many there are."""
    return " + ".join(map(short_bytes, sizes)) if len(sizes) <= 6 else f"{len(sizes)} {what}"


def allocation(**start: object) -> Calculator:
    """The live calculator. `start` moves its controls: `allocation(trace_name="training", step=12)`."""
    return Calculator(ALLOCATION, start)


def _last(values: Values) -> int:
    return len(trace(values["trace_name"]).steps)


def _longest(start: Values) -> int:
    return max(len(entry.steps) for entry in TRACES.values())


@dataclass(frozen=True)
class ReadyTrace:
    """A trace for a card of `capacity_bytes`; `watch` says what default settings make of it."""

    steps: tuple[AllocationRequest, ...]
    watch: str
    capacity_bytes: int = 64 * MIB


def trace(name: str) -> ReadyTrace:
    """The trace called `name`; WorkbookError with the nearest match otherwise."""
    return TRACES[require_name("trace", name, TRACES)]


def _mib(name: str, size: float) -> AllocationRequest:
    return alloc(name, int(size * MIB))


def _kv_cache() -> Iterator[AllocationRequest]:
    """torch.cat makes the longer cache before the shorter one is freed."""
    for at, size in enumerate(range(12, 44, 4)):
        yield _mib(f"kv {at}", size)
        if at:
            yield free(f"kv {at - 1}")


def _training() -> Iterator[AllocationRequest]:
    """Two steps of a two-layer model, the second with a longer sequence."""
    yield from (_mib("W1", 16), _mib("W2", 16))
    for step, tokens in (("", 1.0), ("'", 1.25)):
        yield from (_mib(f"act1{step}", 12 * tokens), _mib(f"act2{step}", 12 * tokens))
        yield from (_mib(f"logits{step}", 22 * tokens), _mib(f"dlogits{step}", 22 * tokens), free(f"logits{step}"))
        yield from (_mib(f"dW2{step}", 16), free(f"dlogits{step}"), free(f"act2{step}"))
        yield from (_mib(f"dW1{step}", 16), free(f"act1{step}"))
        if not step:
            yield from (_mib("m", 32), _mib("v", 32))
        yield from (_mib(f"update{step}", 32), free(f"update{step}"), free(f"dW1{step}"), free(f"dW2{step}"))


def _equal_steps() -> Iterator[AllocationRequest]:
    """The same three sizes twice: best fit starts from other holes the second time."""
    for step in ("", "'"):
        yield from (_mib(f"a{step}", 3), _mib(f"b{step}", 18), _mib(f"c{step}", 17))
        yield from (free(f"a{step}"), free(f"b{step}"), free(f"c{step}"))


def _small() -> Iterator[AllocationRequest]:
    yield from (alloc("step count", 8), alloc("norm", 5000), alloc("bias", 700 * 1024), alloc("bias 2", 700 * 1024))
    yield from (alloc("bias 3", 1000 * 1024), free("norm"), alloc("loss", 4), free("bias"), free("bias 2"))
    yield from (alloc("just small", MIB), alloc("just large", MIB + 1), empty_cache())


_WEIGHTS, _BATCH = _mib("weights", 12), (_mib("batch", 40), free("batch"))
_LATER = (_mib("scratch", 24), free("scratch"), empty_cache(), _mib("batch 2", 36))
TRACES = {
    "batch first": ReadyTrace(
        (*_BATCH, _WEIGHTS, *_LATER),  # a tensor that stays is cut out of the place that a large one left
        "The weights live on inside the first batch's segment, so it can neither serve nor go back.",
    ),
    "weights first": ReadyTrace(
        (_WEIGHTS, *_BATCH, *_LATER),
        "The same tensors as in batch first, the one that stays allocated first: nothing is cut.",
    ),
    "KV cache by cat": ReadyTrace(
        tuple(_kv_cache()), "Each cache is larger than every hole that the earlier ones left.", 256 * MIB
    ),
    "training": ReadyTrace(
        tuple(_training()), "The longer sequence of the second step fits few holes of the first.", 240 * MIB
    ),
    "equal steps": ReadyTrace(
        tuple(_equal_steps()), "The second step asks for the same sizes and needs more: the 3 MiB took another place."
    ),
    "small tensors": ReadyTrace(
        tuple(_small()), "Up to 1 MiB the small pool serves, from segments of 2 MiB; one byte more takes 20 MiB."
    ),
}

ALLOCATION = Question(
    "allocation",
    "a small trace through the caching allocator, up to one event",
    allocation_answer,
    (
        Parameter("trace_name", ", ".join(TRACES), "batch first", flag="--trace", always=True).with_control(
            "trace", tuple(TRACES)
        ),
        Parameter("settings", "as in PYTORCH_ALLOC_CONF (default: PyTorch's)", "default").with_control(
            "settings", SETTINGS
        ),
        Parameter(STEP, "event of the trace, from 1", 1, whole, always=True).with_control("event", (), 3),
    ),
    units="bytes and slots",
    title="The caching allocator",
    asks="Why does a request fail although memory is free?",
    invites="Go on, event by event, until a request fails. Then choose another trace, or other settings.",
    controls=("trace_name", "settings", STEP),
    last=_last,
    longest=_longest,
    interval_ms=1200,
)
