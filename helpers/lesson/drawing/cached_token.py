"""One decoding step in one layer: what the new token computes, what goes into the cache, and what is read of it."""

from __future__ import annotations

from collections.abc import Iterator

from ...catalog.errors import require_whole
from ...catalog.layers import Attention
from .marks import CARD, COLOURS, FAINT, INK, LINES, ON_COLOUR, Box, Line, Mark, TextMark, legend
from .pictures import MARGIN, WIDTH, Card

OLD, NEW, WORK = COLOURS["kv_cache"], LINES[4], COLOURS["activations"]
CELL, HIGH, MOST = 20.0, 34.0, 12  # px of one token's key or value; of a row; tokens that are drawn
CACHE = 372.0  # px from the left: where the rows of the cache begin
ROWS = {"K": 150.0, "V": 200.0}  # px from the top
MIDDLE = (ROWS["K"] + ROWS["V"] + HIGH) / 2


def cached_token(title: str, attention: Attention, tokens: int) -> Card:
    """Token number `tokens` + 1 passes through a layer of `attention`, of whose cache `tokens` cells are drawn.

    WorkbookError for more tokens than there is room for.
    """
    require_whole("tokens", tokens, 2, MOST, do=f"draw {MOST} tokens at most")
    foot = ROWS["V"] + HIGH + 56
    entries = {"computed by earlier steps, and kept": OLD, "this token's, kept from now on": NEW}
    entries["this token's, gone when the step is over"] = WORK
    key = legend([(Box(0, 0, 0, 0, fill, edge="none"), name) for name, fill in entries.items()], MARGIN, foot, WIDTH)
    marks = (*_projections(attention), *_rows(tokens), *_attention(tokens), *key)
    words = (
        f"A new token's x gives q of {attention.heads} heads, and k and v of {attention.kv_heads}. k and v are put "
        f"behind those of {tokens} tokens before it; q reads all {tokens + 1}."
    )
    return Card(title, foot + 16, marks, words)


def _projections(attention: Attention) -> Iterator[Mark]:
    """x, and q, k and v that come of it."""
    yield from _box(62, MIDDLE, 78, ("x", "a token"), WORK, "#ffffff")
    rows = {"q": (84.0, attention.heads, WORK), "k": (ROWS["K"] + HIGH / 2, attention.kv_heads, NEW)}
    rows["v"] = (ROWS["V"] + HIGH / 2, attention.kv_heads, NEW)
    for name, (y, heads, fill) in rows.items():
        yield Line(((101, MIDDLE), (130, MIDDLE), (130, y), (158, y)), INK, 1.5)
        ink = "#ffffff" if fill == WORK else ON_COLOUR
        yield from _box(206, y, 96, (f"{name}, {heads} heads",), fill, ink)


def _rows(tokens: int) -> Iterator[Mark]:
    """The cache: a row of keys and a row of values, the newest last."""
    for name, y in ROWS.items():
        end = CACHE + tokens * CELL
        yield TextMark(CACHE - 8, y + HIGH / 2 + 4, name, 13, anchor="end", bold=True)
        for at in range(tokens + 1):
            fill, kind = (NEW, "new") if at == tokens else (OLD, "old")
            yield Box(CACHE + at * CELL, y, CELL - 2, HIGH, fill, edge="none", kind=kind)
        way = y + HIGH + 8 if name == "V" else y - 8
        yield Line(((254, y + HIGH / 2), (300, y + HIGH / 2), (300, way), (end + CELL / 2 - 1, way)), INK, 1.5)
        tip = y + HIGH if name == "V" else y
        yield Line(((end + CELL / 2 - 1, way), (end + CELL / 2 - 1, tip)), INK, 1.5)
    yield TextMark(CACHE, ROWS["V"] + HIGH + 26, "the layer's cache: one column for each token so far", 11.5, FAINT)


def _attention(tokens: int) -> Iterator[Mark]:
    """q reads the rows."""
    left, right = CACHE, CACHE + (tokens + 1) * CELL - 2
    middle = (left + right) / 2
    yield Line(((254, 84), (middle - 100, 84)), INK, 1.5)
    yield from _box(middle, 84, 200, ("attention", "reads every column"), WORK, "#ffffff")
    for x in (left, right):
        yield Line(((middle + (100 if x > middle else -100), 104), (x, ROWS["K"] - 14)), FAINT, 1.5, "5 4")
    yield Line(((middle + 100, 84), (right + 34, 84)), INK, 1.5)
    yield TextMark(right + 40, 88, "out", 12, bold=True)


def _box(x: float, y: float, width: float, words: tuple[str, ...], fill: str, ink: str) -> Iterator[Mark]:
    """A box around (x, y) with its words in it."""
    high = 40 if len(words) > 1 else 28
    yield Box(x - width / 2, y - high / 2, width, high, fill, edge=CARD)
    top = y + 4 - 7.5 * (len(words) - 1)
    for at, word in enumerate(words):
        yield TextMark(x, top + 15 * at, word, 11.5, ink, "middle", bold=not at)
