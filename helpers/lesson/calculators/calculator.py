"""A calculator: controls over one pure function, and the same answer in text where nothing is live."""

from __future__ import annotations

from abc import ABC, abstractmethod
from base64 import b64encode
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any

from ...catalog.devices import Device
from ...catalog.errors import WorkbookError, require_name
from ...memory.closed_form.breakdown import Breakdown, format_bytes
from ...memory.fit.room import RESERVE_BYTES, Room, Verdict
from ..drawing.bars import stacked_bars
from ..drawing.pictures import Card, Picture, png_of, svg_of
from .command import Option, device_options
from .theme import PANEL, themed

if TYPE_CHECKING:
    from ipywidgets import VBox

# Put together here, because ipywidgets 7, which Colab has, hands out no bundle: it only displays one of its own.
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
MARKS = {Verdict.FITS: "yes", Verdict.TIGHT: "tight", Verdict.DOES_NOT_FIT: "no"}
CONFIG = "config"  # the control whose path, where one is typed, takes the place of the model
Controls = Mapping[str, tuple[str, Sequence[Any], Any]]  # by control: its text, its choices in order, where it stands
ANY_CONFIG = ("or a config", ("",), "")
Values = Mapping[str, Any]  # by control: what is chosen


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
    def command(self) -> str | None:
        """The command that gives this answer in a terminal; None where what was asked cannot be written in one."""

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
        panel = f"{PANEL};line-height:1.45;font-size:12.5px;overflow-x:auto"
        sentence = f'<p class="sentence" style="font-size:15px">{escape(self.sentence)}</p>{self._command_as_html()}'
        return f'{themed(self.svg)}<pre style="{panel}">{lines}</pre>{sentence}'

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

    `reserve_bytes` of it are kept for what PyTorch does not count (`helpers.memory.fit.room`).
    """

    parts: Breakdown
    gpu: Device | None
    reserve_bytes: int = field(default=RESERVE_BYTES, kw_only=True)

    @property
    def room(self) -> Room | None:
        return Room(self.gpu, self.reserve_bytes) if self.gpu else None

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
            "reserve_bytes": self.reserve_bytes if self.gpu else None,
            "verdict": self.verdict(self.parts.total),
        }

    def device_options(self) -> Iterator[Option]:
        """For the command."""
        return device_options(self.gpu, self.reserve_bytes)

    def verdict(self, size_bytes: int) -> Verdict | None:
        """Of so many bytes on the device; None without one."""
        return self.room.verdict(size_bytes) if self.room else None

    def holds(self, size_bytes: int) -> bool | None:
        """Whether so many bytes fit the device beside the reserve; None without one."""
        return self.verdict(size_bytes) is Verdict.FITS if self.room else None

    def seconds_to_read(self, size_bytes: int) -> float | None:
        """At the device's memory bandwidth; None without one whose bandwidth is known."""
        return size_bytes / self.gpu.memory_bytes_per_s if self.gpu and self.gpu.memory_bandwidth else None


def row(name: str, value: str, text: str) -> str:
    """A line of a formula: what is counted, how much, and how it comes about."""
    return f"{name:<12}{value:>12}   {text}"


def mark(verdict: Verdict | None) -> str:
    """A verdict in a column headed "fits"."""
    return "" if verdict is None else f"   {MARKS[verdict]}"


def weights_do_not_fit(gpu: Device, excess_bytes: int) -> str:
    return f"Does not fit the {gpu.title}: the weights alone are {format_bytes(excess_bytes)} too large."


def plural(count: int, what: str) -> str:
    """
    >>> plural(1, "user"), plural(1024, "user")
    ('1 user', '1,024 users')
    """
    return f"{count:,} {what}{'s' * (count > 1)}"


