"""What autograd keeps of one decoder layer: which operator holds which tensor, and how many bytes each takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...catalog.layers import Layer
from ...catalog.setup import TrainSetup
from ...memory.breakdown import format_bytes
from ...memory.step.activations import Owner, Role, Saved, layer_tensors, total_bytes
from ..units import short_bytes
from .marks import CARD, FAINT, INK, LINES, Box, Line, Mark, Text, text_width
from .pictures import MARGIN, WIDTH, Card

TOP, ROW, BAR = 66, 27, 20
OPERATOR, BARS, END = 172, 196, WIDTH - MARGIN  # px: width of an operator's box, where bars begin and end
NORM = (Role.INPUT, Role.INPUT_FP32, Role.MEAN_AND_RSTD, Role.RSTD, Role.NORMALISED)
SCORES = (Role.QKV, Role.PROBABILITIES, Role.PROBABILITIES_CAST, Role.CAPPED_SCORES, Role.LOG_SUM_EXP)
PLAIN_MLP = (Role.RELU, Role.GELU, Role.GELU_NEW)
SHORT = {
    Role.INPUT: "input",
    Role.INPUT_FP32: "input in FP32",
    Role.UNNORMED_FP32: "input in FP32",
    Role.MEAN_AND_RSTD: "mean and 1/σ",
    Role.RSTD: "1/rms",
    Role.NORMALISED: "normalised",
    Role.PROBABILITIES: "probabilities",
    Role.PROBABILITIES_CAST: "their cast",
    Role.CAPPED_SCORES: "capped scores",
    Role.WEIGHT_COPIES: "BF16 copies of the weights",
}


@dataclass(frozen=True)
class Operator:
    """A step of the layer's forward pass, and what its backward keeps: (name, bytes), the largest part of it first."""

    name: str
    kept: tuple[tuple[str, int], ...] = ()

    @property
    def total(self) -> int:
        return sum(size for _, size in self.kept)


def saved_tensors(title: str, setup: TrainSetup, layer: Layer) -> Card:
    """One decoder layer from its input down to its output: a box for each operator, bars for what it keeps.

    Bars are on one scale and add up to `activations.saved_by_layer(setup, layer).total`: a tensor that two operators
    need is drawn once, at the one that reads it last. WorkbookError for a model without a closed form.

    >>> from helpers.catalog import TrainSetup
    >>> setup = TrainSetup("llama-2-7b", precision="bf16", sequence=2048)
    >>> saved_tensors("One layer", setup, setup.model.layers[0])
    [picture: One layer]
    """
    tensors = layer_tensors(setup, layer)
    operators = _operators(tensors, layer)
    px = (END - BARS - 96) / max(operator.total for operator in operators)
    marks = [mark for at, operator in enumerate(operators) for mark in _row(operator, TOP + at * ROW, px, at)]
    total = f"together {format_bytes(total_bytes(tensors))}"
    y = TOP + len(operators) * ROW + 14
    head = (
        Text(MARGIN, 52, "forward, from top to bottom", 11.5, FAINT),
        Text(BARS, 52, "kept until its backward has run", 11.5, FAINT),
        Text(END, y, total, 13, INK, "end", bold=True),
    )
    kept = (f"{one.name} keeps {_listed(one) or 'nothing'}" for one in operators)
    return Card(title, y + 16, (*head, *marks), f"The operators of one layer in order: {'; '.join(kept)}; {total}.")


def _operators(tensors: Sequence[Saved], layer: Layer) -> list[Operator]:
    """The rows; each tensor is in exactly one of them."""
    gated = layer.mlp.gated
    rows = [
        Operator("norm", _of(tensors, Owner.ATTENTION_NORM, NORM)),
        Operator(
            "q, k, v projections", _renamed("the norm's output", _of(tensors, Owner.ATTENTION_NORM, [Role.OUTPUT]))
        ),
        Operator("norm of q and k", _of(tensors, Owner.QK_NORM)),
        Operator("attention", _of(tensors, Owner.ATTENTION, SCORES)),
        Operator("output projection", _renamed("attention's output", _of(tensors, Owner.ATTENTION, [Role.OUTPUT]))),
        Operator("norm of attention", _of(tensors, Owner.ATTENTION_OUTPUT_NORM)),
        Operator("+ residual"),
        Operator("norm", _of(tensors, Owner.MLP_NORM, NORM)),
        Operator(
            "gate and up projections" if gated else "first projection",
            _renamed("the norm's output", _of(tensors, Owner.MLP_NORM, [Role.OUTPUT])),
        ),
        *(_gated(tensors) if gated else _plain(tensors)),
        Operator("norm of the MLP", _of(tensors, Owner.MLP_OUTPUT_NORM)),
        Operator("+ residual"),
        Operator("every projection", _of(tensors, Owner.WEIGHTS)),
    ]
    always = {"norm", "attention", "+ residual", "output projection", "second projection"}
    return [row for row in rows if row.kept or row.name in always]


def _gated(tensors: Sequence[Saved]) -> list[Operator]:
    """Four tensors of one size: the gate for its activation, both factors for their product, that for the last."""
    each = sum(size for _, size in _of(tensors, Owner.MLP)) // 4
    return [
        Operator("activation", (("gate", each),)),
        Operator("gate × up", (("activated gate", each), ("up", each))),
        Operator("down projection", (("their product", each),)),
    ]


def _plain(tensors: Sequence[Saved]) -> list[Operator]:
    names = {Role.RELU: "its output", Role.GELU: "its input and output", Role.GELU_NEW: "its five tensors"}
    kept = tuple((names[one.role], one.size_bytes) for one in tensors if one.role in PLAIN_MLP)
    return [Operator("activation", kept), Operator("second projection")]


def _of(tensors: Sequence[Saved], owner: Owner, roles: Sequence[Role] = ()) -> tuple[tuple[str, int], ...]:
    """The tensors of `owner` in these roles, in all for none; the largest first."""
    kept = (one for one in tensors if one.owner is owner and (one.role in roles or not roles))
    return tuple(
        (SHORT.get(one.role, one.caption), one.size_bytes) for one in sorted(kept, key=lambda one: -one.size_bytes)
    )


def _renamed(name: str, kept: tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
    return tuple((name, size) for _, size in kept)


def _row(operator: Operator, y: float, px: float, at: int) -> Iterator[Mark]:
    """The operator's box under the one before it, its bars side by side, and after them what has no room in one."""
    middle = y + BAR / 2 + 4
    if at:
        yield Line(((MARGIN + OPERATOR / 2, y - ROW + BAR), (MARGIN + OPERATOR / 2, y)), FAINT, 1.5)
    yield Box(MARGIN, y, OPERATOR - MARGIN, BAR, CARD, edge=FAINT, kind="operator")
    yield Text(MARGIN + (OPERATOR - MARGIN) / 2, middle, operator.name, 11.5, anchor="middle")
    x, beside = float(BARS), []
    for number, (name, size) in enumerate(operator.kept):
        width, text = size * px, f"{name} {short_bytes(size)}"
        yield Box(x, y, width, BAR, LINES[0] if number % 2 == 0 else LINES[5], kind="kept", tooltip=text)
        if text_width(text, 11) + 8 <= width:
            yield Text(x + width / 2, middle, text, 11, "#ffffff" if number % 2 == 0 else INK, "middle")
        else:
            beside.append(text)
        x += width
    note = ", ".join(beside) if operator.kept else "nothing"
    yield Text(x + 6, middle, note, 11, INK if operator.kept else FAINT)


def _listed(operator: Operator) -> str:
    return ", ".join(f"{name} {short_bytes(size)}" for name, size in operator.kept)
