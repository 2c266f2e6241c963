"""The allocation-step calculator: a trace through the caching allocator, one event at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from ...catalog.errors import WorkbookError
from ...memory.allocator import Replay, at_step, replay
from ...memory.closed_form.breakdown import format_bytes
from ..drawing.pictures import Picture
from ..drawing.segments import reserved, segments
from ..drawing.segments_svg import Frame, segments_svg, short
from .shell import Answer, Calculator
from .traces import TRACES, trace

SETTINGS = ("default", "max_split_size_mb:20", "expandable_segments:True")


@dataclass(frozen=True)
class AllocationAnswer(Answer):
    """The allocator after some events: `ran` is the replay up to there, `full` that of the whole trace."""

    ran: Replay
    full: Replay
    frame: Frame
    capacity_bytes: int

    @property
    def picture(self) -> Picture:
        return segments_svg(self.title, self.ran, self.full, self.frame, self.capacity_bytes)

    @property
    def png(self) -> bytes:
        if not self.ran.segments:
            return reserved(self.title, self.full, self.capacity_bytes).png
        return segments(self.title, self.ran).png

    @property
    def figures(self) -> dict[str, object]:
        """Every number of the answer by name, for JSON."""
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
    if isinstance(step, bool) or not isinstance(step, int) or step < 1:
        raise WorkbookError(f"step is {step!r}", "a whole number from 1 up", "pass step=1 for the first event")
    full, frame = _whole(trace_name, "" if settings == "default" else settings)
    at = min(step, len(full))
    ran = at_step(chosen.steps, at, full.settings, chosen.capacity_bytes)
    event, did = chosen.steps[at - 1], full.told(at - 1).partition(": ")[2]
    title = f"event {at} of {len(chosen.steps)}: {event}"
    sentence = " ".join((f"{did[0].upper()}{did[1:]}.", *_end(trace_name, full, at)))
    return AllocationAnswer(
        title, tuple(_formula(ran, chosen.capacity_bytes)), sentence, ran, full, frame, chosen.capacity_bytes
    )


@lru_cache(maxsize=32)
def _whole(trace_name: str, settings: str) -> tuple[Replay, Frame]:
    """The whole trace, and the frame that holds all its stages. Only the text is a key, so the cache stays small."""
    chosen = trace(trace_name)
    full = replay(chosen.steps, settings, chosen.capacity_bytes)
    stages = [at_step(chosen.steps, at, full.settings, chosen.capacity_bytes) for at in range(1, len(full) + 1)]
    return full, Frame.of(stages)


def _formula(ran: Replay, capacity_bytes: int) -> Iterator[str]:
    used, held = ran.allocated[-1], ran.reserved[-1]
    blocks = [block for segment in ran.segments for block in segment.blocks]
    hole = max((block.size_bytes for block in blocks if block.is_free), default=0)
    used_sizes = [block.size_bytes for block in blocks if not block.is_free]
    rows = {
        "allocated": (used, _sum("blocks", used_sizes)),
        "reserved": (held, _sum("segments", [segment.size_bytes for segment in ran.segments])),
        "unused": (
            held - used,
            f"in the cache; the largest hole is {format_bytes(hole)}" if hole else "nothing in the cache",
        ),
        "driver": (capacity_bytes - held, f"of the card's {short(capacity_bytes)} not yet asked for"),
    }
    return (f"{name:<10}{format_bytes(value):>12}   {text}".rstrip() for name, (value, text) in rows.items())


def _sum(what: str, sizes: Sequence[int]) -> str:
    """The terms where they fit on a line, else how many there are."""
    return " + ".join(map(short, sizes)) if len(sizes) <= 6 else f"{len(sizes)} {what}"


def _end(trace_name: str, full: Replay, at: int) -> Iterator[str]:
    """At the last event: what came of it, and what default settings make of the same trace."""
    if at < len(full):
        return
    allocated, most = format_bytes(full.peak_allocated_bytes), format_bytes(full.peak_reserved_bytes)
    yield f"At its peak the trace had {allocated} allocated and {most} reserved."
    default = _whole(trace_name, "")[0]
    if full.settings == default.settings:
        yield trace(trace_name).watch
    elif default.oom:
        yield f"Default settings fail here: {default.told(len(default) - 1)}."
    else:
        yield f"Default settings reserve {format_bytes(default.peak_reserved_bytes)}."


class StepCalculator(Calculator):
    """A calculator with a control called step, and beside it a button that plays the events one after the other."""

    def widget(self):
        """The live calculator with its player, which runs to the end of the chosen trace."""
        import ipywidgets as w

        box = super().widget()
        grid, output = box.children
        controls = dict(zip(self.options, grid.children, strict=True))
        step, names = controls["step"], controls["trace_name"]
        play = w.Play(min=0, max=_last(names.value), value=step.index, interval=1200, description="play the events")
        w.link((play, "value"), (step, "index"))
        names.observe(lambda change: setattr(play, "max", _last(change["new"])), names="value")
        box.children = (grid, play, output)
        return box


def _last(trace_name: str) -> int:
    return len(trace(trace_name).steps) - 1


def allocation(**start: object) -> Calculator:
    """The live calculator. `start` moves its controls: `allocation(trace_name="training", step=12)`."""
    longest = max(len(entry.steps) for entry in TRACES.values())
    options = {
        "trace_name": ("trace", list(TRACES)),
        "settings": ("settings", list(SETTINGS)),
        "step": ("event", list(range(1, longest + 1))),
    }
    first = {"trace_name": "batch first", "settings": "default", "step": 3}
    return StepCalculator(allocation_answer, options, {**first, **start})
