"""Which answer sits on which slot of a batch, forward by forward: one map under the other, on one axis."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from .axes import round_ticks
from .block_maps import OUTLINE, pale
from .marks import CARD, FAINT, LINES, Box, Line, Mark, TextMark
from .pictures import MARGIN, WIDTH, Card
from .words import listed

TOP, ROW, GAP, FOOT = 62, 11, 44, 46  # where the first map begins, a slot, between two maps, and the axis
Slots = Sequence[Sequence[tuple[int, int]]]


def slots(title: str, maps: Mapping[str, Slots], x_label: str = "forwards") -> Card:
    """A map for each of `maps`: a row for each slot, a box from the first forward of an answer to its last."""
    last = max(_end(rows) for rows in maps.values())
    scale = (WIDTH - 2 * MARGIN) / last
    body: list[Mark] = []
    top = float(TOP)
    for name, rows in maps.items():
        body += [TextMark(MARGIN, top - 7, name, 12, bold=True), *_taken(rows, top, scale)]
        body.append(TextMark(MARGIN + _end(rows) * scale - 4, top - 7, _count(rows), 11, FAINT, "end"))
        top += len(rows) * ROW + GAP
    foot = top - GAP + 6
    for tick in round_ticks(0, last):
        body.append(TextMark(MARGIN + tick * scale, foot + 12, f"{tick:,.0f}", 11, FAINT, "middle"))
    body.append(TextMark(WIDTH / 2, foot + 28, x_label, 11, FAINT, "middle"))
    told = (f"{name}: {len(rows)} slots, {_count(rows)}" for name, rows in maps.items())
    return Card(title, foot + FOOT - 8, tuple(body), f"Rows of slots, {x_label} to the right. {listed(list(told), 6)}.")


def _taken(rows: Slots, top: float, scale: float) -> Iterator[Mark]:
    for at, row in enumerate(rows):
        y = top + at * ROW
        yield Box(MARGIN, y, _end(rows) * scale, ROW - 1, CARD, edge=OUTLINE, line=0.5)
        for number, (begin, end) in enumerate(row):
            fill = LINES[0] if number % 2 == 0 else pale(LINES[0])
            yield Box(MARGIN + begin * scale, y, (end - begin) * scale, ROW - 1, fill, edge=CARD, line=0.5)
    x = MARGIN + _end(rows) * scale
    yield Line(((x, top - 4), (x, top + len(rows) * ROW)))


def _end(rows: Slots) -> int:
    return max(end for row in rows for _, end in row)


def _count(rows: Slots) -> str:
    used = sum(end - begin for row in rows for begin, end in row)
    return f"{_end(rows):,} forwards, {used / len(rows) / _end(rows):.0%} of the slots taken"
