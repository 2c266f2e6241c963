"""The block map as a picture: the pool as a grid, the block tables beside it, and under it where the slots went."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from math import ceil, log2

from ...techniques.paging import BlockCell, BlockMapFrame
from .marks import CARD, FAINT, INK, LINES, ON_COLOUR, Box, Mark, Pattern, TextMark
from .pictures import Card
from .segments import HOLE

HEIGHT = 396
LEFT, RIGHT, TOP = 16, 744, 66
GRID_WIDTH, GRID_HEIGHT, TABLES = 448, 240, 486  # the last: where the tables begin
BAR, LEGEND, QUEUE = 326, 362, 384
TABLE_ROWS, ROW, TABLE_BLOCKS = 16, 15, 6
SHARED, OUTLINE = "#4d4d4d", "#d2cfc6"
PATTERNS: tuple[Pattern, ...] = ("", "stripes", "dots", "bars")  # by turns, when the colours have been used up


def pale(colour: str) -> str:
    """A quarter of `colour` on the card.

    >>> pale("#000000"), pale(CARD) == CARD
    ('#bcbcb9', True)
    """
    mixed = (round(0.25 * int(colour[at : at + 2], 16) + 0.75 * int(CARD[at : at + 2], 16)) for at in (1, 3, 5))
    return "#" + "".join(f"{part:02x}" for part in mixed)


PARTS: dict[str, tuple[str, tuple[str, Pattern, str, str]]] = {
    "shared": ("filled, shared", (SHARED, "", CARD, SHARED)),
    "filled": ("filled by one request", (FAINT, "", CARD, FAINT)),
    "empty": ("reserved, empty", (pale(FAINT), "", CARD, FAINT)),
    "kept": ("kept for later prompts", (HOLE, "crossed", "#b4b0a4", OUTLINE)),
    "free": ("free", (CARD, "", CARD, OUTLINE)),
}  # name -> what it says; fill, pattern, ink, edge


def look(request: int) -> tuple[str, Pattern]:
    """The colour and the pattern of a request: different for any 24 in a row.

    >>> look(0), look(6) == look(0), look(24) == look(0)
    (('#0072B2', ''), False, True)
    """
    return LINES[request % len(LINES)], PATTERNS[request // len(LINES) % len(PATTERNS)]


def block_map(title: str, frame: BlockMapFrame, new: Collection[int] = ()) -> Card:
    """`frame` as a card; the blocks in `new` have a thick edge.

    Colour and pattern say who owns a block, its dark part how many of its slots hold a token.
    """
    size = f"{len(frame.cells):,} blocks of {frame.block_size} token{'s' * (frame.block_size > 1)}"
    size += "; thick edge: new to a request" * bool(new) + "; ×n: shared by n" * bool(frame.shared)
    beside = "block tables" if frame.tables else "regions, in blocks"
    head = (
        TextMark(LEFT, TOP - 10, f"the pool: {size}", colour=FAINT),
        TextMark(TABLES, TOP - 10, f"{beside}, and tokens" if frame.lengths else "nobody runs", colour=FAINT),
    )
    body = (*head, *_grid(frame, new), *_tables(frame), *_bar(frame), *_queue(frame.waiting))
    return Card(title, HEIGHT, body, _words(frame, size))


def _words(frame: BlockMapFrame, pool: str) -> str:
    """The pool, where its slots went, and whose the first blocks are."""
    parts = ", ".join(f"{PARTS[name][0]} {size:,}" for name, size in slots(frame).items() if size)
    tables = [f"request {request} has {_blocks_of(frame, request)}" for request in list(frame.lengths)[:4]]
    more = len(frame.lengths) - len(tables)
    blocks = f" Blocks: {'; '.join(tables)}{f'; {more} more run' if more else ''}." if tables else ""
    waiting = listed(frame.waiting, 20) or "nobody"
    return f"A pool of {pool}. Slots: {parts}; waste {share(frame.waste)}.{blocks} Waiting: {waiting}."


def _grid(frame: BlockMapFrame, new: Collection[int]) -> Iterator[Mark]:
    columns = 2 ** ceil(log2(len(frame.cells)) / 2)
    width, height = GRID_WIDTH / columns, min(GRID_HEIGHT / ceil(len(frame.cells) / columns), 60)
    for cell in frame.cells:
        x, y = LEFT + cell.block % columns * width, TOP + cell.block // columns * height
        yield from _cell(cell, frame.block_size, Box(x, y, width, height, CARD), cell.block in new)


def _cell(cell: BlockCell, size: int, place: Box, new: bool) -> Iterator[Mark]:
    x, y, width, height = place.x + 0.7, place.y + 0.7, place.width - 1.4, place.height - 1.4
    state, tooltip = _state(cell), _tooltip(cell, size)
    if not cell.owners:
        yield Box(x, y, width, height, *PARTS[state][1], kind=state, tooltip=tooltip)
        return
    colour, pattern = look(cell.owners[0])
    if cell.shared:
        colour, pattern = SHARED, ""
    edge, line = (INK, 2.2) if new else (colour, 1.0)
    reserved, filled = width * cell.reserved / size, width * cell.filled / size
    whole = Box(x, y, reserved, height, pale(colour), edge=edge, line=line, kind=state, tooltip=tooltip)
    yield whole
    yield replace(whole, width=filled, fill=colour, pattern=pattern, kind="filled")
    words = f"×{len(cell.owners)}" if cell.shared else str(cell.owners[0])
    if width >= 7 * len(words) + 2 and height >= 11:
        ink = "#ffffff" if cell.shared else ON_COLOUR
        yield TextMark(x + width / 2, y + height / 2 + 3.6, words, 10.5, ink, "middle", halo=not cell.shared)


def _state(cell: BlockCell) -> str:
    return "shared" if cell.shared else "owned" if cell.owners else "kept" if cell.cached else "free"


def _tooltip(cell: BlockCell, size: int) -> str:
    if not cell.owners:
        return f"block {cell.block}: {'kept for a later prompt' if cell.cached else 'free'}"
    who = f"request{'s' * cell.shared} {', '.join(map(str, cell.owners))}"
    return f"block {cell.block}: {who}; {cell.filled} of {size} filled"


def _tables(frame: BlockMapFrame) -> Iterator[Mark]:
    """A row for each running request, in the order of its admission: its colour, its blocks, its tokens."""
    rows = [(request, _blocks_of(frame, request)) for request in list(frame.lengths)[:TABLE_ROWS]]
    for at, (request, blocks) in enumerate(rows):
        y = TOP + at * ROW + 11
        yield Box(TABLES, y - 9, 11, 10, *look(request), edge=look(request)[0])
        yield TextMark(TABLES + 34, y, str(request), anchor="end", bold=True)
        yield TextMark(TABLES + 44, y, blocks)
        yield TextMark(RIGHT, y, f"{frame.lengths[request]:,}", anchor="end", colour=FAINT)


def _blocks_of(frame: BlockMapFrame, request: int) -> str:
    if frame.tables:
        return listed(frame.tables[request], TABLE_BLOCKS)
    mine = [cell.block for cell in frame.cells if request in cell.owners]
    return f"{mine[0]}–{mine[-1]}" if len(mine) > 1 else str(mine[0])


def listed(numbers: Sequence[int], most: int) -> str:
    """The numbers; of more than `most` the first and the last ones.

    >>> listed((3, 4), 5), listed(range(40), 5)
    ('3 4', '0 1 … 37 38 39')
    """
    if len(numbers) <= most:
        return " ".join(map(str, numbers))
    first = most // 2
    return f"{' '.join(map(str, numbers[:first]))} … {' '.join(map(str, numbers[first - most :]))}"


def slots(frame: BlockMapFrame) -> dict[str, int]:
    """Where the pool's slots are, in tokens: what the bar draws. Together they are the pool.

    "empty" is reserved by a request and holds no token; "kept" is filled, and used by no request.
    """
    shared = sum(cell.filled for cell in frame.cells if cell.shared)
    kept = sum(cell.filled for cell in frame.cells if cell.cached and not cell.owners)
    free = len(frame.cells) * frame.block_size - frame.reserved - kept
    filled, empty = frame.filled - shared, frame.reserved - frame.filled
    return {"shared": shared, "filled": filled, "empty": empty, "kept": kept, "free": free}


def _bar(frame: BlockMapFrame) -> Iterator[Mark]:
    """The pool's slots in one row, and their names with their sizes: those that there are."""
    parts = {name: size for name, size in slots(frame).items() if size}
    scale = (RIGHT - LEFT) / sum(parts.values())
    x, beside = float(LEFT), float(LEFT)
    for name, size in parts.items():
        words, style = PARTS[name]
        yield Box(x, BAR, size * scale, 18, *style, kind=f"part {name}", tooltip=f"{words}: {size:,} tokens")
        yield Box(beside, LEGEND - 9, 10, 10, *style)
        yield TextMark(beside + 15, LEGEND, f"{words} {size:,}")
        x, beside = x + size * scale, beside + 29 + 6.0 * len(f"{words} {size:,}")
    yield TextMark(RIGHT, QUEUE, f"waste {share(frame.waste)}", 13, anchor="end", bold=True)


def share(part: float) -> str:
    """
    >>> share(0.7762), share(0)
    ('77.6 %', '0.0 %')
    """
    return f"{100 * part:.1f} %"


def _queue(waiting: Sequence[int], most: int = 20) -> Iterator[Mark]:
    more = f" and {len(waiting) - most} more" if len(waiting) > most else ""
    words = f"waiting: {' '.join(map(str, waiting[:most]))}{more}" if waiting else "nobody waits"
    yield TextMark(LEFT, QUEUE, words)