class Calculator:
    """Sliders and menus over `compute(**values) -> CalculatorAnswer`.

    `start` moves controls from where they stand. In a live notebook the widgets show; where there is no front end (a
    stored notebook, GitHub, a terminal) the answer at the start shows as text and picture. Bad values print their
    error in place of the picture; the controls stay. `invites` says in a line what to try first. `used` names the
    controls that matter for given values, all when there is none; the others are hidden, and keep their place and
    their value. A start that is not among the choices (an alias, 3 sequences) joins them; WorkbookError for an unknown
    control.
    """

    def __init__(
        self,
        compute: Callable[..., CalculatorAnswer],
        controls: Controls,
        start: Values,
        invites: str,
        used: Callable[[Values], Collection[str]] | None = None,
    ) -> None:
        for name in start:
            require_name("control", name, controls)
        self.invites = "" if start else invites  # it speaks of the state that the controls stand in by themselves
        self.compute, self.start = compute, {name: first for name, (_, _, first) in controls.items()} | dict(start)
        self.options = {name: (text, _choices(known, self.start[name])) for name, (text, known, _) in controls.items()}
        self.used = used or (lambda values: controls)

    def answer(self, **changes: Any) -> CalculatorAnswer:
        """The answer at the starting values, with `changes`: what the sliders would show."""
        if unknown := sorted(set(changes) - set(self.options)):
            raise WorkbookError(f"no control named {unknown[0]!r}", ", ".join(self.options), "pick one of these")
        return self._asked({**self.start, **changes})

    def _asked(self, values: Values) -> CalculatorAnswer:
        """A path that was typed takes the place of the model."""
        given = dict(values)
        if path := str(given.pop(CONFIG, "")).strip():
            given["model"] = path
        return self.compute(**given)

    def render(self, values: Values) -> str:
        """HTML for `values`; an error is shown, not raised."""
        try:
            return self._asked(values).as_html()
        except WorkbookError as error:
            style = f"{PANEL};border-left:5px solid #d32f2f;white-space:pre-wrap"
            return f'<pre class="error" style="{style}">{escape(str(error))}</pre>'

    def widget(self) -> VBox:
        """The live calculator, as an ipywidgets box: the controls, what else moves them, the answer."""
        import ipywidgets as w

        output = w.HTML()
        controls = {name: _control(w, name, *option, self.start[name]) for name, option in self.options.items()}

        def redraw(change: object = None) -> None:
            values = {name: control.value for name, control in controls.items()}
            used = self.used(values)
            for name, control in controls.items():
                control.layout.visibility = "visible" if name in used else "hidden"
            output.value = self.render(values)

        redraw()
        for control in controls.values():
            control.observe(redraw, names="value")
        columns = w.Layout(grid_template_columns="repeat(2, minmax(300px, 1fr))")
        grid = w.GridBox(list(controls.values()), layout=columns)
        invites = w.HTML(f'<p class="invites" style="margin:4px 0">{escape(self.invites)}</p>')
        rows = [grid, *self._movers(w, controls), *([invites] if self.invites else []), output]
        return w.VBox(rows, layout=w.Layout(max_width="764px"))

    def _movers(self, w: Any, controls: Mapping[str, Any]) -> list[Any]:
        """Widgets under the controls that move them."""
        return []

    def _ipython_display_(self) -> None:
        from IPython.display import display

        answer = self.answer()
        cards = (*answer.cards, Card(self._to_do, 38, ()))
        bundle: dict[str, Any] = {
            "text/plain": repr(self),
            "image/svg+xml": svg_of(*cards),
            "image/png": b64encode(png_of(*cards)).decode(),
        }
        with suppress(ImportError):
            bundle[WIDGET_VIEW] = {"version_major": 2, "version_minor": 0, "model_id": self.widget().model_id}
        display(bundle, raw=True, metadata={"image/png": {"alt": answer.picture.alt}})

    def __repr__(self) -> str:
        answer = self.answer()
        command = [f"In a terminal: {answer.command}"] if answer.command else []
        return "\n".join((str(answer), "", *command, self._to_do))

    @property
    def _to_do(self) -> str:
        """For a stored notebook, whose controls are not there yet."""
        return f"Run this cell to move its controls. {self.invites}".strip()


class StepCalculator(Calculator):
    """A calculator of something that happens step by step, with a button that plays the steps.

    Its control "step" counts from 1; `last` says where the other controls let it end.
    """

    def __init__(
        self,
        compute: Callable[..., CalculatorAnswer],
        controls: Controls,
        start: Values,
        invites: str,
        last: Callable[[Values], int],
        interval_ms: int,
    ) -> None:
        super().__init__(compute, controls, start, invites)
        self.last, self.interval_ms = last, interval_ms

    def _movers(self, w: Any, controls: Mapping[str, Any]) -> list[Any]:
        step, others = controls["step"], {name: control for name, control in controls.items() if name != "step"}

        def end() -> int:
            try:
                return self.last({name: control.value for name, control in others.items()}) - 1
            except WorkbookError:  # told in place of the picture
                return 0

        play = w.Play(min=0, max=end(), value=step.index, interval=self.interval_ms, description="play the steps")
        w.link((play, "value"), (step, "index"))
        for control in others.values():
            control.observe(lambda change: setattr(play, "max", end()), names="value")
        return [play]


def _choices(choices: Sequence[Any], start: Any) -> list[Any]:
    if start in choices:
        return list(choices)
    numbers = all(type(choice) is int for choice in (*choices, start))
    return sorted([*choices, start]) if numbers else [start, *choices]


def _control(w: Any, name: str, text: str, choices: Sequence[Any], value: object) -> Any:
    """A slider for numbers, a menu for names; both from a list of choices, so every value is a sensible one.

    A config's path is typed; the answer waits for the end of it.
    """
    layout, style = w.Layout(width="auto"), {"description_width": "110px"}
    if name == CONFIG:
        hint = "path of a config.json, or of its folder"
        return w.Text(value, description=text, placeholder=hint, continuous_update=False, layout=layout, style=style)
    numbers = all(isinstance(choice, int) for choice in choices)
    kind = w.SelectionSlider if numbers else w.Dropdown
    options = [(f"{choice:,}", choice) for choice in choices] if numbers else choices
    return kind(options=options, value=value, description=text, layout=layout, style=style)
