"""What kept each lane busy, and when: copies above computation, one schedule under the other on one axis of seconds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from ..units import si
from .axes import round_ticks
from .block_maps import OUTLINE, pale
from .marks import CARD, FAINT, INK, LINES, Box, Line, Mark, TextMark, legend, text_width
from .pictures import MARGIN, WIDTH, Card
from .words import listed

TOP, ROW, GAP, FOOT, SIZE = 62, 24, 44, 46, 11
NAMES = 108  # px for the lanes' names


class DrawnSpan(Protocol):
    """A piece of work on a lane, as `helpers.techniques.offload.Span` is."""

    @property
    def lane(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def buffer(self) -> int | None: ...
    @property
    def start_s(self) -> float: ...
    @property
    def end_s(self) -> float: ...


def lanes(title: str, schedules: Mapping[str, Sequence[DrawnSpan]]) -> Card:
    """For each of `schedules` a row of boxes for each lane that it uses, in the order of first use.

    A box is dark if its buffer's number is even, or if it has none, and pale if it is odd; a legend says so where both
    are there. Boxes carry their names where these have room. The words count seconds and
    the share of them in which the lane was busy.
    """
    last = max(span.end_s for spans in schedules.values() for span in spans)
    left = MARGIN + NAMES
    scale = (WIDTH - MARGIN - left) / last
    colours = dict(zip(dict.fromkeys(str(one.lane) for spans in schedules.values() for one in spans), LINES))  # noqa: B905
    body: list[Mark] = []
    top = float(TOP)
    for name, spans in schedules.items():
        rows = _rows(spans)
        body += [TextMark(MARGIN, top - 8, name, 12, bold=True), *_ends(name, spans, top, len(rows), left, scale)]
        for at, (lane, row) in enumerate(rows.items()):
            y = top + at * ROW
            body.append(TextMark(MARGIN, y + ROW / 2 + 4, lane, SIZE, FAINT))
            body += _boxes(row, y, left, scale, colours[lane])
        top += len(rows) * ROW + GAP
    foot = top - GAP + 8
    for tick in round_ticks(0, last):
        text = si(tick, "s") if tick else "0"
        inside = WIDTH - 2 - text_width(text, SIZE) / 2  # of the card, for the last of them
        body.append(TextMark(min(left + tick * scale, inside), foot + 12, text, SIZE, FAINT, "middle"))
    if any(_is_odd(span) for spans in schedules.values() for span in spans):
        shades = ((Box(0, 0, 0, 0, FAINT), "in buffer 0"), (Box(0, 0, 0, 0, pale(FAINT)), "in buffer 1"))
        body += legend(shades, left, foot + 34, WIDTH - MARGIN, SIZE)
        foot += 20
    told = [f"{name}: {_told(spans)}" for name, spans in schedules.items()]
    return Card(title, foot + FOOT - 18, tuple(body), f"Rows of lanes, seconds to the right. {listed(told, 6)}.")


def _rows(spans: Sequence[DrawnSpan]) -> dict[str, list[DrawnSpan]]:
    rows: dict[str, list[DrawnSpan]] = {}
    for span in sorted(spans, key=lambda one: one.start_s):
        rows.setdefault(str(span.lane), []).append(span)
    return rows


def _is_odd(span: DrawnSpan) -> bool:
    return span.buffer is not None and span.buffer % 2 == 1


def _boxes(row: Sequence[DrawnSpan], y: float, left: float, scale: float, colour: str) -> Iterator[Mark]:
    yield Line(((left, y + ROW - 2), (WIDTH - MARGIN, y + ROW - 2)), OUTLINE, 0.5)
    for span in row:
        x, width = left + span.start_s * scale, (span.end_s - span.start_s) * scale
        fill = pale(colour) if _is_odd(span) else colour
        tooltip = f"{span.name}: {si(span.start_s, 's')} to {si(span.end_s, 's')}"
        yield Box(x, y + 2, width, ROW - 4, fill, edge=CARD, line=0.5, kind="span", tooltip=tooltip)
        short = span.name.rpartition(" ")[2] if text_width(span.name, SIZE) + 6 > width else span.name
        if text_width(short, SIZE) + 4 <= width:
            ink = INK if _is_odd(span) else CARD
            yield TextMark(x + width / 2, y + ROW / 2 + 4, short, SIZE, ink, "middle")


def _ends(name: str, spans: Sequence[DrawnSpan], top: float, rows: int, left: float, scale: float) -> Iterator[Mark]:
    end_s = max(span.end_s for span in spans)
    x = left + end_s * scale
    yield Line(((x, top - 4), (x, top + rows * ROW)))
    clear = MARGIN + text_width(name, 12, bold=True) + 14 + text_width(si(end_s, "s"), SIZE)  # of the schedule's name
    yield TextMark(max(x, clear), top - 8, si(end_s, "s"), SIZE, FAINT, "end")


def _told(spans: Sequence[DrawnSpan]) -> str:
    end_s = max(span.end_s for span in spans)
    busy = {lane: sum(one.end_s - one.start_s for one in row) / end_s for lane, row in _rows(spans).items()}
    return f"{si(end_s, 's')}, " + ", ".join(f"{lane} busy for {share:.0%}" for lane, share in busy.items())
