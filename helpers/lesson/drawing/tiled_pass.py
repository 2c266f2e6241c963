"""One row of tiles under way: what a fused attention kernel has on the chip, and what lies in the card's memory.

tiled_pass("One row of tiles at a time", counts.Call(1024, heads=8, kv_heads=1))
"""

from __future__ import annotations

from collections.abc import Iterator

from ...catalog.errors import require_whole
from ...techniques.attention.counts import Call
from ...techniques.attention.masks import Tile
from .block_maps import OUTLINE, pale
from .marks import CARD, FAINT, INK, LINES, Box, Mark, TextMark, legend
from .pictures import MARGIN, WIDTH, Card

LEFT, TOP, SIDE, STRIP, GAP = 150.0, 84.0, 27.0, 16.0, 7.0  # px: the map, a tile of it, a strip beside it
MEMORY, CHIP, DONE = LINES[0], LINES[1], pale(LINES[1])
LEAST_TILES, MOST_TILES = 4, 12
KEYS = {"in the card's memory": MEMORY, "on the chip now": CHIP, "computed, used and gone": DONE, "not yet": CARD}


def tiled_pass(title: str, call: Call) -> Card:
    """The tiles of one head of `call`, at a tile in the middle of a row; 4 to 12 rows of them, or WorkbookError.

    Queries lie left of the map and the output right of it, keys and values above. Tiles that the mask rules out are
    left blank.
    """
    rows = -(-call.queries // call.tile[0])
    require_whole("rows of tiles", rows, LEAST_TILES, most=MOST_TILES, do="draw a shorter prompt")
    tiles = list(call.mask.tiles(call.queries, call.keys, *call.tile))
    row = 2 * rows // 3
    of_row = [tile for tile in tiles if tile.row == row]
    now = of_row[len(of_row) // 2]
    side = rows * SIDE
    marks = [*_map(tiles, now), *_strips(rows, now), *_state(call, side, now)]
    foot = TOP + side + 30
    marks += legend(((Box(0, 0, 0, 0, fill, edge=OUTLINE), key) for key, fill in KEYS.items()), MARGIN, foot, WIDTH)
    return Card(title, foot + 18, tuple(marks), _words(rows, len(tiles), now, call))


def _map(tiles: list[Tile], now: Tile) -> Iterator[Mark]:
    for tile in tiles:
        here = (tile.row, tile.column) == (now.row, now.column)
        done = (tile.row, tile.column) < (now.row, now.column)
        fill = CHIP if here else DONE if done else CARD
        x, y = LEFT + tile.column * SIDE, TOP + tile.row * SIDE
        yield Box(x, y, SIDE, SIDE, fill, edge=OUTLINE, line=0.7, kind="now" if here else "done" if done else "later")


def _strips(rows: int, now: Tile) -> Iterator[Mark]:
    """Queries and output beside the rows, keys and values above the columns; what is on the chip has its colour."""
    side = rows * SIDE
    yield TextMark(MARGIN, TOP + side / 2, "queries", 12, bold=True)
    yield TextMark(MARGIN, TOP - GAP - 0.5 * STRIP + 4, "keys, values", 12, bold=True)
    yield TextMark(LEFT + side + GAP + STRIP + 6, TOP + now.row * SIDE / 2 + 4, "output", 12, bold=True)
    for at in range(rows):
        x, y = LEFT + at * SIDE, TOP + at * SIDE
        yield Box(x, TOP - GAP - STRIP, SIDE, STRIP, CHIP if at == now.column else MEMORY, edge=CARD, kind="key")
        yield Box(LEFT - GAP - STRIP, y, STRIP, SIDE, CHIP if at == now.row else MEMORY, edge=CARD, kind="query")
        fill = MEMORY if at < now.row else CARD
        edge = CARD if at < now.row else OUTLINE
        yield Box(LEFT + side + GAP, y, STRIP, SIDE, fill, edge=edge, line=0.7, kind="output")


def _state(call: Call, side: float, now: Tile) -> Iterator[Mark]:
    """What a row knows so far, at its height: for each query the largest score, a total and a vector of sums."""
    x, y = LEFT + side + GAP + STRIP + 14, TOP + now.row * SIDE
    parts = (("largest", 54.0), ("total", 44.0), (f"{call.head_dim} sums", 74.0))
    for name, width in parts:
        yield Box(x, y, width, SIDE, CHIP, edge=CARD, kind="state")
        yield TextMark(x + width / 2, y + SIDE / 2 + 4, name, 11, "#ffffff", "middle", bold=True)
        x += width
    left = LEFT + side + GAP + STRIP + 14
    yield TextMark(left, y + SIDE + 15, f"of each of the row's {call.tile[0]} queries", 11, FAINT)
    yield TextMark(left, y + SIDE + 30, "result: sums ÷ total", 11, INK)


def _words(rows: int, tiles: int, now: Tile, call: Call) -> str:
    return (
        f"A map of {rows} × {rows} tiles of {call.tile[0]} × {call.tile[1]} scores, of which {tiles} are visited. "
        f"Row {now.row + 1} is under way, at tile {now.column + 1}. On the chip: its queries, this tile, the keys and "
        f"values of its column, and of each query the largest score, the total and {call.head_dim} sums. In memory: "
        f"all queries, keys and values, and the output of the {now.row} rows above."
    )
