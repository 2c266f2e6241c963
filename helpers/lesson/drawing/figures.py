"""A matplotlib figure on the workbook's card, and the Picture that it becomes."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from .pictures import CARD, INK, Picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def new_figure(title: str, height: float) -> tuple[Figure, Axes]:
    """A card of 7.6 by `height` inches with its title, and one pair of axes with room for names on the left."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.6, height), dpi=110, facecolor=CARD)
    axes = figure.add_subplot(facecolor=CARD)
    top, bottom = 1 - 0.42 / height, 0.46 / height
    figure.subplots_adjust(left=0.2, right=0.97, top=top, bottom=bottom)
    figure.text(0.02, 1 - 0.14 / height, title, fontsize=11, fontweight="bold", color=INK, va="top")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.tick_params(colors=INK, labelsize=9)
    return figure, axes


def as_picture(figure: Figure, title: str) -> Picture:
    """The figure as PNG: the same bytes for the same figure, whichever day it is drawn."""
    buffer = io.BytesIO()
    figure.savefig(
        buffer, format="png", facecolor=CARD, bbox_inches="tight", pad_inches=0.12, metadata={"Software": None}
    )
    return Picture(title, png=buffer.getvalue())
