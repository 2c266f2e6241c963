"""Bars against a limit: bytes on several memories, each as a share of what that memory holds; seconds by place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ...memory.breakdown import format_bytes
from ..units import percent, si
from .bars import part_order
from .block_maps import OUTLINE
from .marks import CARD, INK, LINES, Box, Line, Mark, TextMark, colour_of, label, legend, text_width
from .pictures import MARGIN, WIDTH, Card
from .words import listed, of_parts

TOP, BAR, ROW = 62, 22, 48  # where the first bar begins, its height, from one to the next, with its name above it
SIZE = 12


@dataclass(frozen=True)
class Memory:
    """One memory: its name, the bytes on it by part, and how many it holds; None is a place that only carries."""

    name: str
    parts: Mapping[str, int]
    capacity_bytes: int | None
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def total(self) -> int:
        return sum(self.parts.values())

    @property
    def share(self) -> float:
        return self.total / self.capacity_bytes if self.capacity_bytes else 0.0

    @property
    def words(self) -> str:
        """Bytes of bytes, and the share."""
        if not self.capacity_bytes:
            return f"{format_bytes(self.total)}, of a memory whose capacity is not known"
        return f"{format_bytes(self.total)} of {format_bytes(self.capacity_bytes)}, {percent(self.share)}"


def memory_shares(title: str, memories: Sequence[Memory]) -> Card:
    """A bar for each of `memories`, as long as the share that is taken of it; dashed, where each of them is full.

    The scale reaches past every bar: none is cut. A memory without a capacity has its bytes in words alone.
    """
    most = 1.04 * max([1.0, *(one.share for one in memories)])
    px = (WIDTH - 2 * MARGIN) / most
    known = [one for one in memories if one.capacity_bytes]
    body: list[Mark] = []
    full, foot = MARGIN + px, float(TOP - 26)
    for at, one in enumerate(known):
        y = TOP + at * ROW
        foot = y + BAR
        body.append(TextMark(MARGIN, y - 6, f"{one.name}: {one.words}", SIZE))
        body += _parts(one, px, y)
        body.append(Line(((full, y - 3), (full, foot + 3)), INK, 2, "5 3", kind="capacity"))
    if known:
        is_left = full > WIDTH / 2
        body.append(
            TextMark(full - 6 if is_left else full + 6, foot + 16, "full", SIZE, INK, "end" if is_left else "start")
        )
    for one in (one for one in memories if not one.capacity_bytes):
        foot += 22
        body.append(TextMark(MARGIN, foot, f"{one.name}: {one.words}", SIZE))
    key = legend(_entries(known), MARGIN, foot + 38, WIDTH - MARGIN)
    last = max((mark.y for mark in key if isinstance(mark, TextMark)), default=foot + 20)
    told = [f"{one.name}: {one.words} ({of_parts(one.parts, one.labels)})" for one in memories]
    return Card(title, last + 16, (*body, *key), f"Bars of shares of each memory. {'; '.join(told)}. Dashed: full.")


def _parts(one: Memory, px: float, y: float) -> Iterator[Mark]:
    x, capacity = float(MARGIN), one.capacity_bytes or 1
    yield Box(x, y, px, BAR, CARD, edge=OUTLINE, kind="memory", part=one.name)
    for part in sorted(one.parts, key=part_order):
        width, name = one.parts[part] / capacity * px, one.labels.get(part, label(part))
        tooltip = f"{name}: {format_bytes(one.parts[part])}"
        yield Box(x, y, width, BAR, colour_of(part), edge="none", kind="part", part=part, tooltip=tooltip)
        x += width


def _entries(memories: Sequence[Memory]) -> Iterator[tuple[Box, str]]:
    """Every part once, with its bytes where no name stands for parts of two memories."""
    named = [(part, one.labels.get(part, label(part)), size) for one in memories for part, size in one.parts.items()]
    sizes = {(part, name): size for part, name, size in named if size}
    is_clear = len(sizes) == sum(1 for *_, size in named if size)
    for (part, name), size in sorted(sizes.items(), key=lambda entry: part_order(entry[0][0])):
        yield Box(0, 0, 0, 0, colour_of(part), edge="none"), f"{name} {format_bytes(size)}" if is_clear else name


def time_bars(title: str, seconds: Mapping[str, float], limit: tuple[str, float], marked: str = "") -> Card:
    """A bar of seconds for each name, against a dashed line at `limit` (its name, its seconds).

    Bars that pass the line have another colour than those that stay below it; the name of `marked` is bold.
    """
    named, limit_s = limit
    most = 1.02 * max(limit_s, *seconds.values())
    left = MARGIN + 10 + max(text_width(name, SIZE, name == marked) for name in seconds)
    room = 12 + max(text_width(si(value, "s"), SIZE, bold=True) for value in seconds.values())
    px = (WIDTH - left - room - MARGIN) / most
    x, row = left + limit_s * px, BAR + 10
    foot = TOP - 16 + row * (len(seconds) - 1) + BAR
    body: list[Mark] = []
    numbers: list[Mark] = []
    for at, (name, value) in enumerate(seconds.items()):
        y, bold = TOP - 16 + at * row, name == marked
        body.append(TextMark(left - 8, y + BAR / 2 + 4, name, SIZE, anchor="end", bold=bold))
        colour, tooltip = LINES[1 if value > limit_s else 0], f"{name}: {si(value, 's')}"
        body.append(Box(left, y, value * px, BAR, colour, edge="none", kind="time", part=name, tooltip=tooltip))
        beside, width = left + value * px + 6, text_width(si(value, "s"), SIZE, bold)
        beside = x + 6 if beside - 4 < x < beside + width + 4 else beside
        numbers.append(TextMark(beside, y + BAR / 2 + 4, si(value, "s"), SIZE, bold=bold, halo=True))
    body.append(Line(((x, TOP - 22), (x, foot + 6)), INK, 2, "5 3", kind="limit"))
    is_left, text = x > WIDTH / 2, f"{named} {si(limit_s, 's')}"
    body.append(TextMark(x - 6 if is_left else x + 6, foot + 20, text, SIZE, INK, "end" if is_left else "start"))
    told = listed(f"{name} {si(value, 's')}" for name, value in seconds.items())
    return Card(title, foot + 32, (*body, *numbers), f"Bars of seconds: {told}. Dashed: {text}.")
