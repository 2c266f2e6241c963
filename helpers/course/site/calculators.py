"""The calculators' pages: controls from the calculators' own description, and the answer where they stand at first."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from ...lesson.calculators.calculator import VALUE, Calculator
from ...lesson.calculators.from_address import MOST_BYTES, MOST_HEADER_BYTES, OFFERED, calculator, drawn
from ...questions.about import ABOUT
from ...questions.parameter import CONFIG
from .pages import Page


@dataclass(frozen=True)
class Control:
    """One control as a page shows it: a slider for numbers, a menu for names, a box to type in, or a file to choose."""

    name: str
    text: str
    choices: tuple[Any, ...]
    value: Any
    used: bool
    in_front: bool = True
    typed: bool = False
    about: str = ""

    @property
    def kind(self) -> str:
        if self.name == CONFIG:
            return "file"
        if self.typed:
            return "typed"
        return "slider" if all(isinstance(choice, int) for choice in self.choices) else "menu"

    @property
    def at(self) -> int:
        return self.choices.index(self.value)


def calculator_pages() -> Iterator[Page]:
    """The list of them, then one page for each."""
    about = "Calculators of GPU memory: training, serving, KV cache, ZeRO, offload, quantization, attention"
    yield Page("calculators/index.html", "Calculators", "calculators", about, {"calculators": OFFERED})
    for slug in OFFERED:
        yield _page(slug)


def _page(slug: str) -> Page:
    offered = OFFERED[slug]
    address = f"calculators/{slug}.html"
    return Page(address, offered.title, "calculator", offered.asks, live(slug), ("calculator.js",))


def live(slug: str) -> dict[str, Any]:
    """What controls.html.j2 shows of a calculator: its controls, and the answer where they stand at first."""
    of, offered, first = calculator(slug), OFFERED[slug], drawn(slug, {})
    return {
        "slug": slug,
        "offered": offered,
        "invites": of.invites,
        "controls": list(controls(of, first.used)),
        "most_bytes": MOST_BYTES,
        "most_header_bytes": MOST_HEADER_BYTES,
        "closes": offered.closes,
        "interval_ms": offered.interval_ms,
        "presets": offered.presets,
        "behind": set(of.options) - set(of.front),
        "answer": first.html,
    }


def controls(of: Calculator, used: Collection[str]) -> Iterator[Control]:
    """All of them, in their order; a config, whose path a browser does not have, is a file to choose."""
    for name, (text, choices) in of.options.items():
        typed, shown = name == VALUE or name in of.question.typed, name in used or name == CONFIG
        yield Control(name, text, tuple(choices), of.start[name], shown, name in of.front, typed, ABOUT.get(name, ""))
