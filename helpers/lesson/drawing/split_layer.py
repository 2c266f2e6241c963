"""A decoder layer over tensor-parallel ranks: what each has a part of, what all have whole, and where they add up."""

from __future__ import annotations

from collections.abc import Iterator

from ...catalog.errors import require_whole
from ...catalog.train_setup import TrainSetup
from ..units import short_bytes
from .marks import CARD, COLOURS, FAINT, INK, Box, Line, Mark, TextMark, legend
from .pictures import MARGIN, WIDTH, Card

LANES, HIGH = (84.0, 168.0), 56.0  # px from the top: where a drawn rank's boxes begin, and how high they are
FIRST, GAP = 76.0, 5.0  # px from the left: the first box; between two of them
WHOLE = 46.0  # px: how wide a box is that every rank has alike
BF16 = 2
BEFORE, BEHIND = "backward", "forward"  # the passes in which gradients are added before a part, and results behind it
DRAWN = {BEHIND: (5.0, ""), BEFORE: (2.0, "5 4")}  # px: a bar's width; its dashes


def split_layer(title: str, setup: TrainSetup, ranks: int) -> Card:
    """The first layer of `setup` on two of `ranks`, time to the right: attention by heads, the MLP by its middle.

    A bar across the ranks is a sum of tokens x width in BF16: solid where results are added, dashed where gradients of
    the inputs are. WorkbookError where ranks do not divide the KV heads.
    """
    attention, mlp = setup.model.layers[0].attention, setup.model.layers[0].mlp
    do = "choose ranks that divide the KV heads"
    require_whole("ranks", ranks, 2, attention.kv_heads, do=do)
    size = short_bytes(BF16 * setup.tokens * setup.model.hidden)
    heads = f"{attention.heads // ranks} of {attention.heads}"
    middle = f"{mlp.ffn // ranks:,}"
    marks = list(_lanes(heads, middle, size))
    foot = LANES[1] + HIGH + 44
    keys = [(Box(0, 0, 0, 0, COLOURS["parameters"], edge="none"), "weights, a part of them on each rank")]
    keys += [(Box(0, 0, 0, 0, CARD, edge=INK), "the same numbers on every rank")]
    keys += [(Box(0, 0, 0, 0, COLOURS["activations"], edge="none"), "no weights, heads as those of q, k and v")]
    words = (
        f"On each rank: x, norm, q, k and v of {heads} heads, their attention, o of these, a sum over ranks of {size}, "
        f"norm, {middle} outputs of gate and up, down of these, a second sum of {size}. Gradients are summed before q, "
        "k and v, and before gate and up."
    )
    marks += [*legend(keys, MARGIN, foot, WIDTH - MARGIN), *_sums_told(foot + 22)]
    return Card(title, foot + 46, tuple(marks), words)


def _lanes(heads: str, middle: str, size: str) -> Iterator[Mark]:
    """Two ranks, one below the other, and the bars across them."""
    row: list[tuple[float, tuple[str, ...], bool]] = [
        (WHOLE, ("x",), True),
        (WHOLE, ("norm",), True),
        (0, (BEFORE,), True),
        (88, ("q, k, v", f"{heads} heads"), False),
        (68, ("attention", "of these"), False),
        (60, ("o", "by inputs"), False),
        (0, (BEHIND,), True),
        (WHOLE + 8, ("+, norm",), True),
        (0, (BEFORE,), True),
        (104, ("gate, up", f"{middle} outputs"), False),
        (60, ("down", "by inputs"), False),
        (0, (BEHIND,), True),
        (WHOLE - 16, ("+",), True),
    ]
    for at, y in enumerate(LANES):
        yield TextMark(MARGIN, y + HIGH / 2 + 4, f"rank {at}", 12, bold=True)
    x = FIRST
    for width, words, whole in row:
        if not width:
            yield from _bar(x + 5, words[0], size)
            x += 10 + GAP
            continue
        for y in LANES:
            yield from _box(x, y, width, words, whole)
        x += width + GAP


def _box(x: float, y: float, width: float, words: tuple[str, ...], whole: bool) -> Iterator[Mark]:
    fill, ink = (CARD, INK) if whole else (COLOURS["parameters"], "#ffffff")
    computed = words[0] == "attention"  # it has no weights
    fill = COLOURS["activations"] if computed else fill
    yield Box(x, y, width, HIGH, fill, edge=INK if whole else fill, kind="whole" if whole else "part")
    top = y + HIGH / 2 + 4 - 8 * (len(words) - 1)
    for line, word in enumerate(words):
        yield TextMark(x + width / 2, top + 16 * line, word, 11.5 if not line else 10.5, ink, "middle", bold=not line)


def _bar(x: float, when: str, size: str) -> Iterator[Mark]:
    """A sum over all ranks."""
    top, foot = LANES[0] - 10, LANES[1] + HIGH + 10
    width, dash = DRAWN[when]
    yield Line(((x, top), (x, foot)), INK, width, dash, kind="sum")
    if when == BEHIND:
        yield TextMark(x, top - 6, size, 11, FAINT, "middle")


def _sums_told(y: float) -> Iterator[Mark]:
    """What the two kinds of bars are, each as it is drawn."""
    for x, when in ((MARGIN + 5, BEHIND), (MARGIN + 115, BEFORE)):
        yield Line(((x, y - 14), (x, y + 4)), INK, *DRAWN[when], kind="key")
        yield TextMark(x + 10, y, f"sum {when}", 11.5)
