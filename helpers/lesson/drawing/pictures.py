"""What a notebook shows: a card of marks, or a figure that only matplotlib draws. A title says what to see."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from .marks import Mark, Text, text_width
from .render import GAP, png_bytes, png_figure, svg_card

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH, MARGIN = 760, 16
TITLE_SIZE = 15


@dataclass(frozen=True)
class Picture:
    """A PNG; its text form is its title, which a screen reader reads."""

    title: str
    png: bytes

    def __repr__(self) -> str:
        return f"[picture: {self.title}]"

    def _repr_png_(self) -> bytes:
        return self.png


@dataclass(frozen=True)
class Card:
    """Marks on a card `height` px high, under their title: SVG in a calculator, PNG in a notebook.

    A notebook gets no SVG, for JupyterLab hides that of a notebook that it does not trust, such as a fresh clone's.
    """

    title: str
    height: float
    body: tuple[Mark, ...]

    @property
    def marks(self) -> tuple[Mark, ...]:
        """The title, in smaller letters where it would leave the card, and all the rest."""
        fitting = TITLE_SIZE * min(1, (WIDTH - 2 * MARGIN) / (text_width(self.title, TITLE_SIZE, bold=True) or 1))
        return (Text(MARGIN, 24, self.title, round(fitting, 1), bold=True), *self.body)

    @cached_property
    def png(self) -> bytes:
        return png_of(self)

    def __repr__(self) -> str:
        return f"[picture: {self.title}]"

    def _repr_png_(self) -> bytes:
        return self.png


def svg_of(*cards: Card) -> str:
    """The cards as one SVG, below one another; the first one's title is that of the whole."""
    if len(cards) == 1:
        return svg_card(cards[0].title, cards[0].marks, WIDTH, cards[0].height)
    parts, top = [], 0.0
    for card in cards:
        parts.append(svg_card(card.title, card.marks, WIDTH, card.height, top))
        top += card.height + GAP
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top - GAP:g}" width="{WIDTH}"'
    return f'{head} style="max-width:100%">{"".join(parts)}</svg>'


def png_of(*cards: Card) -> bytes:
    """The same as PNG."""
    return png_bytes(png_figure([(card.marks, card.height) for card in cards], WIDTH))


def as_picture(figure: Figure, title: str) -> Picture:
    """A matplotlib figure as a notebook shows it."""
    return Picture(title, png_bytes(figure, trim=True))
