"""Which of a model's units are whole at each moment of a step at stage 3: gathered, at work, gone again.

gathered("A layer is whole while it computes", {"stage 3": True})
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from .block_maps import pale
from .marks import CARD, FAINT, INK, LINES, Box, Mark, TextMark, legend
from .pictures import MARGIN, WIDTH, Card

LAYERS = 4
LEFT, ROW, CELL = 150, 24, 20  # px: the names of units, a row, and the box in it
STEP = (WIDTH - MARGIN - LEFT) / (2 * LAYERS)
PART, WHOLE, COMING = LINES[0], LINES[5], pale(LINES[5])


@dataclass(frozen=True)
class GatheredMoment:
    """Layer `layer` (from 0) computes, the layers `whole` are there in full, `coming` is on its way."""

    layer: int
    doing: str
    whole: frozenset[int]
    coming: int | None


def gathered_moments(reshard: bool) -> Iterator[GatheredMoment]:
    """A step of LAYERS layers; without `reshard` what the forward pass gathered stays for the backward pass.

    >>> [len(one.whole) for one in gathered_moments(True)], [len(one.whole) for one in gathered_moments(False)]
    ([1, 1, 1, 1, 1, 1, 1, 1], [1, 2, 3, 4, 4, 3, 2, 1])
    """
    for layer in range(LAYERS):
        whole = {layer} if reshard else {*range(layer + 1)}
        yield GatheredMoment(layer, "forward", frozenset(whole), layer + 1 if layer + 1 < LAYERS else None)
    for layer in reversed(range(LAYERS)):
        whole = {layer} if reshard else {*range(layer + 1)}
        yield GatheredMoment(layer, "backward", frozenset(whole), layer - 1 if reshard and layer else None)


def gathered(title: str, panels: Mapping[str, bool]) -> Card:
    """A panel for each of `panels`, whether layers are resharded after the forward, by its name."""
    marks: list[Mark] = []
    words, y = [], 58.0
    for name, reshard in panels.items():
        moments = list(gathered_moments(reshard))
        marks += _panel(name, moments, y)
        words.append(f"{name}: " + "; ".join(map(_said, moments)))
        y += 26 + (LAYERS + 1) * ROW + 18
    keys = {"the rank's own part": PART, "on its way": COMING, "whole": WHOLE}
    marks += legend(((Box(0, 0, 0, 0, fill), key) for key, fill in keys.items()), MARGIN, y, WIDTH - MARGIN)
    return Card(title, y + 14, tuple(marks), ". ".join(words))


def _panel(name: str, moments: list[GatheredMoment], y: float) -> Iterator[Mark]:
    yield TextMark(MARGIN, y, name, 12.5, INK, bold=True)
    top = y + 12
    names = ["embedding, head", *(f"layer {layer + 1}" for layer in range(LAYERS))]
    for row, unit in enumerate(names):
        yield TextMark(MARGIN, top + (LAYERS - row) * ROW + 14, unit, 11.5, FAINT)
    for at, moment in enumerate(moments):
        x = LEFT + at * STEP
        yield from _unit(x, top + LAYERS * ROW, WHOLE, "")
        for layer in range(LAYERS):
            fill = WHOLE if layer in moment.whole else COMING if layer == moment.coming else None
            doing = moment.doing if layer == moment.layer else ""
            yield from _unit(x, top + (LAYERS - 1 - layer) * ROW, fill, doing)


def _unit(x: float, y: float, fill: str | None, doing: str) -> Iterator[Mark]:
    """A unit at one moment: its part, at the left, and the rest of it where that is there or coming."""
    yield Box(x, y, STEP - 4, CELL, CARD, edge=INK if doing else FAINT, line=1.6 if doing else 0.5)
    yield Box(x + 1, y + 1, 8, CELL - 2, PART, edge=PART, kind="part")
    if fill:
        yield Box(x + 10, y + 1, STEP - 15, CELL - 2, fill, edge=fill, kind="whole" if fill == WHOLE else "coming")
    if doing:
        yield TextMark(x + STEP / 2 + 3, y + 14, doing, 9.5, INK, "middle")


def _said(moment: GatheredMoment) -> str:
    whole = ", ".join(str(layer + 1) for layer in sorted(moment.whole))
    coming = "" if moment.coming is None else f", {moment.coming + 1} on its way"
    return f"{moment.doing} of layer {moment.layer + 1}, whole: {whole}{coming}"
