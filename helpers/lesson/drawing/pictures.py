"""What a notebook shows: a card of marks, or a figure that only matplotlib draws. A title says what to see.

Each picture has its words, too: what it shows, with its main numbers, for whoever cannot see it. They are stored beside
the PNG as `metadata["image/png"]["alt"]`, where nbconvert's classic templates and site builders look; the SVG of a
calculator has them as its label. JupyterLab (4.6) passes no alternative text on: with WORKBOOK_WORDS=1 in the
environment the words are printed under each picture.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from .marks import Mark, TextMark, text_width
from .render import GAP, png_bytes, png_figure, svg_card

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH, MARGIN = 760, 16
TITLE_SIZE = 15


class Shown:
    """A picture in a notebook; its text form is its title."""

    title: str
    png: bytes
    words: str

    @property
    def alt(self) -> str:
        """What a screen reader says: the title, and what the picture shows."""
        return f"{self.title}. {self.words}" if self.words else self.title

    def __repr__(self) -> str:
        return f"[picture: {self.title}]"

    def _repr_png_(self) -> tuple[bytes, dict[str, str]]:
        return self.png, {"alt": self.alt}

    def _ipython_display_(self) -> None:
        """Only where the words are wanted as text; IPython shows the PNG otherwise."""
        if not os.environ.get("WORKBOOK_WORDS"):
            raise NotImplementedError
        from IPython.display import Image, display

        display(Image(self.png, alt=self.alt))
        print(self.alt)


@dataclass(frozen=True, repr=False)
class Picture(Shown):
    """A figure as PNG."""

    title: str
    png: bytes
    words: str = ""


@dataclass(frozen=True, repr=False)
class Card(Shown):
    """Marks on a card `height` px high, under their title: SVG in a calculator, PNG in a notebook.

    A notebook gets no SVG, for JupyterLab hides that of a notebook that it does not trust, such as a fresh clone's.
    """

    title: str
    height: float
    body: tuple[Mark, ...]
    words: str = ""

    @property
    def marks(self) -> tuple[Mark, ...]:
        """The title, in smaller letters where it would leave the card, and all the rest."""
        fitting = TITLE_SIZE * min(1, (WIDTH - 2 * MARGIN) / (text_width(self.title, TITLE_SIZE, bold=True) or 1))
        return (TextMark(MARGIN, 24, self.title, round(fitting, 1), bold=True), *self.body)

    @cached_property
    def png(self) -> bytes:  # type: ignore[override]
        return png_of(self)


def svg_of(*cards: Card) -> str:
    """The cards as one SVG, below one another, each with its words for screen readers."""
    if len(cards) == 1:
        return svg_card(cards[0].alt, cards[0].marks, WIDTH, cards[0].height)
    parts, top = [], 0.0
    for card in cards:
        parts.append(svg_card(card.alt, card.marks, WIDTH, card.height, top))
        top += card.height + GAP
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top - GAP:g}" width="{WIDTH}"'
    return f'{head} style="max-width:100%">{"".join(parts)}</svg>'


def png_of(*cards: Card) -> bytes:
    """The same as PNG."""
    return png_bytes(png_figure([(card.marks, card.height) for card in cards], WIDTH))


def as_picture(figure: Figure, title: str, words: str) -> Picture:
    """A matplotlib figure as a notebook shows it; `words` say what it shows, with its main numbers."""
    return Picture(title, png_bytes(figure, trim=True), words)
