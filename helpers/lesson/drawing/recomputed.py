"""What a few layers keep at each moment of a step, and which of them runs again: without checkpoints, and with.

recomputed("What runs again, and when", 16 * MIB, 392 * MIB, {"nothing checkpointed": 0, "each layer": 1})
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from ..units import short_bytes
from .marks import CARD, FAINT, INK, LINES, Box, Mark, TextMark, legend
from .pictures import MARGIN, WIDTH, Card

Kept = Literal["nothing", "its input", "all"]
Doing = Literal["forward", "again", "backward"]
LAYERS = 4
LEFT, ROW, CELL, SUMS = 92, 24, 20, 26  # px: the names of layers, a row and the box in it, the sums below
WIDEST = 3 * LAYERS  # moments: forward, again and backward for each layer
STEP = (WIDTH - MARGIN - LEFT) / WIDEST
ALL, INPUT, AGAIN = LINES[0], LINES[1], LINES[5]


@dataclass(frozen=True)
class LayerMoment:
    """Layer `layer` (from 0) is `doing` something, and by the end of it each layer has kept so much."""

    layer: int
    doing: Doing
    kept: tuple[Kept, ...]


def layer_moments(segment: int) -> Iterator[LayerMoment]:
    """A step of LAYERS layers with checkpoints before every `segment` layers; without any where that is 0.

    >>> [f"{one.doing} {one.layer + 1}" for one in layer_moments(4)][3:7]
    ['forward 4', 'again 1', 'again 2', 'again 3']
    """
    kept: list[Kept] = ["nothing"] * LAYERS
    for layer in range(LAYERS):
        kept[layer] = "all" if not segment else "nothing" if layer % segment else "its input"
        yield LayerMoment(layer, "forward", tuple(kept))
    length = segment or LAYERS
    for first in reversed(range(0, LAYERS, length)):
        of_segment = range(first, min(first + length, LAYERS))
        for layer in of_segment if segment else ():
            kept[layer] = "all"
            yield LayerMoment(layer, "again", tuple(kept))
        for layer in reversed(of_segment):
            yield LayerMoment(layer, "backward", tuple(kept))
            kept[layer] = "nothing" if layer > first or not segment else "its input"
        kept[first] = "nothing"


def kept_bytes(moment: LayerMoment, segment: int, input_bytes: int, layer_bytes: int) -> int:
    """What is kept at that moment: of a segment that runs again the input and all that its layers keep.

    >>> [kept_bytes(one, 1, 16, 392) for one in layer_moments(1)][:5]
    [16, 32, 48, 64, 456]
    """
    first = moment.layer - moment.layer % segment if segment else -1  # its input stays until all of it is done
    inputs = sum(kept == "its input" or (layer == first and kept == "all") for layer, kept in enumerate(moment.kept))
    return inputs * input_bytes + moment.kept.count("all") * layer_bytes


def recomputed(title: str, input_bytes: int, layer_bytes: int, segments: Mapping[str, int]) -> Card:
    """A panel for each of `segments`, layers in a checkpoint by its name: a row for a layer, a column for a moment."""
    marks: list[Mark] = []
    words, y = [], 58.0
    for name, segment in segments.items():
        moments = list(layer_moments(segment))
        sizes = [kept_bytes(moment, segment, input_bytes, layer_bytes) for moment in moments]
        marks += _panel(name, moments, sizes, y)
        words.append(f"{name}: " + "; ".join(map(_said, moments, map(short_bytes, sizes))))
        y += 26 + LAYERS * ROW + SUMS
    keys = {"keeps its input": INPUT, "keeps all that its gradients need, computed again": AGAIN}
    if 0 in segments.values():
        keys = {"keeps all that its gradients need": ALL, "keeps its input": INPUT, "the same, computed again": AGAIN}
    marks += legend(((Box(0, 0, 0, 0, fill), key) for key, fill in keys.items()), MARGIN, y, WIDTH - MARGIN)
    return Card(title, y + 14, tuple(marks), ". ".join(words))


def _panel(name: str, moments: list[LayerMoment], sizes: list[int], y: float) -> Iterator[Mark]:
    yield TextMark(MARGIN, y, name, 12.5, INK, bold=True)
    top, foot = y + 12, y + 12 + LAYERS * ROW + 14
    for layer in range(LAYERS):
        yield TextMark(MARGIN, top + (LAYERS - 1 - layer) * ROW + 14, f"layer {layer + 1}", 11.5, FAINT)
    yield TextMark(MARGIN, foot, "kept, MiB", 11.5, FAINT)
    again: set[int] = set()
    for at, (moment, size) in enumerate(zip(moments, sizes, strict=True)):
        again |= {moment.layer} if moment.doing == "again" else set()
        x = LEFT + at * STEP
        yield from _column(moment, again, x, top)
        bold = size == max(sizes)
        yield TextMark(x + STEP / 2 - 2, foot, f"{size / 2**20:,.0f}", 11.5, INK, "middle", bold=bold)


def _column(moment: LayerMoment, again: set[int], x: float, top: float) -> Iterator[Mark]:
    """One moment: what each layer has kept, and the one that runs with what it does."""
    for layer, kept in enumerate(moment.kept):
        y = top + (LAYERS - 1 - layer) * ROW
        runs = layer == moment.layer
        full = AGAIN if layer in again else ALL
        yield Box(x, y, STEP - 4, CELL, CARD, edge=INK if runs else FAINT, line=1.6 if runs else 0.5)
        if kept == "its input":
            yield Box(x + 1, y + 1, 5, CELL - 2, INPUT, edge=INPUT, kind="input")
        elif kept == "all":
            yield Box(x + 1, y + 1, STEP - 6, CELL - 2, full, edge=full, kind="all")
        if runs:
            ink = CARD if kept == "all" and full == ALL else INK
            yield TextMark(x + STEP / 2 + (1 if kept == "its input" else -2), y + 14, moment.doing, 9.5, ink, "middle")


def _said(moment: LayerMoment, size: str) -> str:
    return f"{moment.doing} of layer {moment.layer + 1}, {size} kept"
