"""Numbers bit by bit: a row of boxes per format, and the numbers that a format has around a value."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ..units import plain
from .axes import Axis
from .marks import FAINT, INK, LINES, ON_COLOUR, Box, Dot, Line, Mark, TextMark, legend, text_width
from .pictures import MARGIN, WIDTH, Card
from .words import listed

KINDS = {"sign": "#CC79A7", "exponent": "#56B4E9", "mantissa": "#E69F00", "scale": "#BBBBBB"}
BIT, ROW, TOP = 10.6, 25, 62  # width of a bit; from one row to the next; where rows begin
LEFT, STORED, ERROR, HAPPENED = 84, 540, 608, 618  # px: bits, and the ends of two columns and the start of the last
SIZE = 11.5


@dataclass(frozen=True)
class BitRow:
    """A format's row: its bits by what they are, and what is written beside them."""

    name: str
    bits: tuple[tuple[str, str], ...]
    stored: str
    error: str
    happened: str


@dataclass(frozen=True)
class DrawnGrid:
    """Numbers of a format in order, the value that was given, and the one of them that is stored for it."""

    numbers: tuple[float, ...]
    given: float
    stored: float


def bit_rows(title: str, rows: Sequence[BitRow], marked: str) -> Card:
    """One row per format: its bits as boxes, the stored value, the error, what happened. `marked` is a bold row."""
    marks: list[Mark] = []
    heads = ((LEFT, "bits", "start"), (STORED, "stored", "end"), (ERROR, "error", "end"), (HAPPENED, "", "start"))
    marks += [TextMark(x, TOP - 10, text, 11, FAINT, anchor) for x, text, anchor in heads if text]  # type: ignore[arg-type]
    for at, row in enumerate(rows):
        marks += _row(row, TOP + ROW * at, row.name == marked)
    below = TOP + ROW * len(rows) + 18
    kinds = [kind for kind in KINDS if any(what == kind for row in rows for what, _ in row.bits)]
    names = {"scale": "scale of the block, which its values share"}
    marks += legend(
        ((Box(0, 0, 0, 0, KINDS[kind]), names.get(kind, kind)) for kind in kinds), LEFT, below, WIDTH - MARGIN
    )
    return Card(title, below + 14, tuple(marks), _words(rows))


def _row(row: BitRow, y: float, bold: bool) -> Iterator[Mark]:
    base = y + 14
    yield TextMark(LEFT - 10, base, row.name, SIZE, INK, "end", bold)
    x = float(LEFT)
    for what, bits in row.bits:
        for bit in bits:
            yield Box(x, y, BIT, 19, KINDS[what], kind="bit", part=what, tooltip=f"{row.name}: {what} {bits}")
            yield TextMark(x + BIT / 2, base, bit, 10.5, ON_COLOUR, "middle")
            x += BIT
        x += 8 if what == "scale" else 3
    yield TextMark(STORED, base, row.stored, SIZE, INK, "end", bold)
    yield TextMark(ERROR, base, row.error, SIZE, INK, "end", bold)
    yield TextMark(HAPPENED, base, row.happened, SIZE, INK, bold=bold)


def _words(rows: Sequence[BitRow]) -> str:
    each = (f"{row.name} {' '.join(bits for _, bits in row.bits)} is {row.stored}, {row.happened}" for row in rows)
    return f"Bits as boxes: sign, exponent, mantissa. {listed(each)}."


def number_line(title: str, grid: DrawnGrid) -> Card:
    """The format's numbers as ticks on a line, the given value as a ring over it, and an arrow to what is stored.

    A value beyond the last number stands at the edge of the picture.
    """
    numbers = grid.numbers
    gap = max([high - low for low, high in pairwise(numbers)], default=abs(numbers[0]) / 8)
    axis = Axis(numbers[0] - gap / 2, numbers[-1] + gap / 2, MARGIN + 30, WIDTH - MARGIN - 30)
    foot, inside = 78.0, min(max(grid.given, axis.low), axis.high)
    marks: list[Mark] = [Line(((axis.start, foot), (axis.end, foot)), kind="axis")]
    for number in numbers:
        stored = number == grid.stored
        x = axis.at(number)
        marks.append(Line(((x, foot - 7), (x, foot + 7)), INK if stored else FAINT, 3 if stored else 1, kind="number"))
        marks.append(TextMark(x, foot + 22, plain(number), SIZE, INK if stored else FAINT, "middle", stored))
    x = axis.at(inside)
    if grid.stored in numbers:
        marks.append(Line(((x, foot - 16), (axis.at(grid.stored), foot - 3)), LINES[1], 1.5, kind="rounding"))
    marks.append(Dot(x, foot - 20, LINES[1], LINES[1], 4, kind="given"))
    words = f"{plain(grid.given)} was given"
    half = text_width(words, SIZE) / 2
    marks.append(TextMark(min(max(x, MARGIN + half), WIDTH - MARGIN - half), foot - 30, words, SIZE, INK, "middle"))
    told = f"Numbers on a line: {listed(map(plain, numbers))}. {words}, {plain(grid.stored)} is stored."
    return Card(title, foot + 36, tuple(marks), told)
