"""What a picture is here: bytes with a title that says what to see, shown as PNG or SVG on a card of its own.

The card is light and opaque, so a figure reads the same in JupyterLab's dark and light themes. The colours are
Okabe and Ito's, told apart with every common colour blindness; a part has the same one in every figure.
"""

from __future__ import annotations

from dataclasses import dataclass

INK, FAINT, CARD = "#222222", "#777777", "#fbfaf7"

COLOURS = {
    "parameters": "#0072B2",
    "gradients": "#E69F00",
    "optimizer": "#009E73",
    "activations": "#D55E00",
    "logits": "#CC79A7",
    "workspace": "#999999",
    "kv_cache": "#56B4E9",
}
WEIGHTS = {"quantized": "#0072B2", "scales": "#E69F00", "constants": "#CC79A7", "kept": "#009E73"}  # of "parameters"
LINES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
LABELS = {"kv_cache": "KV cache", "logits": "logits and loss", "kept": "not quantized"}


def label(part: str) -> str:
    """A part's name as people write it."""
    return LABELS.get(part, part)


def colour_of(part: str) -> str:
    """A part's colour; grey for one that has none."""
    return COLOURS.get(part) or WEIGHTS.get(part, FAINT)


@dataclass(frozen=True)
class Picture:
    """A picture that a notebook shows; its text form is its title, which a screen reader reads."""

    title: str
    png: bytes | None = None
    svg: str | None = None

    def __repr__(self) -> str:
        return f"[picture: {self.title}]"

    def _repr_png_(self) -> bytes | None:
        return self.png

    def _repr_svg_(self) -> str | None:
        return self.svg
