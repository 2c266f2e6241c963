"""The two renderers of marks: SVG, quick enough to follow a slider, and PNG, through matplotlib."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from .marks import CARD, FAINT, INK, Area, Box, Dot, Line, Mark, Pattern, TextMark

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HATCHES: dict[Pattern, str] = {"stripes": "////", "dots": "...", "bars": "---", "crossed": "xxxx"}  # matplotlib's
TILES: dict[Pattern, str] = {
    "stripes": '<rect width="1.7" height="6" fill="{ink}"/>',
    "dots": '<circle cx="3" cy="3" r="1.3" fill="{ink}"/>',
    "bars": '<rect width="6" height="1.8" fill="{ink}"/>',
    "crossed": '<path d="M0 0H6M0 0V6" stroke="{ink}" stroke-width="1.5"/>',
}
POINTS_PER_PX = 0.72  # a card of 760 px is 7.6 inches wide
GAP = 6  # px between two cards


def svg_card(label: str, marks: Sequence[Mark], width: float, height: float, top: float | None = None) -> str:
    """The marks on a card; `label` is what screen readers say. `top`: where it stands within another SVG."""
    patterns = sorted({(mark.pattern, mark.fill, mark.ink) for mark in marks if isinstance(mark, Box) and mark.pattern})
    defined = f"<defs>{''.join(_svg_patterns(patterns))}</defs>" if patterns else ""
    place = "" if top is None else f' y="{top:g}" height="{height:g}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}"{place} '
        f'style="max-width:100%" role="img" aria-label="{escape(label)}" font-family="sans-serif">{defined}'
        f'<rect width="{width:g}" height="{height:g}" rx="6" fill="{CARD}"/>{"".join(map(_svg_mark, marks))}</svg>'
    )


def png_figure(cards: Sequence[tuple[Sequence[Mark], float]], width: float) -> Figure:
    """Cards (marks and height) of one width, below one another."""
    from matplotlib.figure import Figure

    total = sum(height for _, height in cards) + GAP * (len(cards) - 1)
    figure = Figure(figsize=(width / 100, total / 100), dpi=110, facecolor=CARD)
    foot = total
    for marks, height in cards:
        foot -= height
        place = (0, foot / total, 1, height / total)
        axes = figure.add_axes(place, facecolor=CARD, xlim=(0, width), ylim=(height, 0))
        axes.set_axis_off()
        for mark in marks:
            _png_mark(axes, mark)
        foot -= GAP
    return figure


def new_figure(title: str, height: float, left: float = 0.2, right: float = 0.97) -> tuple[Figure, Axes]:
    """A card of 7.6 by `height` inches with its title, and one pair of axes between `left` and `right`, in shares."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.6, height), dpi=110, facecolor=CARD)
    axes = figure.add_subplot(facecolor=CARD)
    figure.subplots_adjust(left=left, right=right, top=1 - 0.42 / height, bottom=0.46 / height)
    figure.text(0.02, 1 - 0.14 / height, title, fontsize=11, fontweight="bold", color=INK, va="top")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.tick_params(colors=INK, labelsize=9)
    return figure, axes


def write_on_top(axes: Axes, x: float, text: str, size: float = 9, colour: str = FAINT, anchor: str = "left") -> None:
    """`text` at `x`, under the upper edge of the axes."""
    place: dict[str, Any] = {"transform": axes.get_xaxis_transform(), "ha": anchor, "va": "top"}
    axes.text(x, 0.985, text, fontsize=size, color=colour, **place)


def png_bytes(figure: Figure, trim: bool = False) -> bytes:
    """The figure as PNG: the same bytes for the same figure, whichever day it is drawn. `trim` fits the card to it."""
    buffer, fit = io.BytesIO(), "tight" if trim else None
    figure.savefig(buffer, format="png", facecolor=CARD, metadata={"Software": None}, bbox_inches=fit, pad_inches=0.12)
    return buffer.getvalue()


def _svg_patterns(patterns: Iterable[tuple[Pattern, str, str]]) -> Iterator[str]:
    for pattern, fill, ink in patterns:
        turn = "" if pattern in ("dots", "bars") else ' patternTransform="rotate(45)"'
        yield (
            f'<pattern id="{_name(pattern, fill, ink)}" width="6" height="6" patternUnits="userSpaceOnUse"{turn}>'
            f'<rect width="6" height="6" fill="{fill}"/>{TILES[pattern].format(ink=ink)}</pattern>'
        )


def _name(pattern: Pattern, fill: str, ink: str) -> str:
    """Of a pattern: equal in every picture of a page, which share their names."""
    return f"{pattern}-{fill.lstrip('#')}-{ink.lstrip('#')}"


