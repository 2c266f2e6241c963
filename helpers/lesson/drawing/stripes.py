"""A history of the allocator as PyTorch's viewer draws it: a stripe for each tensor, from its allocation to its free.

    stripes("Two loops", {"keeps the loss": leaking.on_gpu, "mine": read_snapshot("snapshot.pickle")})

Here colours say which tensors are never freed; in the viewer they say nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ...catalog.errors import WorkbookError
from ...memory.allocator import AllocatorReplay, Snapshot
from ...memory.breakdown import format_bytes
from ..units import axis_unit
from .axes import Axis, Plane, round_ticks
from .marks import CARD, LINES, Area, Box, Line, Mark, TextMark, legend
from .pictures import Card

KEPT, FREED = LINES[1], "#b9c4cc"
LEFT, RIGHT, TOP, FOOT, GAP = 64, 744, 76, 270, 20
MOST_EDGES = 300  # stripes up to which each has an edge of its own


@dataclass(frozen=True)
class Stripe:
    """One tensor: its height in bytes, where its foot is from which event on, and whether it is freed at the end."""

    size_bytes: int
    foot: tuple[tuple[int, int], ...]  # (event, bytes below it); a new entry where something below is freed
    end: int
    freed: bool


def stripes(title: str, histories: Mapping[str, AllocatorReplay | Snapshot]) -> Card:
    """The histories side by side on one scale of bytes; WorkbookError where one has no allocation."""
    drawn = {name: list(stacked(history)) for name, history in histories.items()}
    if not drawn or not all(drawn.values()):
        raise WorkbookError("a history without an allocation", "one of a program that ran", "record it while it runs")
    most = max(at + stripe.size_bytes for each in drawn.values() for stripe in each for _, at in stripe.foot)
    unit, unit_name = axis_unit(most)
    up = {value * unit: f"{value:g}" for value in round_ticks(0, 1.05 * most / unit)}
    width = (RIGHT - LEFT - GAP * (len(drawn) - 1)) / len(drawn)
    body: list[Mark] = []
    for number, (name, each) in enumerate(drawn.items()):
        x = LEFT + number * (width + GAP)
        plane = Plane(Axis(0, max(stripe.end for stripe in each), x, x + width), Axis(0, 1.05 * most, FOOT, TOP))
        body += [TextMark(x, TOP - 12, name, 12, bold=True), *_areas(plane, each)]
        body += plane.frame({}, {} if number else up, "allocations and frees, in order")
    styled = [(Box(0, 0, 0, 0, KEPT), "never freed"), (Box(0, 0, 0, 0, FREED), "freed later")]
    body += [TextMark(16, TOP - 12, unit_name, 11), *legend(styled, LEFT, FOOT + 58, RIGHT)]
    return Card(title, FOOT + 74, tuple(body), " ".join(map(_in_words, drawn, drawn.values())))


def stacked(history: AllocatorReplay | Snapshot) -> Iterator[Stripe]:
    """Each tensor as a stripe on those that are older; it sinks when one of them is freed."""
    live: dict[object, tuple[int, list[tuple[int, int]]]] = {}
    at = 0
    for at, (key, size) in enumerate(_events(history)):
        if size:
            live[key] = size, [(at, sum(below for below, _ in live.values()))]
        elif key in live:
            older = [*live].index(key)
            gone, foot = live.pop(key)
            yield Stripe(gone, tuple(foot), at, True)
            for _, above in [*live.values()][older:]:
                above.append((at, above[-1][1] - gone))
    yield from (Stripe(size, tuple(foot), at + 1, False) for size, foot in live.values())


def _events(history: AllocatorReplay | Snapshot) -> Iterator[tuple[object, int]]:
    """(tensor, its bytes) for each allocation, (tensor, 0) for each free."""
    if isinstance(history, Snapshot):
        for event in history.trace():
            if event.action in ("alloc", "free_completed"):
                yield event.address, event.size_bytes if event.action == "alloc" else 0
        return
    for request, outcome in zip(history.requests, history.outcomes, strict=False):
        if request.action in ("alloc", "free"):
            yield request.key, outcome.size_bytes if request.action == "alloc" else 0


def _areas(plane: Plane, each: list[Stripe]) -> Iterator[Mark]:
    for number, stripe in enumerate(sorted(each, key=lambda one: one.foot[0])):
        ends = [*(at for at, _ in stripe.foot[1:]), stripe.end]
        low = [(x, y) for (begin, y), end in zip(stripe.foot, ends, strict=True) for x in (begin, end)]
        high = [(x, y + stripe.size_bytes) for x, y in reversed(low)]
        points = tuple(plane.at(*point) for point in (*low, *high))
        yield Area(points, FREED if stripe.freed else KEPT, 1.0 if number % 2 else 0.75, "stripe")
        if len(each) <= MOST_EDGES:
            yield Line(points[len(low) :], CARD, 0.7)


def _in_words(name: str, each: list[Stripe]) -> str:
    kept = [stripe.size_bytes for stripe in each if not stripe.freed]
    return f"{name}: {len(each)} stripes, of which {len(kept)} are never freed, {format_bytes(sum(kept))}."
