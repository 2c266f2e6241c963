"""The live view: a watcher as lines of text, and the codes that draw them over the ones before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from ..memory.breakdown import format_bytes
from .watcher import CardState, Severity, Watcher

BAR, SPARKS = 30, "▁▂▃▄▅▆▇█"
HISTORY = 60  # columns
CLEAR = "\x1b[H\x1b[2J"
COLOURS = {Severity.OK: "\x1b[32m", Severity.WARNING: "\x1b[33m", Severity.CRITICAL: "\x1b[31m"}
PLAIN = "\x1b[0m"


def screen(watcher: Watcher, coloured: bool = False) -> str:
    """All cards, one block each, then the latest events. Without colours it is the same text."""
    lines = [line for state in watcher.states() for line in _card(state, coloured)]
    return "\n".join([*lines, *(f"  {event}" for event in list(watcher.events)[-5:])])


def _card(state: CardState, coloured: bool) -> Iterator[str]:
    reading = state.reading
    word = f"{COLOURS[state.severity]}{state.severity}{PLAIN}" if coloured else str(state.severity)
    yield f"GPU {reading.gpu}  {reading.name}  {word}"
    if reading.lost:
        yield f"  lost: {reading.lost}"
        return
    share = reading.used_bytes / reading.total_bytes if reading.total_bytes else 0.0
    used = f"{format_bytes(reading.used_bytes)} of {format_bytes(reading.total_bytes)} used ({share:.0%})"
    busy = "" if reading.utilization is None else f", utilization {reading.utilization:.0%}"
    yield f"  {bar(share)}  {used}{busy}"
    yield f"  {sparkline(state.history)}  {state.forecast}"
    for one in state.processes:
        allocated, reserved = format_bytes(one.allocated_bytes), format_bytes(one.reserved_bytes)
        trouble = f", {one.alloc_retries} retries, {one.ooms} out of memory" if one.alloc_retries or one.ooms else ""
        peak = format_bytes(one.peak_bytes)
        yield f"  process {one.pid}: {allocated} allocated (peak {peak}), {reserved} reserved{trouble}"


def bar(share: float, width: int = BAR) -> str:
    """
    >>> bar(0.5, width=4)
    '██··'
    """
    full = round(min(max(share, 0.0), 1.0) * width)
    return "█" * full + "·" * (width - full)


def sparkline(values: Sequence[float], width: int = HISTORY) -> str:
    """The values from left to right, oldest first, between their own lowest and highest; the highest of each column.

    >>> sparkline([0, 1, 2, 3, 4, 5, 6, 7])
    '▁▂▃▄▅▆▇█'
    """
    columns = min(width, len(values))
    edges = [column * len(values) // columns for column in range(columns + 1)] if columns else []
    highest = [max(values[start:end]) for start, end in pairwise(edges)]
    low = min(highest, default=0)
    span = max(highest, default=0) - low
    return "".join(SPARKS[int((value - low) / span * (len(SPARKS) - 1)) if span else 0] for value in highest)
