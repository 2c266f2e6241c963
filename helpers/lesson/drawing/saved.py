"""What autograd keeps of one decoder layer: which operator holds which tensor, and how many bytes each takes."""

from __future__ import annotations

from collections.abc import Iterator

from ...catalog.layers import Layer
from ...catalog.train_setup import TrainSetup
from ...memory.breakdown import format_bytes
from ...memory.step.activations import Operator, layer_operators
from ..units import short_bytes
from .marks import CARD, FAINT, INK, LINES, Box, Line, Mark, TextMark, text_width
from .pictures import MARGIN, WIDTH, Card

TOP, ROW, BAR = 66, 27, 20
OPERATOR, BARS, END = 172, 196, WIDTH - MARGIN  # px: width of an operator's box, where bars begin and end


def saved_tensors(title: str, setup: TrainSetup, layer: Layer) -> Card:
    """One decoder layer from its input down to its output: a box for each operator, bars for what it keeps.

    Bars are on one scale and add up to `activations.saved_by_layer(setup, layer).total`: a tensor that two operators
    need is drawn once, at the one that reads it last. WorkbookError for a model without a closed form.

    >>> from helpers.catalog import TrainSetup
    >>> setup = TrainSetup("llama-2-7b", precision="bf16", sequence=2048)
    >>> saved_tensors("One layer", setup, setup.model.layers[0])
    [picture: One layer]
    """
    operators = layer_operators(setup, layer)
    px = (END - BARS - 96) / max(operator.total for operator in operators)
    marks = [mark for at, operator in enumerate(operators) for mark in _row(operator, TOP + at * ROW, px, at)]
    total = f"together {format_bytes(sum(operator.total for operator in operators))}"
    y = TOP + len(operators) * ROW + 14
    head = (
        TextMark(MARGIN, 52, "forward, from top to bottom", 11.5, FAINT),
        TextMark(BARS, 52, "kept until its backward has run", 11.5, FAINT),
        TextMark(END, y, total, 13, INK, "end", bold=True),
    )
    kept = (f"{one.name} keeps {_listed(one) or 'nothing'}" for one in operators)
    return Card(title, y + 16, (*head, *marks), f"The operators of one layer in order: {'; '.join(kept)}; {total}.")


def _row(operator: Operator, y: float, px: float, at: int) -> Iterator[Mark]:
    """The operator's box under the one before it, its bars side by side, and after them what has no room in one."""
    middle = y + BAR / 2 + 4
    if at:
        yield Line(((MARGIN + OPERATOR / 2, y - ROW + BAR), (MARGIN + OPERATOR / 2, y)), FAINT, 1.5)
    yield Box(MARGIN, y, OPERATOR - MARGIN, BAR, CARD, edge=FAINT, kind="operator")
    yield TextMark(MARGIN + (OPERATOR - MARGIN) / 2, middle, operator.name, 11.5, anchor="middle")
    x, beside = float(BARS), []
    for number, (name, size) in enumerate(operator.kept):
        width, text = size * px, f"{name} {short_bytes(size)}"
        yield Box(x, y, width, BAR, LINES[0] if number % 2 == 0 else LINES[5], kind="kept", tooltip=text)
        if text_width(text, 11) + 8 <= width:
            yield TextMark(x + width / 2, middle, text, 11, "#ffffff" if number % 2 == 0 else INK, "middle")
        else:
            beside.append(text)
        x += width
    note = ", ".join(beside) if operator.kept else "nothing"
    yield TextMark(x + 6, middle, note, 11, INK if operator.kept else FAINT)


def _listed(operator: Operator) -> str:
    return ", ".join(f"{name} {short_bytes(size)}" for name, size in operator.kept)
