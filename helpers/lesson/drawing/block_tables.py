"""Block tables and the pool that they point into: texts above, in order; pages below, wherever there was one.

block_tables("Any page will do", manager.tables, manager.lengths, manager.blocks, manager.block_size)
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence

from .block_maps import SHARED, pale
from .marks import CARD, FAINT, INK, LINES, Box, Line, Mark, TextMark, legend
from .pictures import MARGIN, WIDTH, Card

LEFT, TOP, ROW, HIGH = 92.0, 46.0, 44.0, 26.0  # px: where pages begin, and from one text to the next; a page
GAP, BEFORE_POOL = 6.0, 46.0
Tables = Mapping[Hashable, Sequence[int]]


def block_tables(
    title: str, tables: Tables, lengths: Mapping[Hashable, int], blocks: int, size: int, note: str = ""
) -> Card:
    """A row for each text with its table's entries, a line from each to its page of the pool, and the pool.

    A page has `size` slots, filled ones are dark; one that several tables name is grey. `note` stands below.
    """
    wide = (WIDTH - MARGIN - LEFT + GAP) / blocks - GAP
    pool_top = TOP + ROW * (len(tables) - 1) + HIGH + BEFORE_POOL
    owners = {block: [name for name in tables if block in tables[name]] for block in range(blocks)}
    colours = {name: LINES[at % len(LINES)] for at, name in enumerate(tables)}
    lines: list[Mark] = []
    marks: list[Mark] = []
    filled = dict.fromkeys(range(blocks), 0)
    for at, (name, table) in enumerate(tables.items()):
        y = TOP + ROW * at
        marks.append(TextMark(MARGIN, y + 17, str(name), 12.5, INK, bold=True))
        for place, block in enumerate(table):
            slots = min(size, lengths[name] - place * size)
            filled[block] = max(filled[block], slots)
            x = LEFT + place * (wide + GAP)
            colour = SHARED if len(owners[block]) > 1 else colours[name]
            ends = (x + wide / 2, y + HIGH), (LEFT + block * (wide + GAP) + wide / 2, pool_top)
            lines.append(Line(ends, colour, 1.3, kind="entry"))  # behind all pages
            marks += _page(x, y, wide, slots, size, colour, str(block), "entry")
    marks.append(TextMark(MARGIN, pool_top + 17, "the pool", 12.5, INK, bold=True))
    for block in range(blocks):
        mine = owners[block]
        colour = SHARED if len(mine) > 1 else colours[mine[0]] if mine else FAINT
        x = LEFT + block * (wide + GAP)
        marks += _page(x, pool_top, wide, filled[block], size, colour, "", "page" if mine else "free")
        marks.append(TextMark(x + wide / 2, pool_top + HIGH + 14, str(block), 10.5, FAINT, "middle"))
    foot = pool_top + HIGH + 38
    keys = [(Box(0, 0, 0, 0, LINES[0], edge="none"), "filled"), (Box(0, 0, 0, 0, pale(LINES[0]), edge="none"), "empty")]
    keys += [(Box(0, 0, 0, 0, SHARED, edge="none"), "used by several")] * any(len(one) > 1 for one in owners.values())
    marks += legend([*keys, (Box(0, 0, 0, 0, CARD, edge=FAINT), "free")], MARGIN, foot, WIDTH - MARGIN)
    marks += [TextMark(WIDTH - MARGIN, foot, note, 11.5, FAINT, "end")] * bool(note)
    return Card(title, foot + 16, (*lines, *marks), _words(tables, lengths, blocks, size, note))


def _page(
    x: float, y: float, wide: float, slots: int, size: int, colour: str, number: str, kind: str
) -> Iterator[Mark]:
    """A page, its filled slots dark, and its number in a table."""
    fill = CARD if kind == "free" else pale(colour)
    yield Box(x, y, wide, HIGH, fill, edge=colour, line=1.2, kind=kind)
    if slots:
        yield Box(x, y, wide * slots / size, HIGH, colour, edge="none", kind="slots")
    for slot in range(1, size):
        at = x + wide * slot / size
        yield Line(((at, y), (at, y + HIGH)), CARD if slot < slots else colour, 0.6)
    if number:
        yield TextMark(x + wide / 2, y + HIGH / 2 + 4, number, 12, INK, "middle", bold=True, halo=True)


def _words(tables: Tables, lengths: Mapping[Hashable, int], blocks: int, size: int, note: str) -> str:
    rows = [
        f"{name} has {lengths[name]} tokens in pages {', '.join(map(str, table))}" for name, table in tables.items()
    ]
    used = {block for table in tables.values() for block in table}
    told = f"A pool of {blocks} pages of {size} slots, {blocks - len(used)} of them free. {'; '.join(rows)}."
    return f"{told} {note}." if note else told
