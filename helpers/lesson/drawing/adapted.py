"""How a LoRA layer computes, what it keeps for the backward pass, and what of it is trained: drawn for `down_proj`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from ...catalog.errors import WorkbookError
from ...catalog.formats import number_format
from ...catalog.layers import Linear
from ...catalog.train_setup import TrainSetup
from ...memory.breakdown import format_bytes
from ...memory.step.activations import layer_operators
from .marks import CARD, COLOURS, FAINT, INK, Box, Line, Mark, TextMark, label, legend
from .pictures import MARGIN, WIDTH, Card

LINEAR, OPERATOR = "down_proj", "down projection"  # its input is no other layer's
PATHS = 96, 196  # px from the top: where the frozen path runs, and the adapter's
BARS, ROW, THICK = 292, 30, 18  # where the bars begin, from one to the next, one of them
NAMES = 232  # px where bars begin, from the left
Rows = Sequence[tuple[str, dict[str, int]]]


def adapted_linear(title: str, setup: TrainSetup) -> Card:
    """`down_proj` of the first layer under AdamW: the way of `x` through W and through A and B, and bars of bytes.

    The bars are on one scale: the frozen weight as it is stored; A, B, their gradients and two averages; and what the
    layer keeps for its backward pass, x and A x. WorkbookError for a setup without adapters.
    """
    rows = _rows(setup)
    px = (WIDTH - MARGIN - 90 - NAMES) / max(sum(parts.values()) for _, parts in rows)
    bars = [mark for at, (name, parts) in enumerate(rows) for mark in _bar(name, parts, BARS + at * ROW, px)]
    foot = BARS + len(rows) * ROW + 22
    seen = dict.fromkeys(part for _, parts in rows for part in parts)
    key = legend([(Box(0, 0, 0, 0, COLOURS[part], edge="none"), label(part)) for part in seen], MARGIN, foot, WIDTH)
    words = "; ".join(f"{name} {format_bytes(sum(parts.values()))}" for name, parts in rows)
    flow = "x goes through W, and through A and then B; the two results are added to y."
    return Card(title, foot + 16, (*_flow(setup), *bars, *key), f"{flow} {words[0].upper()}{words[1:]}.")


def _rows(setup: TrainSetup) -> Rows:
    """The bars: a name, and bytes by part."""
    if not setup.adapter:
        raise WorkbookError("a drawing of a LoRA layer", "a setup with adapters", "pass adapter=Adapter()")
    layer, linear = setup.model.layers[0], _linear(setup)
    values = sum(map(prod, setup.adapter.tensors_of(linear)))
    base = setup.adapter.base
    stored = number_format(base).storage_bytes(linear.weights) if base else 2 * linear.weights
    kept = next(one for one in layer_operators(setup, layer) if one.name == OPERATOR).total
    width = setup.adapter.width
    trained = {"parameters": values * width, "gradients": values * width, "optimizer": 2 * values * width}
    return (
        (f"W, frozen{' in 4 bits' if base else ''}", {"parameters": stored}),
        (f"A and B: {values:,} trained", trained),
        ("kept for the backward pass", {"activations": kept}),
    )


def _linear(setup: TrainSetup) -> Linear:
    return next(group.linear for group in setup.model.layers[0].linears() if group.linear.name == LINEAR)


def _bar(name: str, parts: dict[str, int], y: float, px: float) -> Iterator[Mark]:
    """A row's name, its parts side by side, and their sum."""
    yield TextMark(NAMES - 10, y + 14, name, 12.5, anchor="end")
    x = float(NAMES)
    for part, size in parts.items():
        tooltip = f"{label(part)}: {format_bytes(size)}"
        yield Box(x, y, size * px, THICK, COLOURS[part], edge="none", kind="part", part=part, tooltip=tooltip)
        x += size * px
    yield TextMark(x + 6, y + 14, format_bytes(sum(parts.values())), 12.5)


def _flow(setup: TrainSetup) -> Iterator[Mark]:
    """x, the two ways, and their sum y."""
    assert setup.adapter
    linear = _linear(setup)
    wide, low = PATHS
    middle, rank = (wide + low) / 2, setup.adapter.rank
    pieces = [((86, middle), (132, middle)), ((132, wide), (132, low)), ((623, middle), (690, middle))]
    pieces += [((610, y), (610, middle + (13 if y > middle else -13))) for y in PATHS]
    pieces += [((a, wide), (b, wide)) for a, b in ((132, 180), (560, 610))]
    pieces += [((a, low), (b, low)) for a, b in ((132, 175), (305, 348), (392, 435), (565, 610))]
    yield from (Line(piece, INK, 1.5) for piece in pieces)
    yield from _matrix(56, middle, 60, 60, "x", f"{linear.inputs:,} wide", ("activations",))
    yield from _matrix(370, wide, 380, 84, "W, frozen", f"{linear.outputs:,} × {linear.inputs:,}", ("parameters",))
    for x, name, shape in ((240, "A", f"{rank} × {linear.inputs:,}"), (500, "B", f"{linear.outputs:,} × {rank}")):
        yield from _matrix(x, low, 130, 34, f"{name}, trained", shape, ("parameters", "gradients", "optimizer"))
    yield Box(348, low - 13, 44, 26, COLOURS["activations"], edge="none", kind="kept")
    yield TextMark(370, low + 4.5, "A x", 12, "#ffffff", "middle", bold=True)
    yield TextMark(370, low + 36, f"{rank} numbers a token", 11, FAINT, "middle")
    yield Box(597, middle - 13, 26, 26, CARD, edge=INK, line=1.5)
    yield TextMark(610, middle + 5, "+", 16, INK, "middle", bold=True)
    yield TextMark(706, middle + 5, "y", 14, INK, "middle", bold=True)
    yield TextMark(MARGIN, BARS - 22, f"What that is in bytes, for {setup.tokens:,} tokens", 11.5, FAINT)


def _matrix(
    x: float, y: float, width: float, height: float, name: str, shape: str, parts: Sequence[str]
) -> Iterator[Mark]:
    """A box around (x, y) with its name; its shape stands in it, or below where it is small.

    `parts` are what exists of it: the first fills the box, further ones are strips at its right end.
    """
    left, strips = x - width / 2, 12 * (len(parts) - 1)
    yield Box(left, y - height / 2, width - strips, height, COLOURS[parts[0]], edge="none", kind="matrix")
    for at, part in enumerate(parts[1:], 1):
        yield Box(left + width - strips + 12 * (at - 1), y - height / 2, 12, height, COLOURS[part], edge="none")
    inside = height > 70
    yield TextMark(x - strips / 2, y + (-2 if inside else 4.5), name, 12.5, "#ffffff", "middle", bold=True)
    below = (y + 16, "#ffffff") if inside else (y + height / 2 + 16, FAINT)
    yield TextMark(x, below[0], shape, 11, below[1], "middle")
