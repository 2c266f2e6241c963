"""A picture as a list of boxes and words, drawn twice from the same list: SVG to follow a slider, PNG to be stored."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from .figures import as_picture
from .pictures import CARD, INK, Picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HATCHES = {"": None, "stripes": "////", "dots": "...", "bars": "---", "crossed": "xxxx"}  # pattern -> matplotlib's
TILES = {
    "stripes": '<rect width="1.7" height="6" fill="{ink}"/>',
    "dots": '<circle cx="3" cy="3" r="1.3" fill="{ink}"/>',
    "bars": '<rect width="6" height="1.8" fill="{ink}"/>',
    "crossed": '<path d="M0 0H6M0 0V6" stroke="{ink}" stroke-width="1.5"/>',
}
POINTS_PER_PX = 0.72  # a card of 760 px is 7.6 inches wide


@dataclass(frozen=True)
class Box:
    """A rectangle, in px from the top left. `pattern` is drawn in `ink` over `fill`, `kind` is its class in the SVG."""

    x: float
    y: float
    width: float
    height: float
    fill: str
    pattern: str = ""
    ink: str = CARD
    edge: str = CARD
    line: float = 1.0  # of the edge
    kind: str = ""
    told: str = ""  # what pointing at it says


@dataclass(frozen=True)
class Words:
    """A line of text; `y` is its base line. With `halo` it can be read on any box."""

    x: float
    y: float
    text: str
    size: float = 11.5
    colour: str = INK
    anchor: str = "start"  # or "middle" or "end"
    bold: bool = False
    halo: bool = False


Mark = Box | Words


def marks_svg(title: str, marks: Iterable[Mark], width: int, height: int) -> Picture:
    """The marks on a card of `width` × `height` px; the title is told to screen readers, and drawn only by a mark."""
    drawn = list(marks)
    patterns = sorted({(mark.pattern, mark.fill, mark.ink) for mark in drawn if isinstance(mark, Box) and mark.pattern})
    body = "".join(_svg_box(mark) if isinstance(mark, Box) else _svg_words(mark) for mark in drawn)
    return Picture(
        title,
        svg=(
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
            f'style="max-width:100%" role="img" aria-label="{escape(title)}" font-family="sans-serif">'
            f"<defs>{''.join(_svg_patterns(patterns))}</defs>"
            f'<rect width="{width}" height="{height}" rx="6" fill="{CARD}"/>{body}</svg>'
        ),
    )


def marks_png(title: str, marks: Iterable[Mark], width: int, height: int) -> Picture:
    """The same, for a stored notebook."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width / 100, height / 100), dpi=110, facecolor=CARD)
    axes = figure.add_axes((0, 0, 1, 1), facecolor=CARD, xlim=(0, width), ylim=(height, 0))
    axes.set_axis_off()
    for mark in marks:
        if isinstance(mark, Box):
            _png_box(axes, mark)
        else:
            _png_words(axes, mark)
    return as_picture(figure, title)


def _svg_patterns(patterns: Iterable[tuple[str, str, str]]) -> Iterator[str]:
    for pattern, fill, ink in patterns:
        turn = "" if pattern in ("dots", "bars") else ' patternTransform="rotate(45)"'
        yield (
            f'<pattern id="{_name(pattern, fill, ink)}" width="6" height="6" patternUnits="userSpaceOnUse"{turn}>'
            f'<rect width="6" height="6" fill="{fill}"/>{TILES[pattern].format(ink=ink)}</pattern>'
        )


def _name(pattern: str, fill: str, ink: str) -> str:
    """Of a pattern: equal in every picture of a page, which share their names."""
    return f"{pattern}-{fill.lstrip('#')}-{ink.lstrip('#')}"


def _svg_box(box: Box) -> str:
    fill = f"url(#{_name(box.pattern, box.fill, box.ink)})" if box.pattern else box.fill
    kind = f' class="{box.kind}"' if box.kind else ""
    line = f' stroke-width="{box.line:g}"' if box.line != 1 else ""
    told = f"><title>{escape(box.told)}</title></rect>" if box.told else "/>"
    return (
        f'<rect{kind} x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" height="{box.height:.1f}" '
        f'fill="{fill}" stroke="{box.edge}"{line}{told}'
    )


def _svg_words(words: Words) -> str:
    weight = ' font-weight="600"' if words.bold else ""
    halo = f' paint-order="stroke" stroke="{CARD}" stroke-width="2.5"' if words.halo else ""
    return (
        f'<text x="{words.x:.1f}" y="{words.y:.1f}" font-size="{words.size}" fill="{words.colour}" '
        f'text-anchor="{words.anchor}"{weight}{halo}>{escape(words.text)}</text>'
    )


def _png_box(axes: Axes, box: Box) -> None:
    """The pattern has a patch of its own: a patch's edge and its hatch have one colour."""
    from matplotlib.patches import Rectangle

    place = ((box.x, box.y), box.width, box.height)
    axes.add_patch(Rectangle(*place, facecolor=box.fill, edgecolor=box.edge, linewidth=box.line * POINTS_PER_PX))
    if box.pattern:
        axes.add_patch(Rectangle(*place, fill=False, hatch=HATCHES[box.pattern], edgecolor=box.ink, linewidth=0))


def _png_words(axes: Axes, words: Words) -> None:
    from matplotlib.patheffects import withStroke

    # matplotlib's letters are wider than a browser's: the same text needs a smaller size for the same room.
    axes.text(
        words.x,
        words.y,
        words.text,
        fontsize=words.size * POINTS_PER_PX * 0.93,
        color=words.colour,
        ha={"start": "left", "middle": "center", "end": "right"}[words.anchor],
        va="baseline",
        fontweight="bold" if words.bold else "normal",
        parse_math=False,
        path_effects=[withStroke(linewidth=1.8, foreground=CARD)] if words.halo else None,
    )
