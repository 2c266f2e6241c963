"""A live calculator in its notebook's colours: JupyterLab's CSS variables, and the card's own colours elsewhere.

Stored pictures keep the light card, which reads the same on any page; only what a browser draws from HTML is themed.
"""

from __future__ import annotations

import re

from ..drawing.marks import CARD, FAINT, INK, ON_COLOUR

BACKGROUND = f"var(--jp-layout-color1, {CARD})"
FOREGROUND = f"var(--jp-content-font-color1, {INK})"
EDGE = "var(--jp-border-color2, transparent)"
THEMED = {CARD: BACKGROUND, INK: FOREGROUND, FAINT: f"var(--jp-content-font-color2, {FAINT})"}
PANEL = f"background:{BACKGROUND};color:{FOREGROUND};border:1px solid {EDGE};border-radius:6px;padding:8px 16px"

_PLAIN = re.compile("|".join(f'"{colour}"' for colour in THEMED))
_WORDS = re.compile(r'(<text [^>]*?)fill="(#(?=[0-9]*[A-F])[0-9A-F]{6})"')  # in a line's colour, as COLOURS has it
# Ink on a coloured box stays dark, and so its halo stays light.
_ON_COLOUR = re.compile(rf'(<text [^>]*fill="{ON_COLOUR}"[^>]*stroke=")[^"]*"')
_CARD = f'rx="6" fill="{BACKGROUND}"'


def themed(svg: str) -> str:
    """The picture with the page's ink on the page's ground; words in a line's colour are drawn towards that ink."""
    coloured = _PLAIN.sub(lambda found: f'"{THEMED[found[0][1:-1]]}"', svg).replace(_CARD, f'{_CARD} stroke="{EDGE}"')
    legible = _ON_COLOUR.sub(rf'\1{CARD}"', coloured)
    return _WORDS.sub(rf'\1style="fill:\2;fill:color-mix(in srgb, \2 65%, {FOREGROUND})"', legible)
