"""Pipelines drawn in time: a row for each rank, a box for each action, white where a rank waits. No torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Protocol

from ..units import percent
from .marks import CARD, FAINT, INK, Box, Mark, TextMark, text_width
from .pictures import MARGIN, WIDTH, Card
from .words import listed

TOP, ROW, GAP, SIZE = 84, 19, 34, 10
NAMES = 54  # px for the ranks' names
KINDS = {  # by the letters of torch.distributed.pipelining
    "F": ("forward", "#56B4E9"),
    "B": ("backward", "#E69F00"),
    "I": ("gradient of the input", "#CC79A7"),
    "W": ("gradients of the weights", "#009E73"),
}
LATER_STAGES = {"F": "#B9DDF3", "B": "#F6D48C"}  # of a rank that has several: its second, and those behind it
Number = int | float | Fraction


class DrawnAction(Protocol):
    """What is computed, as `helpers.techniques.parallel.pipeline.Action` is."""

    @property
    def kind(self) -> str: ...
    @property
    def stage(self) -> int: ...
    @property
    def micro_batch(self) -> int: ...


class DrawnActionSpan(Protocol):
    """An action of a rank in time, as `helpers.techniques.parallel.pipeline.ActionSpan` is."""

    @property
    def rank(self) -> int: ...
    @property
    def action(self) -> DrawnAction: ...
    @property
    def start(self) -> Number: ...
    @property
    def end(self) -> Number: ...


class DrawnTimeline(Protocol):
    """A schedule laid out, as `helpers.techniques.parallel.pipeline.lay_out` returns it."""

    @property
    def spans(self) -> Sequence[DrawnActionSpan]: ...
    @property
    def ranks(self) -> int: ...
    @property
    def length(self) -> Number: ...
    @property
    def bubble(self) -> Fraction: ...


def schedules(title: str, timelines: Mapping[str, DrawnTimeline]) -> Card:
    """Each timeline under the other on one scale; a box carries the number of its micro-batch, from 0.

    Of a rank that holds several stages the later ones are paler. The share of idle time stands beside each name.
    """
    left = MARGIN + NAMES
    scale = (WIDTH - MARGIN - left) / float(max(laid.length for laid in timelines.values()))
    body: list[Mark] = list(_legend(_keys(timelines)))
    top = float(TOP)
    for name, laid in timelines.items():
        body.append(TextMark(MARGIN, top - 8, f"{name}: {_told(laid)}", 12, bold=True))
        for rank in range(laid.ranks):
            body.append(TextMark(MARGIN, top + rank * ROW + ROW / 2 + 4, f"rank {rank}", SIZE + 1, FAINT))
        body += _boxes(laid, left, top, scale)
        top += laid.ranks * ROW + GAP
    told = [f"{name}: {_told(laid)}" for name, laid in timelines.items()]
    return Card(title, top - GAP + 12, tuple(body), f"Rows of ranks, time to the right. {listed(told, 6)}.")


def _keys(timelines: Mapping[str, DrawnTimeline]) -> Iterator[tuple[str, str]]:
    """The words of each colour that is drawn."""
    drawn = [
        (str(span.action.kind), span.action.stage >= laid.ranks) for laid in timelines.values() for span in laid.spans
    ]
    yield from (KINDS[kind] for kind in KINDS if any(kind == one for one, _ in drawn))
    if any(second for _, second in drawn):
        yield "paler: a rank's second stage", LATER_STAGES["F"]


def _legend(keys: Iterable[tuple[str, str]]) -> Iterator[Mark]:
    x = float(MARGIN)
    for words, colour in keys:
        yield Box(x, 38, 11, 11, colour, edge=CARD)
        yield TextMark(x + 16, 48, words, SIZE + 1, INK)
        x += 16 + text_width(words, SIZE + 1) + 18


def _boxes(laid: DrawnTimeline, left: float, top: float, scale: float) -> Iterator[Mark]:
    for span in laid.spans:
        kind, second = str(span.action.kind), span.action.stage >= laid.ranks
        fill = LATER_STAGES.get(kind, KINDS[kind][1]) if second else KINDS[kind][1]
        x, width = left + float(span.start) * scale, float(span.end - span.start) * scale
        y, number = top + span.rank * ROW, str(span.action.micro_batch)
        tooltip = f"{KINDS[kind][0]} of micro-batch {number} on stage {span.action.stage}"
        yield Box(x, y + 1, width, ROW - 2, fill, edge=CARD, line=0.7, kind="span", tooltip=tooltip)
        if text_width(number, SIZE) + 2 <= width:
            yield TextMark(x + width / 2, y + ROW / 2 + 4, number, SIZE, INK, "middle")


def _told(laid: DrawnTimeline) -> str:
    return f"{float(laid.length):g} units of time, {percent(float(laid.bubble))} idle"
