"""What calculators say: a title, sums, sentences and cards; the same answer in text, in HTML and in figures."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from html import escape
from typing import Any

from ...catalog.devices import Device
from ...memory.breakdown import Breakdown, Moment, Part, format_bytes
from ...memory.fit.room import Room, Verdict
from ...questions.question import Question
from ..drawing.bars import stacked_bars
from ..drawing.pictures import Card, Picture, png_of, svg_of
from .theme import PANEL, themed

MARKS = {Verdict.FITS: "yes", Verdict.TIGHT: "tight", Verdict.DOES_NOT_FIT: "no"}


class CalculatorAnswer(ABC):
    """What a calculator says: a title, the formula filled in, what it means, and cards that show it."""

    @property
    @abstractmethod
    def title(self) -> str:
        """The answer in half a line."""

    @abstractmethod
    def lines(self) -> Iterator[str]:
        """The sums with their numbers."""

    @abstractmethod
    def sentences(self) -> Iterator[str]:
        """What it means, each only as far as it is true."""

    @property
    @abstractmethod
    def cards(self) -> tuple[Card, ...]:
        """The pictures, from top to bottom."""

    @property
    @abstractmethod
    def figures(self) -> dict[str, Any]:
        """Every number of the answer by name, unrounded, for JSON."""

    @property
    @abstractmethod
    def question(self) -> Question:
        """What was asked."""

    @property
    @abstractmethod
    def asked(self) -> dict[str, Any]:
        """What was said, by parameter of the question, a setup as it is."""

    @property
    def command(self) -> str | None:
        """The command that gives this answer in a terminal; None where what was asked cannot be written in one."""
        return self.question.command(self.asked)

    @property
    def formula(self) -> tuple[str, ...]:
        return tuple(self.lines())

    @property
    def sentence(self) -> str:
        return " ".join(self.sentences())

    @property
    def svg(self) -> str:
        """Quick enough to follow a slider."""
        return svg_of(*self.cards)

    @property
    def png(self) -> bytes:
        """The picture again: a notebook that nobody has run here is not trusted, and JupyterLab hides its SVG."""
        return png_of(*self.cards)

    @property
    def picture(self) -> Picture:
        """All cards as one picture, for a notebook that shows the answer without controls."""
        words = (card.words if card.title == self.title else card.alt for card in self.cards)
        return Picture(self.title, self.png, " ".join(words))

    def __str__(self) -> str:
        return "\n".join((self.title, "", *self.formula, "", self.sentence))

    def as_html(self) -> str:
        lines = "\n".join(escape(line) for line in self.formula)
        panel = f"{PANEL};line-height:1.45;font-size:12.5px;white-space:pre;overflow-x:auto"
        return f'{self._picture_as_html()}<pre tabindex="0" style="{panel}">{lines}</pre>{self._said_as_html()}'

    def _picture_as_html(self) -> str:
        wide = f'<div style="min-width:576px">{themed(self.svg)}</div>'  # in less, its letters could not be read
        return f'<div tabindex="0" style="overflow-x:auto">{wide}</div>'

    def _said_as_html(self) -> str:
        return f'<p class="sentence" style="font-size:15px">{escape(self.sentence)}</p>{self._command_as_html()}'

    def _command_as_html(self) -> str:
        """A click selects all of it."""
        if not self.command:
            return ""
        style = "user-select:all;cursor:copy;white-space:pre-wrap;overflow-wrap:anywhere;font-size:12.5px"
        code = f'<code class="command" style="{style}">{escape(self.command)}</code>'
        return f"<p>In a terminal (a click selects it):<br>{code}</p>"


@dataclass(frozen=True)
class MemoryAnswer(CalculatorAnswer):
    """Bytes by part, stacked against the device that they must fit, where one is named.

    `reserve_bytes` of it are kept for what PyTorch does not count, by card and `ranks` where it is None
    (`helpers.memory.fit.reserves`). Where `traced` says what a trace found, that stands in place of the closed form's
    verdict.
    """

    parts: Breakdown
    gpu: Device | None
    reserve_bytes: int | None = field(default=None, kw_only=True)
    traced: str = field(default="", kw_only=True)  # the sentence of a trace, which then decides

    @property
    def ranks(self) -> int:
        """Processes that work together, each on a card of its own."""
        return 1

    @property
    def room(self) -> Room | None:
        return Room(self.gpu, self.reserve_bytes, self.ranks) if self.gpu else None

    @property
    def capacity_bytes(self) -> int | None:
        return self.gpu.capacity_bytes if self.gpu else None

    @property
    def capacities(self) -> dict[str, int]:
        """The device's, by its title, for a picture."""
        return {self.gpu.title: self.gpu.capacity_bytes} if self.gpu else {}

    @property
    def cards(self) -> tuple[Card, ...]:
        return (stacked_bars(self.title, {"": self.parts}, self.capacities),)

    @property
    def figures(self) -> dict[str, Any]:
        return {
            "parts": dict(self.parts),
            "peak_bytes": self.parts.total,
            "reserve_bytes": self.room.reserve_bytes if self.room else None,
            "verdict": self.verdict(self.parts.total),
        }

    @property
    def on_card(self) -> dict[str, Any]:
        return said_of_card(self.gpu, self.reserve_bytes)

    def verdict(self, size_bytes: int) -> Verdict | None:
        """Of so many bytes on the device; None without one."""
        return self.room.verdict(size_bytes) if self.room else None

    def holds(self, size_bytes: int) -> bool | None:
        """Whether so many bytes fit the device beside the reserve; None without one."""
        return self.verdict(size_bytes) is Verdict.FITS if self.room else None

    def decides(self, room: Room, need_bytes: int) -> Iterator[str]:
        """Whether a step of so many bytes runs on the card: by the trace, where there is one."""
        yield self.traced or room.sentence(need_bytes)
        yield from () if self.traced else room.holes(need_bytes)

    def seconds_to_read(self, size_bytes: int) -> float | None:
        """At the device's memory bandwidth; None without one whose bandwidth is known."""
        return size_bytes / self.gpu.memory_bytes_per_s if self.gpu and self.gpu.memory_bandwidth else None


