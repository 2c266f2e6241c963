"""A stacked bar against a capacity line, as SVG: quick enough to follow a slider, and no library behind it."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from ..memory.account import GIB, human
from .pictures import CARD, INK, Picture, colour_of, label

WIDTH, HEIGHT, MARGIN, TOP, BAR = 760, 168, 16, 46, 44
DARK = ("parameters", "optimizer", "activations", "quantized", "kept")  # white is easier to read on these than ink


def stacked_bar(title: str, parts: Mapping[str, int], capacity_bytes: int | None = None, device: str = "") -> Picture:
    """`parts` (bytes by name) end to end, with a dashed line where the device is full.

    The scale reaches past both the total and the capacity, so neither is ever cut.
    """
    total = sum(parts.values())
    scale = (WIDTH - 2 * MARGIN) / (1.06 * max(total, capacity_bytes or 0, 1))
    body = [*_blocks(parts, scale), *_legend(parts)]
    if capacity_bytes:
        body += _capacity(capacity_bytes, scale, device)
    head = f'<text x="{MARGIN}" y="24" font-size="15" font-weight="600" fill="{INK}">{escape(title)}</text>'
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
        f'style="max-width:100%" role="img" aria-label="{escape(title)}" font-family="sans-serif">'
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="6" fill="{CARD}"/>{head}{"".join(body)}</svg>'
    )
    return Picture(title, svg=svg)


def _blocks(parts: Mapping[str, int], scale: float) -> list[str]:
    blocks, x = [], float(MARGIN)
    for name, size in parts.items():
        width = size * scale
        blocks.append(
            f'<rect class="part" data-part="{escape(name)}" x="{x:.1f}" y="{TOP}" width="{width:.1f}" '
            f'height="{BAR}" fill="{colour_of(name)}">'
            f"<title>{escape(label(name))}: {human(size)}</title></rect>"
        )
        if width > 46:
            blocks.append(
                f'<text x="{x + width / 2:.1f}" y="{TOP + 27}" text-anchor="middle" font-size="13" '
                f'fill="{"white" if name in DARK else INK}">{size / GIB:,.1f}</text>'
            )
        x += width
    return blocks


def _capacity(capacity_bytes: int, scale: float, device: str) -> list[str]:
    x = MARGIN + capacity_bytes * scale
    anchor, dx = ("end", -6) if x > WIDTH / 2 else ("start", 6)
    return [
        f'<line x1="{x:.1f}" y1="{TOP - 8}" x2="{x:.1f}" y2="{TOP + BAR + 8}" stroke="{INK}" stroke-width="2" '
        f'stroke-dasharray="5 3"/>',
        f'<text x="{x + dx:.1f}" y="{TOP + BAR + 20}" text-anchor="{anchor}" font-size="12" fill="{INK}">'
        f"{escape(device)} {human(capacity_bytes)}</text>",
    ]


def _legend(parts: Mapping[str, int]) -> list[str]:
    """Name and size of each part, in two rows where one is too short."""
    items, x, y = [], float(MARGIN), HEIGHT - 32
    for name, size in parts.items():
        text = f"{label(name)} {human(size)}"
        width = 26 + 6.3 * len(text)
        if x + width > WIDTH:
            x, y = float(MARGIN), y + 20
        items.append(
            f'<rect x="{x:.0f}" y="{y - 10}" width="10" height="10" fill="{colour_of(name)}"/>'
            f'<text x="{x + 14:.0f}" y="{y}" font-size="11.5" fill="{INK}">{escape(text)}</text>'
        )
        x += width
    return items
