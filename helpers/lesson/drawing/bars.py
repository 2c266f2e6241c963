"""Stacked bars of bytes by part, against the capacities that they must fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ...memory.breakdown import PARTS, format_bytes
from ..units import axis_unit
from .marks import INK, ON_A_CARD, ON_COLOUR, WEIGHTS, Box, Line, Mark, TextMark, colour_of, label, legend, text_width
from .pictures import MARGIN, WIDTH, Card
from .words import listed, of_parts

Parts = Mapping[str, int]  # bytes by part
TOP, BAR, ROW, THIN = 46, 44, 34, 24  # where bars begin, the only bar, from one of several to the next, one of them
ORDER = (*WEIGHTS, *PARTS, *ON_A_CARD)
DARK = (
    "scores",
    "parameters",
    "optimizer",
    "activations",
    "quantized",
    "kept",
    "PyTorch's tensors",
    "asked for",
)  # white is easier to read on these than ink
SIZE = 12.5


def stacked_bars(
    title: str,
    rows: Mapping[str, Parts] | Sequence[tuple[str, Parts]],
    capacities: Mapping[str, int] | None = None,
    marked: str = "",
    least_bytes: int = 0,
    least_px: float = 0,
) -> Card:
    """One bar for each of `rows` with its name and its total, on one scale; a dashed line through all of them at each
    of `capacities`.

    `rows` is a mapping, or (name, parts) pairs where names repeat; a single one may have the name "". The name of
    `marked` is bold, and the legend tells its sizes. The scale reaches past every total and capacity: none is cut.
    Pictures that are to be compared give the `least_bytes` that it reaches, and the `least_px` that names take.
    """
    pairs = list(rows.items()) if isinstance(rows, Mapping) else list(rows)
    totals = [sum(parts.values()) for _, parts in pairs]
    alone = len(pairs) == 1 and not pairs[0][0]
    names = max(least_px, *(text_width(name, SIZE, name == marked) for name, _ in pairs))
    left = MARGIN if alone else MARGIN + 10 + names
    room = 0.0 if alone else 10 + max(text_width(format_bytes(one), SIZE, bold=True) for one in (least_bytes, *totals))
    most = max([1, least_bytes, *totals, *(capacities or {}).values()])
    px = (WIDTH - left - room - MARGIN) / (1.06 * most if alone else most)  # of a byte
    bar, row = (BAR, BAR) if alone else (THIN, ROW)
    lines = [(f"{name} {format_bytes(size)}", left + size * px) for name, size in (capacities or {}).items()]
    foot = TOP + row * (len(pairs) - 1) + bar
    unit = axis_unit(most)[0]
    body: list[Mark] = []
    numbers: list[Mark] = []
    for at, ((name, parts), total) in enumerate(zip(pairs, totals, strict=True)):
        top = TOP + row * at
        body += _blocks(parts, px, left, top, bar)
        numbers += _numbers(parts, px, left, top + bar / 2 + 4.5, unit, [x for _, x in lines])
        if not alone:
            bold = bool(marked) and name == marked
            numbers.append(TextMark(left - 10, top + 16, name, SIZE, anchor="end", bold=bold))
            beside = _clear_of(
                [x for _, x in lines], left + total * px + 6, text_width(format_bytes(total), SIZE, bold)
            )
            numbers.append(TextMark(beside, top + 16, format_bytes(total), SIZE, bold=bold, halo=True))
    rows_of_names = _rows_of_names(lines)
    for (text, x), at in zip(lines, rows_of_names, strict=True):
        body += _capacity(text, x, foot, at, _is_left(text, x, lines))
    sized = pairs[0][1] if alone else dict(pairs).get(marked, {})
    below = foot + (46 + 15 * max(rows_of_names, default=0) if lines or alone else 34)
    key = legend(_entries([parts for _, parts in pairs], sized), MARGIN, below, WIDTH - MARGIN)
    last = max((mark.y for mark in key if isinstance(mark, TextMark)), default=below)
    words = _words(pairs, capacities or {})
    return Card(title, last + (32 if last == below and alone else 16), (*body, *numbers, *key), words)


def _words(pairs: Sequence[tuple[str, Parts]], capacities: Mapping[str, int]) -> str:
    """Each bar with its total and its parts, and the lines."""
    bars = [
        f"{name}{': ' * bool(name)}{format_bytes(sum(parts.values()))} ({of_parts(parts)})" for name, parts in pairs
    ]
    lines = [f"{name} {format_bytes(size)}" for name, size in capacities.items()]
    head = "Stacked bars" if len(bars) > 1 else "A stacked bar"
    return f"{head} of bytes. {'; '.join(bars)}." + f" Dashed: {listed(lines)}." * bool(lines)


def _clear_of(lines: Sequence[float], x: float, width: float) -> float:
    """Where text of this width begins that would begin at `x`: behind the last line that would cross it."""
    for line in sorted(lines):
        if x - 4 < line < x + width + 4:
            x = line + 6
    return x


def _blocks(parts: Parts, px: float, left: float, top: float, height: float) -> Iterator[Mark]:
    for part, x, width in _placed(parts, px, left):
        tooltip = f"{label(part, parts)}: {format_bytes(parts[part])}"
        yield Box(x, top, width, height, colour_of(part), edge="none", kind="part", part=part, tooltip=tooltip)


def _numbers(parts: Parts, px: float, left: float, y: float, unit: int, lines: Sequence[float]) -> Iterator[Mark]:
    """Each part's size in its middle, where there is room for it, or beside the line that would cross it."""
    for part, x, width in _placed(parts, px, left):
        size = f"{parts[part] / unit:,.1f}"
        half, middle = text_width(size, SIZE) / 2 + 4, x + width / 2
        if line := next((line for line in lines if abs(line - middle) < half), None):
            middle = line - half if line - 2 * half > x else line + half
        if x < middle - half and middle + half < x + width:
            yield TextMark(middle, y, size, SIZE, "#ffffff" if part in DARK else ON_COLOUR, "middle")


