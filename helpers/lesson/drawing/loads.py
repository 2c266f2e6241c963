"""Throughput and latencies against the number of clients, one panel above the other, with the saturation point."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, log2, log10

from ..units import si, three_digits
from .axes import Axis, Plane, round_ticks
from .contexts import LEFT, RIGHT, names_at_ends
from .marks import CARD, FAINT, INK, LINES, Dot, Line, Mark, TextMark
from .pictures import Card
from .words import of_curve, over

HEIGHT, TOP, MIDDLE, BELOW, FOOT = 420, 74, 194, 246, 376
THROUGHPUT, TTFT, ITL = "tokens/s in all", "first token", "between tokens"
COLOURS = {THROUGHPUT: LINES[0], TTFT: LINES[1], ITL: LINES[2]}


@dataclass(frozen=True)
class LoadPoint:
    """What `clients` at once get."""

    clients: int
    tokens_per_s: float
    ttft_s: float
    itl_s: float

    @property
    def latencies(self) -> dict[str, float]:
        return {TTFT: self.ttft_s, ITL: self.itl_s}


def loads(title: str, points: Sequence[LoadPoint], here: LoadPoint, saturation: int) -> Card:
    """Above tokens per second, below seconds on a log axis; rings at `here`, dashed where throughput stops rising."""
    across = Axis(points[0].clients, points[-1].clients, LEFT, RIGHT, log=True)
    most = max(point.tokens_per_s for point in points)
    seconds = [value for point in points for value in point.latencies.values()]
    decades = Axis(10 ** floor(log10(min(seconds))), 10 ** ceil(log10(max(seconds))), FOOT, BELOW, log=True)
    above, below = Plane(across, Axis(0, 1.08 * most, MIDDLE, TOP)), Plane(across, decades)
    body = [*_frames(above, below), *_verticals(across, here.clients, saturation)]
    body += _panel(above, points, here, lambda point: {THROUGHPUT: point.tokens_per_s})
    body += _panel(below, points, here, lambda point: point.latencies)
    return Card(title, HEIGHT, tuple(body), _words(points, here, saturation))


def _frames(above: Plane, below: Plane) -> Iterator[Mark]:
    reach = range(ceil(log2(above.x.low)), floor(log2(above.x.high)) + 1)
    every = {2.0**power: f"{2**power:,}" for power in reach[:: -(-len(reach) // 9)]}
    rates = {value: f"{value:,.4g}" if value < 10 else f"{value:,.0f}" for value in round_ticks(0, above.y.high, 5)}
    yield from above.frame(every, rates, "", THROUGHPUT)
    powers = range(round(log10(below.y.low)), round(log10(below.y.high)) + 1)
    times = {10.0**power: si(10.0**power, "s", whole=True) for power in powers[:: -(-len(powers) // 6)]}
    yield from below.frame(every, times, "clients at once (log scale)", "seconds (log scale)")


def _verticals(across: Axis, here: int, saturation: int) -> Iterator[Mark]:
    """The saturation point through both panels, named above them; the chosen number between them."""
    for clients, dash, kind in ((saturation, "5 3", "saturation"), (here, "2 3", "here")):
        x = across.at(clients)
        for top, foot in ((TOP, MIDDLE), (BELOW, FOOT)):
            yield Line(((x, top), (x, foot)), INK if dash == "5 3" else FAINT, 1, dash, kind)
    yield _centred(across.at(saturation), TOP - 12, f"saturation: {saturation:,} client{'s' * (saturation > 1)}", INK)
    yield _centred(across.at(here), BELOW - 9, f"{here:,} client{'s' * (here > 1)}", FAINT)


def _centred(x: float, y: float, text: str, colour: str) -> TextMark:
    """Within the axes; what stands at the left of them is the axis' own name."""
    return TextMark(min(max(x, LEFT + 140), RIGHT), y, text, 11.5, colour, "middle")


def _panel(
    plane: Plane, points: Sequence[LoadPoint], here: LoadPoint, values: Callable[[LoadPoint], Mapping[str, float]]
) -> Iterator[Mark]:
    """A curve for each of `values`, named at its end, and a ring on each."""
    ends = []
    for name, chosen in values(here).items():
        line = tuple(plane.at(point.clients, values(point)[name]) for point in points)
        yield Line(line, COLOURS[name], 2.5, kind="curve", tooltip=name)
        yield Dot(*plane.at(here.clients, chosen), CARD, INK, kind="here", tooltip=name)
        ends.append((line[-1][1], name, COLOURS[name]))
    yield from names_at_ends(ends, plane.y.start)


def _words(points: Sequence[LoadPoint], here: LoadPoint, saturation: int) -> str:
    clients = [point.clients for point in points]
    rates = of_curve(THROUGHPUT, clients, [point.tokens_per_s for point in points], "clients", three_digits)
    curves = [
        of_curve(name, clients, [point.latencies[name] for point in points], "clients", lambda value: si(value, "s"))
        for name in (TTFT, ITL)
    ]
    rings = f"{three_digits(here.tokens_per_s)} tokens/s, {si(here.ttft_s, 's')} and {si(here.itl_s, 's')}"
    many = f"{here.clients:,} client{'s' * (here.clients > 1)}"
    marked = f"Rings at {many}: {rings}. Dashed: saturation at {saturation:,}."
    return f"{over(clients, 'clients at once')}; above, {rates}; below, on a log scale, {'; '.join(curves)}. {marked}"