def said_of_card(gpu: Device | None, kept_bytes: int | None) -> dict[str, Any]:
    """The card and the MiB that are kept of it where somebody said how many, by parameter.

    >>> said_of_card(None, 2**30)
    {}
    """
    return {"gpu": gpu, "reserve": None if kept_bytes is None else -(-kept_bytes // 2**20)} if gpu else {}


def first_over(moments: Iterable[Moment], room: Room) -> Iterator[str]:
    """Where a run that does not fit stops: as its weights come, or in the first of its moments that needs too much."""
    moments = tuple(moments)
    if room.verdict(max(moment.total for moment in moments)) is Verdict.DOES_NOT_FIT:
        over = next(moment for moment in moments if moment.total > room.for_tensors_bytes)
        is_loading = over.parts.get(Part.PARAMETERS, 0) > room.for_tensors_bytes
        yield f"Out of memory {'while the model is loaded' if is_loading else over.when}."


def row(name: str, value: str, text: str) -> str:
    """A line of a formula: what is counted, how much, and how it comes about."""
    return f"{name}{value:>{24 - len(name)}}   {text}"


def mark(verdict: Verdict | None) -> str:
    """A verdict in a column headed "fits"."""
    return "" if verdict is None else f"   {MARKS[verdict]}"


def weights_do_not_fit(gpu: Device, excess_bytes: int) -> str:
    return f"Does not fit the {gpu.title}: the weights alone are {format_bytes(excess_bytes)} too large."


def without_kernel(weights: str, gpu: Device) -> str:
    return f"Transformers has no kernel for {weights} on the {gpu.title}: it loads the weights as BF16"


def plural(count: int, what: str) -> str:
    """
    >>> plural(1, "user"), plural(1024, "user")
    ('1 user', '1,024 users')
    """
    return f"{count:,} {what}{'s' * (count > 1)}"