def _svg_mark(mark: Mark) -> str:
    match mark:
        case Box():
            return _svg_box(mark)
        case TextMark():
            return _svg_text(mark)
        case Line():
            dash = f' stroke-dasharray="{mark.dash}"' if mark.dash else ""
            style = f'fill="none" stroke="{mark.colour}" stroke-width="{mark.width:g}"{dash}'
            return _closed("polyline", f'{_kind(mark.kind)} points="{_svg_points(mark.points)}" {style}', mark.tooltip)
        case Area():
            style = f'fill="{mark.fill}" fill-opacity="{mark.opacity:g}"'
            return _closed("polygon", f'{_kind(mark.kind)} points="{_svg_points(mark.points)}" {style}', "")
        case Dot():
            place = f'{_kind(mark.kind)} cx="{mark.x:.1f}" cy="{mark.y:.1f}" r="{mark.radius:g}"'
            style = f'fill="{mark.fill}" stroke="{mark.edge}" stroke-width="{mark.line:g}"'
            return _closed("circle", f"{place} {style}", mark.tooltip)


def _svg_box(box: Box) -> str:
    fill = f"url(#{_name(box.pattern, box.fill, box.ink)})" if box.pattern else box.fill
    part = f' data-part="{escape(box.part)}"' if box.part else ""
    line = f' stroke-width="{box.line:g}"' if box.line != 1 else ""
    dash = ' stroke-dasharray="4 3"' if box.dashed else ""
    place = f'x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" height="{box.height:.1f}"'
    style = f'fill="{fill}" stroke="{box.edge}"{line}{dash}'
    return _closed("rect", f"{_kind(box.kind)}{part} {place} {style}", box.tooltip)


def _svg_text(text: TextMark) -> str:
    weight = ' font-weight="600"' if text.bold else ""
    halo = f' paint-order="stroke" stroke="{CARD}" stroke-width="2.5"' if text.halo else ""
    turned = f' transform="rotate({text.angle:.1f} {text.x:.1f} {text.y:.1f})"' if text.angle else ""
    return (
        f'<text x="{text.x:.1f}" y="{text.y:.1f}" font-size="{text.size:g}" fill="{text.colour}" '
        f'text-anchor="{text.anchor}"{weight}{halo}{turned}>{escape(text.text)}</text>'
    )


def _closed(tag: str, attributes: str, tooltip: str) -> str:
    return f"<{tag}{attributes}><title>{escape(tooltip)}</title></{tag}>" if tooltip else f"<{tag}{attributes}/>"


def _kind(kind: str) -> str:
    return f' class="{kind}"' if kind else ""


def _svg_points(points: Sequence[tuple[float, float]]) -> str:
    return " ".join([f"{x:.1f},{y:.1f}" for x, y in points])


def _png_mark(axes: Axes, mark: Mark) -> None:
    from matplotlib.patches import Circle, Polygon

    match mark:
        case Box():
            _png_box(axes, mark)
        case TextMark():
            _png_text(axes, mark)
        case Line():
            x, y = zip(*mark.points, strict=True)
            dashes = (0, tuple(map(float, mark.dash.split()))) if mark.dash else "-"
            axes.plot(x, y, color=mark.colour, linewidth=mark.width * POINTS_PER_PX, linestyle=dashes)
        case Area():
            axes.add_patch(Polygon(mark.points, facecolor=mark.fill, alpha=mark.opacity, linewidth=0))
        case Dot():
            style = {"facecolor": mark.fill, "edgecolor": mark.edge, "linewidth": mark.line * POINTS_PER_PX}
            axes.add_patch(Circle((mark.x, mark.y), mark.radius, zorder=3, **style))


def _png_box(axes: Axes, box: Box) -> None:
    """The pattern has a patch of its own: a patch's edge and its hatch have one colour."""
    from matplotlib.patches import Rectangle

    place, line = ((box.x, box.y), box.width, box.height), box.line * POINTS_PER_PX
    style = "--" if box.dashed else "-"
    axes.add_patch(Rectangle(*place, facecolor=box.fill, edgecolor=box.edge, linewidth=line, linestyle=style))
    if box.pattern:
        axes.add_patch(Rectangle(*place, fill=False, hatch=HATCHES[box.pattern], edgecolor=box.ink, linewidth=0))


def _png_text(axes: Axes, text: TextMark) -> None:
    from matplotlib.patheffects import withStroke

    anchor = {"start": "left", "middle": "center", "end": "right"}[text.anchor]
    place: dict[str, Any] = {"ha": anchor, "va": "baseline", "rotation": -text.angle, "rotation_mode": "anchor"}
    # matplotlib's letters are wider than a browser's: the same text needs a smaller size for the same room.
    size, weight = text.size * POINTS_PER_PX * 0.93, "bold" if text.bold else "normal"
    font: dict[str, Any] = {"fontsize": size, "fontweight": weight, "color": text.colour}
    halo = [withStroke(linewidth=1.8, foreground=CARD)] if text.halo else None
    axes.text(text.x, text.y, text.text, parse_math=False, path_effects=halo, **place, **font)