def _placed(parts: Parts, px: float, left: float) -> Iterator[tuple[str, float, float]]:
    for part in sorted(parts, key=part_order):
        yield part, left, parts[part] * px
        left += parts[part] * px


def _capacity(text: str, x: float, foot: float, row: int, is_left: bool) -> Iterator[Mark]:
    yield Line(((x, TOP - 8), (x, foot + 8)), INK, 2, "5 3", kind="capacity")
    yield TextMark(x - 6 if is_left else x + 6, foot + 20 + 15 * row, text, 12, INK, "end" if is_left else "start")


def _is_left(text: str, x: float, lines: Sequence[tuple[str, float]]) -> bool:
    """Whether a name ends left of its line: it does in the right half, or where it would reach under another line."""
    end = x + 12 + text_width(text, 12)
    return x > WIDTH / 2 or any(x < other < end for _, other in lines)


def _rows_of_names(lines: Sequence[tuple[str, float]]) -> list[int]:
    """For each (name, x) of a line the first row of text, from 0, in which its name is clear of those before it."""
    taken: list[list[tuple[float, float]]] = []
    rows: list[int] = []
    for text, x in lines:
        width = text_width(text, 12)
        start = x - 6 - width if _is_left(text, x, lines) else x + 6
        end = start + width + 10
        free = (row for row, spans in enumerate(taken) if all(end <= a or start >= b for a, b in spans))
        row = next(free, len(taken))
        if row == len(taken):
            taken.append([])
        taken[row].append((start, end))
        rows.append(row)
    return rows


def _entries(rows: Sequence[Parts], sized: Parts) -> Iterator[tuple[Box, str]]:
    """Every part that is drawn, and its size in the bar `sized`. Without sizes none that is too thin to be seen."""
    thin = 0 if sized else max(sum(parts.values()) for parts in rows) / 1000
    seen = {part for parts in rows for part, size in parts.items() if size >= thin}
    for part in sorted(seen, key=part_order):
        size = f" {format_bytes(sized.get(part, 0))}" if sized else ""
        yield Box(0, 0, 0, 0, colour_of(part), edge="none"), f"{label(part, seen)}{size}"


def part_order(part: str) -> int:
    """Where a part stands in every picture; one that nobody knows comes last."""
    return ORDER.index(part) if part in ORDER else len(ORDER)
