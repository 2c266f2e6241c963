"""Stacked bars against a capacity line, as SVG: quick enough to follow a slider, and no library behind it."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from ...memory.closed_form.breakdown import GIB, format_bytes
from .pictures import CARD, INK, Picture, colour_of, label

WIDTH, HEIGHT, MARGIN, TOP, BAR = 760, 168, 16, 46, 44
NAMES, ROW, THIN, TOTAL = 84, 34, 24, 80  # of several bars: room for their names, from one to the next, one, a total
DARK = ("parameters", "optimizer", "activations", "quantized", "kept")  # white is easier to read on these than ink


def stacked_bar(title: str, parts: Mapping[str, int], capacity_bytes: int | None = None, device: str = "") -> Picture:
    """`parts` (bytes by name) end to end, with a dashed line where the device is full.

    The scale reaches past both the total and the capacity, so neither is ever cut.
    """
    total = sum(parts.values())
    scale = (WIDTH - 2 * MARGIN) / (1.06 * max(total, capacity_bytes or 0, 1))
    body = [*_blocks(parts, scale, MARGIN, TOP, BAR), *_legend(parts, HEIGHT - 32)]
    if capacity_bytes:
        body += _capacity(capacity_bytes, MARGIN + capacity_bytes * scale, TOP + BAR, device)
    return _card(title, HEIGHT, body)


def stacked_rows(
    title: str,
    rows: Mapping[str, Mapping[str, int]],
    marked: str = "",
    capacity_bytes: int | None = None,
    device: str = "",
) -> Picture:
    """One thinner bar for each of `rows` (bytes by name), its total at the end; the name of `marked` in bold.

    All have one scale, and the dashed line goes through all of them.
    """
    most = max([1, capacity_bytes or 0, *(sum(parts.values()) for parts in rows.values())])
    left, foot = MARGIN + NAMES, TOP + ROW * len(rows)
    scale = (WIDTH - left - MARGIN - TOTAL) / most
    body: list[str] = []
    for at, (name, parts) in enumerate(rows.items()):
        top, end = TOP + ROW * at, left + sum(parts.values()) * scale
        weight = ' font-weight="700"' if name == marked else ""
        body += _blocks(parts, scale, left, top, THIN)
        for x, text in ((MARGIN, name), (end + 6, format_bytes(sum(parts.values())))):
            body.append(f'<text x="{x:.1f}" y="{top + 16}" font-size="12.5" fill="{INK}"{weight}>{escape(text)}</text>')
    if capacity_bytes:
        body += _capacity(capacity_bytes, left + capacity_bytes * scale, foot - ROW + THIN, device)
    names = {name: None for parts in rows.values() for name in parts}
    body += _legend({name: rows.get(marked, {}).get(name, 0) for name in names}, foot + 36)
    return _card(title, foot + 68, body)


def _card(title: str, height: int, body: list[str]) -> Picture:
    head = f'<text x="{MARGIN}" y="24" font-size="15" font-weight="600" fill="{INK}">{escape(title)}</text>'
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'style="max-width:100%" role="img" aria-label="{escape(title)}" font-family="sans-serif">'
        f'<rect width="{WIDTH}" height="{height}" rx="6" fill="{CARD}"/>{head}{"".join(body)}</svg>'
    )
    return Picture(title, svg=svg)


def _blocks(parts: Mapping[str, int], scale: float, left: float, top: float, bar: float) -> list[str]:
    blocks, x = [], float(left)
    for name, size in parts.items():
        width = size * scale
        blocks.append(
            f'<rect class="part" data-part="{escape(name)}" x="{x:.1f}" y="{top}" width="{width:.1f}" '
            f'height="{bar}" fill="{colour_of(name)}">'
            f"<title>{escape(label(name))}: {format_bytes(size)}</title></rect>"
        )
        if width > 46:
            blocks.append(
                f'<text x="{x + width / 2:.1f}" y="{top + bar / 2 + 5:g}" text-anchor="middle" font-size="13" '
                f'fill="{"white" if name in DARK else INK}">{size / GIB:,.1f}</text>'
            )
        x += width
    return blocks


def _capacity(capacity_bytes: int, x: float, foot: float, device: str) -> list[str]:
    anchor, dx = ("end", -6) if x > WIDTH / 2 else ("start", 6)
    return [
        f'<line x1="{x:.1f}" y1="{TOP - 8}" x2="{x:.1f}" y2="{foot + 8}" stroke="{INK}" stroke-width="2" '
        f'stroke-dasharray="5 3"/>',
        f'<text x="{x + dx:.1f}" y="{foot + 20}" text-anchor="{anchor}" font-size="12" fill="{INK}">'
        f"{escape(device)} {format_bytes(capacity_bytes)}</text>",
    ]


def _legend(parts: Mapping[str, int], y: float) -> list[str]:
    """Name and size of each part, in two rows where one is too short."""
    items, x = [], float(MARGIN)
    for name, size in parts.items():
        text = f"{label(name)} {format_bytes(size)}"
        width = 26 + 6.3 * len(text)
        if x + width > WIDTH:
            x, y = float(MARGIN), y + 20
        items.append(
            f'<rect x="{x:.0f}" y="{y - 10}" width="10" height="10" fill="{colour_of(name)}"/>'
            f'<text x="{x + 14:.0f}" y="{y}" font-size="11.5" fill="{INK}">{escape(text)}</text>'
        )
        x += width
    return items
