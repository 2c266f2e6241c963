"""The memory hierarchy of one card: boxes that grow from the registers to the host, and the speed between them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import log2

from ...catalog.devices import Device
from ...catalog.devices import device as device_of
from ...memory.breakdown import format_bytes
from ..units import si
from .marks import FAINT, INK, LINES, Box, Line, Mark, TextMark
from .pictures import MARGIN, WIDTH, Card

TOP, BAR, ROW = 72, 34, 55  # where the first box begins, the height of one, from one to the next
MIDDLE, NARROWEST, WIDEST = 300, 210, 520  # of the boxes, in px
NAMES = {"registers": "registers", "l1": "L1 and shared memory", "l2": "L2 cache", "l3": "last-level cache"}
UNKNOWN = {"registers": "faster still"}  # instead of a figure that no source gives
LINKS = {
    "nvlink": "another GPU's memory, over NVLink",
    "infinity-fabric": "another GPU's memory, over Infinity Fabric",
    "pcie": "the host's memory, over PCIe",
}


@dataclass(frozen=True)
class Level:
    """A box: its name, its bytes where they are one card's, and the bytes per second of reaching it, if known."""

    name: str
    size_bytes: int | None
    bytes_per_s: int | None
    note: str = ""

    @property
    def words(self) -> str:
        size = f" {format_bytes(self.size_bytes)}" if self.size_bytes else ""
        return f"{self.name}{size}{f' at {self.speed}' if self.bytes_per_s else ''}"

    @property
    def speed(self) -> str:
        if self.bytes_per_s:
            return f"{si(self.bytes_per_s, 'B/s')}{self.note}"
        return UNKNOWN.get(self.name, "no figure known")


def hierarchy(title: str, device: str | Device, why: str = "") -> Card:
    """The levels of `device`, nearest to the arithmetic on top; a larger one is wider, but not to scale.

    On the right stands how fast each is read; of a link the speed in one direction. What the catalogue does not know
    is said to be unknown. `why` says below the title what the device is to the reader: "the card in this machine".
    """
    card = device_of(device)
    levels = _levels(card)
    named = f"{card.title} ({why})" if why else card.title
    said = "Above: the arithmetic. Right: how fast each level is read. Widths are not to scale."
    pairs = zip([None, *levels], levels, strict=False)
    rows = (mark for at, (above, level) in enumerate(pairs) for mark in _row(level, TOP + at * ROW, above))
    body = (TextMark(MARGIN, 44, named, 12, FAINT), TextMark(MARGIN, 60, said, 12, FAINT), *rows)
    words = f"Boxes of the {named}, nearest to the arithmetic first: {'; '.join(one.words for one in levels)}."
    return Card(title, TOP + len(levels) * ROW + 8, body, words)


def _levels(card: Device) -> list[Level]:
    kind = str(card.memory_type.value) if card.memory_type else "memory"
    names = {**NAMES, "memory": f"the card's memory, {kind}" if kind != "memory" else "the card's memory"}
    levels = [Level(names[one.name], one.size_bytes, one.bytes_per_s) for one in card.levels()]
    if card.unified:
        return levels
    return [
        *levels,
        *(
            Level(text, None, card.link_bytes_per_s(name), " each way")
            for name, text in LINKS.items()
            if name in card.links
        ),
    ]


def _row(level: Level, y: float, above: Level | None) -> Iterator[Mark]:
    """A box with its name and its bytes, and how much slower it is than the one above it; a link, whose far end is no
    part of the card, is dashed and as wide as any."""
    width = _width(level.size_bytes)
    left, middle = MIDDLE - width / 2, y + BAR / 2 + 4
    colour = LINES[0] if level.size_bytes else "none"
    ink = "#ffffff" if level.size_bytes else INK
    size = format_bytes(level.size_bytes) if level.size_bytes else ""
    if above:
        yield Line(((MIDDLE, y - ROW + BAR), (MIDDLE, y)), FAINT, 2)
        if above.bytes_per_s and level.bytes_per_s:
            yield TextMark(MIDDLE + 8, y - 6.5, f"÷ {above.bytes_per_s / level.bytes_per_s:.0f}", 12, INK, bold=True)
    yield Box(left, y, width, BAR, colour, edge=FAINT, dashed=not level.size_bytes, kind="level", tooltip=level.words)
    yield TextMark(MIDDLE, middle, f"{level.name}  {size}".strip(), 12.5, ink, "middle")
    known = level.bytes_per_s is not None
    yield TextMark(WIDTH - MARGIN, middle, level.speed, 13, INK if known else FAINT, "end", bold=known)


def _width(size_bytes: int | None) -> float:
    """Px for some bytes: NARROWEST for 8 MiB, WIDEST for 256 GiB and for what has no end here."""
    share = 1.0 if size_bytes is None else (log2(size_bytes) - 23) / (38 - 23)
    return NARROWEST + min(max(share, 0.0), 1.0) * (WIDEST - NARROWEST)
