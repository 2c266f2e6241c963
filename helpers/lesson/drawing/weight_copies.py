"""What exists of one weight at each moment of a step, recipe by recipe: itself, copies, its gradient, two averages.

weight_copies("Bytes of one weight", {"FP32": "fp32", "autocast": "autocast-bf16"})
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ...catalog.recipes import PRECISIONS, Precision
from .marks import CARD, COLOURS, FAINT, INK, Box, Mark, TextMark, legend
from .pictures import MARGIN, WIDTH, Card

MOMENTS = ("forward begins", "loss", "halfway back", "optimizer step")
HELD = {  # what there may be, its colour, and the letter on it
    "weight": (COLOURS["parameters"], "w"),
    "BF16 copy for the product": (COLOURS["activations"], "c"),
    "FP32 master copy": (COLOURS["kv_cache"], "M"),
    "gradient": (COLOURS["gradients"], "g"),
    "AdamW's two averages": (COLOURS["optimizer"], "m v"),
}
NAMES, TOP, ROW, THICK = 132.0, 74.0, 46.0, 24.0  # px: where moments begin, the first row, the next, a box
COLUMN = (WIDTH - MARGIN - NAMES) / len(MOMENTS)
BYTE = (COLUMN - 34) / 18  # px: the widest recipe holds 18 bytes, and their sum stands behind


def bytes_of_a_weight(recipe: Precision, moment: str) -> dict[str, float]:
    """Bytes for each weight of a matrix at one of MOMENTS, from the second step on, by what is in HELD.

    Halfway back half of the weights have their gradient, and autocast's copies of these are gone. A recipe with a
    master copy keeps gradients in a buffer that stays.

    >>> [sum(bytes_of_a_weight(PRECISIONS["autocast-bf16"], one).values()) for one in MOMENTS]
    [12, 14, 15.0, 16]
    """
    at = MOMENTS.index(moment)
    copy = 2 * (0, 1, 0.5, 0)[at] if recipe.autocast and recipe.weight_bytes > 2 else 0
    gradient = recipe.grad_bytes * (1 if recipe.master_bytes else (0, 0, 0.5, 1)[at])
    sizes = (recipe.weight_bytes, copy, recipe.master_bytes, gradient, 2 * recipe.optimized_bytes)
    return {name: size for name, size in zip(HELD, sizes, strict=True) if size}


def weight_copies(title: str, recipes: Mapping[str, str]) -> Card:
    """A row for each of `recipes`, precisions by the name to show, and a column for each moment."""
    columns = enumerate(MOMENTS)
    marks: list[Mark] = [TextMark(NAMES + at * COLUMN, TOP - 16, name, 11.5, FAINT) for at, name in columns]
    words, seen = [], dict[str, None]()
    for row, (name, precision) in enumerate(recipes.items()):
        y = TOP + row * ROW
        marks.append(TextMark(NAMES - 12, y + 16, name, 12.5, INK, "end", bold=True))
        found = [bytes_of_a_weight(PRECISIONS[precision], moment) for moment in MOMENTS]
        for at, sizes in enumerate(found):
            marks += _moment(sizes, NAMES + at * COLUMN, y)
            seen |= dict.fromkeys(sizes)
        told = (f"{moment} {sum(sizes.values()):g}" for moment, sizes in zip(MOMENTS, found, strict=True))
        words.append(f"{name}: {', '.join(told)}")
    foot = TOP + len(recipes) * ROW + 12
    marks += legend(((Box(0, 0, 0, 0, HELD[name][0]), name) for name in HELD if name in seen), MARGIN, foot, WIDTH)
    return Card(title, foot + 16, tuple(marks), "Bytes of one weight. " + "; ".join(words))


def _moment(sizes: Mapping[str, float], x: float, y: float) -> Iterator[Mark]:
    """What there is of the weight, side by side, a byte as wide as every other; and the sum."""
    for name, size in sizes.items():
        fill, letter = HELD[name]
        yield Box(x, y, size * BYTE, THICK, fill, kind="held", part=name, tooltip=f"{name}: {size:g} bytes")
        if size * BYTE > 7 * len(letter):
            yield TextMark(x + size * BYTE / 2, y + 16, letter, 11, CARD, "middle", bold=True)
        x += size * BYTE
    yield TextMark(x + 5, y + 16, f"{sum(sizes.values()):g}", 12.5, INK, bold=True)
