"""A few weights of a block, their codes, and the numbers that the codes stand for; and what the whole block takes.

quantized_block("What is stored of 64 weights", (0.31, -0.08, 0.02, -0.44))
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...catalog.errors import WorkbookError
from .marks import CARD, COLOURS, FAINT, INK, ON_COLOUR, WEIGHTS, Box, Line, Mark, TextMark, legend
from .pictures import MARGIN, WIDTH, Card

LEFT, TOP, CELL, GAP = 190, 46, 27, 39  # px: where cells begin, and their height; from one row to the next
SCALE = 96  # px: the box of the scale, at the right
BARS, THICK = 232, 18
WIDE_BITS, SCALE_BITS = 16, 32


@dataclass(frozen=True)
class AbsmaxBlock:
    """Weights that share a scale, as absmax rounds them: codes from minus to plus the largest that `bits` can name."""

    weights: tuple[float, ...]
    bits: int = 4

    @property
    def scale(self) -> float:
        """The distance of two levels: the largest magnitude over the largest code.

        >>> AbsmaxBlock((2.2, -7.0)).scale
        1.0
        """
        return max(map(abs, self.weights)) / (2 ** (self.bits - 1) - 1)

    @property
    def codes(self) -> tuple[int, ...]:
        """The nearest level of each weight.

        >>> AbsmaxBlock((2.2, -7.0)).codes
        (2, -7)
        """
        return tuple(round(weight / self.scale) for weight in self.weights)

    @property
    def values(self) -> tuple[float, ...]:
        """What the codes stand for."""
        return tuple(code * self.scale for code in self.codes)


def quantized_block(title: str, weights: Sequence[float], bits: int = 4, block: int = 64) -> Card:
    """The first `weights` of a block of `block`, the largest among them: as they are, their codes, and decoded.

    Below, two bars on one scale: what the block takes in 16 bits, and as codes with an FP32 scale. WorkbookError for
    more weights than the block or the card has room for, and for zeros alone.
    """
    if not 1 <= len(weights) <= min(block, 10) or not any(weights):
        raise WorkbookError(f"{len(weights)} weights of a block of {block}", "1 to 10, not all 0", "pass fewer")
    shown = AbsmaxBlock(tuple(weights), bits)
    before, codes, scales = block * WIDE_BITS // 8, block * bits // 8, SCALE_BITS // 8
    sizes: list[tuple[str, dict[str, int]]] = [(f"{block} weights in 16 bits", {"kept": before})]
    sizes.append((f"{block} codes and their scale", {"quantized": codes, "scales": scales}))
    foot = BARS + 2 * 30 + 18
    keys = {"a weight in 16 bits": WEIGHTS["kept"], f"a code of {bits} bits": WEIGHTS["quantized"]}
    keys |= {"a scale of 32 bits": WEIGHTS["scales"], "computed when it is needed": "#DDDDDD"}
    key = legend([(Box(0, 0, 0, 0, fill, edge="none"), name) for name, fill in keys.items()], MARGIN, foot, WIDTH)
    words = (
        f"The weights {', '.join(f'{one:g}' for one in weights)} share the scale {shown.scale:.4f}: their codes are "
    )
    words += f"{', '.join(map(str, shown.codes))}, which stand for {', '.join(f'{one:.2f}' for one in shown.values)}. "
    words += f"{block} weights take {before} bytes in 16 bits, and {codes} + {scales} as codes with a scale."
    return Card(title, foot + 16, (*_cells(shown), *_bars(sizes), *key), words)


def _cells(shown: AbsmaxBlock) -> Iterator[Mark]:
    """Three rows of cells, one below the other, and the scale at their right end."""
    wide = (WIDTH - MARGIN - SCALE - 14 - LEFT) / len(shown.weights)
    largest = max(map(abs, shown.weights))
    rows = [
        ("the weights", [f"{one:g}" for one in shown.weights], WEIGHTS["kept"]),
        ("over the scale", [f"{one / shown.scale:.1f}" for one in shown.weights], "#DDDDDD"),
        ("rounded: the codes", [str(code) for code in shown.codes], WEIGHTS["quantized"]),
        ("times the scale again", [f"{one:.2f}" for one in shown.values], "#DDDDDD"),
    ]
    for at, (name, texts, fill) in enumerate(rows):
        y = TOP + at * GAP
        yield TextMark(LEFT - 12, y + 18, name, 12.5, anchor="end")
        for number, (text, weight) in enumerate(zip(texts, shown.weights, strict=True)):
            bold = at == 0 and abs(weight) == largest
            yield Box(LEFT + number * wide, y, wide - 4, CELL, fill, edge=INK if bold else CARD, kind="cell")
            ink = ON_COLOUR if fill == "#DDDDDD" else "#ffffff"
            text = text.replace("-", "−")
            yield TextMark(LEFT + number * wide + wide / 2 - 2, y + 18, text, 12, ink, "middle", bold=bold)
    yield from _scale(shown, largest)


def _scale(shown: AbsmaxBlock, largest: float) -> Iterator[Mark]:
    x, y = WIDTH - MARGIN - SCALE, TOP + 2 * GAP
    yield Box(x, y, SCALE, CELL, WEIGHTS["scales"], edge="none", kind="scale")
    yield TextMark(x + SCALE / 2, y + 18, f"{shown.scale:.4f}", 12, ON_COLOUR, "middle", bold=True)
    yield TextMark(x + SCALE / 2, y - 22, "the scale:", 11, FAINT, "middle")
    yield TextMark(x + SCALE / 2, y - 8, f"{largest:g} ÷ {2 ** (shown.bits - 1) - 1}", 11, FAINT, "middle")


def _bars(sizes: Sequence[tuple[str, dict[str, int]]]) -> Iterator[Mark]:
    """A bar for each way to store the block, on one scale."""
    px = (WIDTH - MARGIN - 80 - LEFT) / max(sum(parts.values()) for _, parts in sizes)
    yield Line(((MARGIN, BARS - 14), (WIDTH - MARGIN, BARS - 14)), "#DDDDDD")
    for at, (name, parts) in enumerate(sizes):
        x, y = float(LEFT), BARS + at * 30.0
        yield TextMark(LEFT - 12, y + 14, name, 12.5, anchor="end")
        for part, size in parts.items():
            yield Box(x, y, size * px, THICK, (COLOURS | WEIGHTS)[part], edge="none", kind="part", part=part)
            x += size * px
        yield TextMark(x + 6, y + 14, f"{sum(parts.values())} bytes", 12.5)
