"""What a picture is made of: the palette, and marks in px from a card's top left.

The card is light and opaque, so a figure reads the same in JupyterLab's dark and light themes. The colours are
Okabe and Ito's, told apart with every common colour blindness; a part has the same one in every figure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import reduce
from itertools import repeat
from operator import add
from typing import Literal

INK, FAINT, CARD = "#222222", "#777777", "#fbfaf7"
ON_COLOUR = "#212121"  # ink on a coloured box, which stays dark where a live calculator's card follows a dark theme
COLOURS = {
    "parameters": "#0072B2",
    "gradients": "#E69F00",
    "optimizer": "#009E73",
    "activations": "#D55E00",
    "logits": "#CC79A7",
    "workspace": "#999999",
    "kv_cache": "#56B4E9",
    "scores": "#4B2E83",  # a part of the reader's own, for measure.step(…, part_of=…)
}
WEIGHTS = {"quantized": "#0072B2", "scales": "#E69F00", "constants": "#CC79A7", "kept": "#009E73"}  # of "parameters"
BESIDE = {"engine": "#F0E442", "reference": "#C49A6C"}  # what a trainer has beside its step
ON_A_CARD = {  # as an out-of-memory message divides a card, and what was asked for
    "PyTorch's tensors": "#0072B2",
    "held by PyTorch, unused": "#E69F00",
    "other processes": "#CC79A7",
    "free": "#DDDDDD",
    "asked for": "#D55E00",
}
LINES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
LABELS = {"kv_cache": "KV cache", "logits": "logits and loss", "kept": "not quantized", "scores": "matrices of scores"}

At = tuple[float, float]  # px from the left and from the top
Anchor = Literal["start", "middle", "end"]
Pattern = Literal["", "stripes", "dots", "bars", "crossed"]


def label(part: str, among: Collection[str] = ()) -> str:
    """A part's name as people write it. Beside a KV cache, `among` the others, logits have no loss."""
    return part if part == "logits" and "kv_cache" in among else LABELS.get(part, part)


def colour_of(part: str) -> str:
    """A part's colour; grey for one that has none."""
    return (COLOURS | WEIGHTS | BESIDE | ON_A_CARD).get(part, FAINT)


@dataclass(frozen=True)
class Box:
    """A rectangle. `pattern` is drawn in `ink` over `fill`; `kind` is its class in the SVG, `part` its data-part."""

    x: float
    y: float
    width: float
    height: float
    fill: str = "none"
    pattern: Pattern = ""
    ink: str = CARD
    edge: str = CARD
    line: float = 1.0  # width of the edge
    dashed: bool = False
    kind: str = ""
    part: str = ""
    tooltip: str = ""


@dataclass(frozen=True)
class TextMark:
    """A line of text; `y` is its base line, `angle` turns it clockwise. With `halo` it can be read on any box."""

    x: float
    y: float
    text: str
    size: float = 11.5
    colour: str = INK
    anchor: Anchor = "start"
    bold: bool = False
    halo: bool = False
    angle: float = 0.0


@dataclass(frozen=True)
class Line:
    """Straight pieces from point to point."""

    points: tuple[At, ...]
    colour: str = FAINT
    width: float = 1.0
    dash: str = ""  # as in SVG: px drawn and px left out, "5 3"
    kind: str = ""
    tooltip: str = ""


@dataclass(frozen=True)
class Area:
    """A polygon without an edge."""

    points: tuple[At, ...]
    fill: str
    opacity: float = 1.0
    kind: str = ""


@dataclass(frozen=True)
class Dot:
    """A disc of `fill`, or with fill=CARD a ring."""

    x: float
    y: float
    fill: str
    edge: str
    radius: float = 5.5
    line: float = 2.5
    kind: str = ""
    tooltip: str = ""


Mark = Box | TextMark | Line | Area | Dot

_LETTERS = {0.34: "iljI.,:;|'!()[] ", 0.42: "ftr/-", 0.7: "ABCDEFGHKLNOPQRSTUVXYZ&+×→←", 0.9: "mwMW%…"}
_WIDTHS = {letter: width for width, letters in _LETTERS.items() for letter in letters}  # of the size; the rest: 0.6


def text_width(text: str, size: float, bold: bool = False) -> float:
    """The px that `text` takes, on the wide side: browsers and matplotlib choose different sans serifs.

    >>> round(text_width("12.50 GiB", 10)), text_width("MMM", 10) > 2 * text_width("iii", 10)
    (48, True)
    """
    widths = reduce(add, map(_WIDTHS.get, text, repeat(0.6)), 0.0)  # `sum` adds floats otherwise since Python 3.12
    return size * widths * (1.17 if bold else 1)


def legend(entries: Iterable[tuple[Box, str]], x: float, y: float, right: float, size: float = 11.5) -> list[Mark]:
    """A small box in each entry's style and its text after it, in as many rows as they need."""
    marks: list[Mark] = []
    left = x
    for style, text in entries:
        width = text_width(text, size)
        if x + 14 + width > right and x > left:
            x, y = left, y + 20
        marks += [
            Box(x, y - 10, 10, 10, style.fill, style.pattern, style.ink, style.edge),
            TextMark(x + 15, y, text, size),
        ]
        x += 31 + width
    return marks
