"""A tensor's values by powers of two over what each format can hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..units import share_of_all
from .axes import Axis, bottom
from .marks import FAINT, INK, Box, Line, Mark, TextMark, legend
from .pictures import MARGIN, WIDTH, Card
from .words import listed

FATES = {"becomes 0": "#D55E00", "subnormal": "#E69F00", "normal": "#0072B2", "too large": "#CC79A7"}
LOW, HIGH = -56, 24  # powers of two that are drawn
LEFT, RIGHT = 84, 530  # px of the axis
TOP, FOOT, ROW = 52, 178, 24  # px: the histogram's, and from one format to the next
COLUMNS = {"becomes 0": 604, "subnormal": 676, "too large": 744}  # px of their ends
SIZE = 11.5


@dataclass(frozen=True)
class RangeRow:
    """A format: the first power of two that is not 0, the first normal one, the last, and shares of the tensor."""

    name: str
    least: int
    normal: int
    most: int
    shares: Mapping[str, float]


def ranges(
    title: str,
    shares: Mapping[int, float],
    before: Mapping[int, float],
    fates: Mapping[int, str],
    rows: Sequence[RangeRow],
    marked: str,
) -> Card:
    """Shares of a tensor by power of two in the colour of their fate; `before` are those without a scale, as outline.

    Below, each of `rows` as the band that it holds; `marked` is a bold row, the one of the `fates`.
    """
    axis = Axis(LOW, HIGH, LEFT, RIGHT)
    high = max([*shares.values(), *before.values(), 1e-9])
    marks = [*_histogram(axis, shares, before, fates, high)]
    foot = FOOT + 26 + ROW * len(rows)
    marks += [TextMark(x, FOOT + 12, text, 11, FAINT, "end") for text, x in COLUMNS.items()]
    for at, row in enumerate(rows):
        marks += _band(axis, row, FOOT + 20 + ROW * at, row.name == marked)
    ticks = {float(power): power_of_two(power) for power in range(LOW + 6, HIGH + 1, 10)}
    marks += bottom(axis, foot, ticks, "size of a value, in powers of two")
    key = [(Box(0, 0, 0, 0, FATES[fate], "stripes" if fate == "subnormal" else ""), fate) for fate in FATES]
    key += [(Box(0, 0, 0, 0, edge=INK), "without the scale")] if before != shares else []
    marks += legend(key, LEFT, foot + 58, WIDTH - MARGIN)
    return Card(title, foot + 72, tuple(marks), _words(shares, rows, marked))


def power_of_two(power: int) -> str:
    """
    >>> power_of_two(-24)
    '2⁻²⁴'
    """
    return "2" + str(power).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def _histogram(
    axis: Axis, shares: Mapping[int, float], before: Mapping[int, float], fates: Mapping[int, str], high: float
) -> Iterator[Mark]:
    def top(share: float) -> float:
        return FOOT - (FOOT - TOP) * share / high

    for power, share in shares.items():
        if LOW <= power < HIGH and share:
            fate, width = fates[power], axis.at(power + 1) - axis.at(power)
            tooltip = f"{power_of_two(power)}: {share_of_all(share)}, {fate}"
            place = (axis.at(power), top(share), width, FOOT - top(share))
            pattern = "stripes" if fate == "subnormal" else ""
            yield Box(*place, FATES[fate], pattern, kind="bin", part=fate, tooltip=tooltip)  # type: ignore[arg-type]
    if before != shares:
        yield Line(tuple(_outline(axis, before, top)), INK, 1.2, kind="before")
    yield Line(((axis.start, FOOT), (axis.end, FOOT)), kind="axis")
    yield TextMark(LEFT - 10, TOP + 8, share_of_all(high), 11, FAINT, "end")
    yield TextMark(LEFT - 10, TOP + 22, "of values", 11, FAINT, "end")


def _outline(axis: Axis, before: Mapping[int, float], top) -> Iterator[tuple[float, float]]:
    for power in range(LOW, HIGH):
        yield axis.at(power), top(before.get(power, 0))
        yield axis.at(power + 1), top(before.get(power, 0))


def _band(axis: Axis, row: RangeRow, y: float, bold: bool) -> Iterator[Mark]:
    """What a format holds: subnormal numbers striped, normal ones full; what it holds beyond the axis is left out."""
    yield TextMark(LEFT - 10, y + 12, row.name, SIZE, INK, "end", bold)
    for first, last, fate in ((row.least, row.normal, "subnormal"), (row.normal, row.most + 1, "normal")):
        start, end = axis.at(max(first, LOW)), axis.at(min(max(last, LOW), HIGH))
        if end > start:
            pattern = "stripes" if fate == "subnormal" else ""
            tooltip = f"{row.name}: {fate} from {power_of_two(first)} to {power_of_two(last)}"
            yield Box(start, y + 2, end - start, 13, FATES[fate], pattern, kind="band", part=row.name, tooltip=tooltip)  # type: ignore[arg-type]
    for fate, x in COLUMNS.items():
        yield TextMark(x, y + 12, share_of_all(row.shares[fate]), SIZE, INK, "end", bold)


def _words(shares: Mapping[int, float], rows: Sequence[RangeRow], marked: str) -> str:
    there = [power for power, share in shares.items() if share]
    most = max(shares, key=lambda power: shares[power])
    spread = f"from 2**{min(there)} to 2**{max(there)}, most of them near 2**{most}"
    lost = listed(
        f"{row.name} {share_of_all(row.shares['becomes 0'])} to 0, {share_of_all(row.shares['subnormal'])} subnormal, "
        f"{share_of_all(row.shares['too large'])} too large"
        for row in rows
    )
    return f"A histogram of values {spread}, over the range of each format, {marked} marked. {lost}."
