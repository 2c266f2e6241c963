"""Which tiles of the score matrix a kernel visits under each mask: one small square map beside the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ...techniques.attention.masks import Mask, Tile
from .block_maps import OUTLINE, pale
from .marks import CARD, FAINT, LINES, Box, Mark, TextMark, legend
from .pictures import MARGIN, WIDTH, Card
from .words import listed

TOP, GAP, FOOT = 66, 20, 38  # where the maps begin, between two of them, and what stands under them
WHOLE, PARTLY = LINES[0], pale(LINES[0])
STATES = (("visited, every pair seen", WHOLE), ("visited, masked inside", PARTLY), ("skipped", CARD))


def visited(title: str, masks: Mapping[str, Mask], tokens: int, tile: int = 128) -> Card:
    """A map for each of `masks` over `tokens` queries and keys: rows are tiles of queries, columns tiles of keys."""
    maps = {name: list(mask.tiles(tokens, tokens, tile, tile)) for name, mask in masks.items()}
    rows = -(-tokens // tile)
    side = (WIDTH - 2 * MARGIN - GAP * (len(maps) - 1)) / len(maps)
    body: list[Mark] = []
    for at, (name, tiles) in enumerate(maps.items()):
        left = MARGIN + at * (side + GAP)
        body += [
            TextMark(left, TOP - 24, name, 12, bold=True),
            TextMark(left, TOP - 9, _count(tiles, rows), 11, colour=FAINT),
        ]
        body += [Box(left, TOP, side, side, CARD, edge=OUTLINE), *_squares(tiles, left, side / rows)]
    styles = [(Box(0, 0, 0, 0, fill, edge=OUTLINE), name) for name, fill in STATES]
    body += legend(styles, MARGIN, TOP + side + 24, WIDTH)
    words = f"Maps of {rows} × {rows} tiles of {tile} × {tile} pairs, queries downwards, keys to the right. "
    told = (f"{name}: {_count(tiles, rows)}, {_whole(tiles)} of them whole" for name, tiles in maps.items())
    return Card(title, TOP + side + FOOT, tuple(body), f"{words}{listed(told)}.")


def _count(tiles: list[Tile], rows: int) -> str:
    return f"{len(tiles):,} of {rows * rows:,} tiles"


def _whole(tiles: list[Tile]) -> str:
    return f"{sum(tile.whole for tile in tiles):,}"


def _squares(tiles: list[Tile], left: float, side: float) -> Iterator[Mark]:
    for tile in tiles:
        fill = WHOLE if tile.whole else PARTLY
        yield Box(left + tile.column * side, TOP + tile.row * side, side, side, fill, line=0.5)
