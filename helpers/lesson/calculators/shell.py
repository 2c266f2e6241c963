"""A calculator: controls over one pure function, and the same answer in text where nothing is live."""

from __future__ import annotations

from abc import ABC, abstractmethod
from base64 import b64encode
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from html import escape

from ...catalog.errors import WorkbookError, unknown_name
from ...memory.closed_form.breakdown import Breakdown
from ..drawing.bars import stacked_bar
from ..drawing.pictures import CARD, INK, Picture
from ..drawing.plots import stacked_bars

# Put together here, because ipywidgets 7, which Colab has, hands out no bundle: it only displays one of its own.
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


@dataclass(frozen=True)
class Answer(ABC):
    """What a calculator says: a title, the formula filled in, one sentence, and the picture that its kind draws."""

    title: str
    formula: tuple[str, ...]
    sentence: str

    @property
    @abstractmethod
    def picture(self) -> Picture:
        """SVG, quick enough to follow a slider."""

    @property
    @abstractmethod
    def png(self) -> bytes:
        """The picture again: a notebook that nobody has run here is not trusted, and JupyterLab hides its SVG."""

    def __str__(self) -> str:
        return "\n".join((self.title, "", *self.formula, "", self.sentence))

    def as_html(self) -> str:
        lines = "\n".join(escape(line) for line in self.formula)
        return (
            f'{self.picture.svg}<pre style="background:{CARD};color:{INK};padding:8px 16px;line-height:1.45;'
            f'font-size:12.5px;border-radius:6px">{lines}</pre><p class="sentence" style="font-size:15px">'
            f"{escape(self.sentence)}</p>"
        )


@dataclass(frozen=True)
class MemoryAnswer(Answer):
    """Bytes by part, stacked against the device that they must fit."""

    parts: Breakdown
    capacity_bytes: int | None = None
    device: str = ""

    @property
    def picture(self) -> Picture:
        return stacked_bar(self.title, self.parts, self.capacity_bytes, self.device)

    @property
    def png(self) -> bytes:
        capacities = {self.device: self.capacity_bytes} if self.capacity_bytes else None
        return stacked_bars(self.title, {"": self.parts}, capacities).png


class Calculator:
    """Sliders and menus over `compute(**values) -> Answer`.

    `options` gives each control's choices in order, `start` where it stands. In a live notebook the widgets show;
    where there is no front end (a stored notebook, GitHub, a terminal) the answer at `start` shows as text and
    picture. Bad values print their error in place of the picture; the controls stay. `used` names the controls that
    matter for given values, all when there is none; the others are hidden, and keep their place and their value.
    A start that is not among the choices (an alias, 3 sequences) joins them; WorkbookError for an unknown control.
    """

    def __init__(
        self,
        compute: Callable[..., Answer],
        options: Mapping[str, tuple[str, list]],
        start: Mapping[str, object],
        used: Callable[[Mapping[str, object]], Collection[str]] | None = None,
    ) -> None:
        self.compute, self.start = compute, dict(start)
        for name in self.start:
            if name not in options:
                raise unknown_name("control", name, options)
        self.options = {name: (text, _choices(choices, start[name])) for name, (text, choices) in options.items()}
        self.used = used or (lambda values: options)

    def answer(self, **changes: object) -> Answer:
        """The answer at the starting values, with `changes`: what the sliders would show."""
        unknown = set(changes) - set(self.options)
        if unknown:
            raise WorkbookError(
                f"no control named {sorted(unknown)[0]!r}", ", ".join(self.options), "pick one of these"
            )
        return self.compute(**{**self.start, **changes})

    def render(self, values: Mapping[str, object]) -> str:
        """HTML for `values`; an error is shown, not raised."""
        try:
            return self.compute(**values).as_html()
        except WorkbookError as error:
            style = f"background:{CARD};color:#b00020;padding:8px 16px;border-radius:6px;white-space:pre-wrap"
            return f'<pre class="error" style="{style}">{escape(str(error))}</pre>'

    def widget(self):
        """The live calculator, as an ipywidgets box."""
        import ipywidgets as w

        controls = {
            name: _control(w, text, choices, self.start[name]) for name, (text, choices) in self.options.items()
        }
        output = w.HTML()

        def redraw(change: object = None) -> None:
            values = {name: control.value for name, control in controls.items()}
            used = self.used(values)
            for name, control in controls.items():
                control.layout.visibility = "visible" if name in used else "hidden"
            output.value = self.render(values)

        redraw()
        for control in controls.values():
            control.observe(redraw, names="value")
        grid = w.GridBox(
            list(controls.values()), layout=w.Layout(grid_template_columns="repeat(2, minmax(300px, 1fr))")
        )
        return w.VBox([grid, output], layout=w.Layout(max_width="764px"))

    def _ipython_display_(self) -> None:
        from IPython.display import display

        answer = self.answer()
        still = b64encode(answer.png).decode()
        bundle = {"text/plain": str(answer), "image/svg+xml": answer.picture.svg, "image/png": still}
        with suppress(ImportError):
            bundle[WIDGET_VIEW] = {"version_major": 2, "version_minor": 0, "model_id": self.widget().model_id}
        display(bundle, raw=True)

    def __repr__(self) -> str:
        return str(self.answer())


def _choices(choices: list, start: object) -> list:
    if start in choices:
        return choices
    numbers = all(type(choice) is int for choice in (*choices, start))
    return sorted([*choices, start]) if numbers else [start, *choices]


def _control(w, text: str, choices: list, value: object):
    """A slider for numbers, a menu for names; both from a list of choices, so every value is a sensible one."""
    layout, style = w.Layout(width="auto"), {"description_width": "110px"}
    numbers = all(isinstance(choice, int) for choice in choices)
    kind = w.SelectionSlider if numbers else w.Dropdown
    options = [(f"{choice:,}", choice) for choice in choices] if numbers else choices
    return kind(options=options, value=value, description=text, layout=layout, style=style)
