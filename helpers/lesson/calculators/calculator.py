"""A calculator: controls over a question, and the same answer in text where nothing is live."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from html import escape
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from ...catalog.errors import WorkbookError, require_name
from ...questions.parameter import CONFIG
from ...questions.question import Question
from ...questions.setups import Values
from ..drawing.marks import TextMark
from ..drawing.pictures import MARGIN, Card, png_of, svg_of
from .answers import CalculatorAnswer
from .theme import PANEL

if TYPE_CHECKING:
    from ipywidgets import VBox

# Put together here, because ipywidgets 7, which Colab has, hands out no bundle: it only displays one of its own.
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
Options = dict[str, tuple[str, Sequence[Any]]]  # by control: its text, and what it offers
STEP = "step"  # the control that counts from 1 what happens step by step
VALUE = "value"  # the control whose number is typed, or one of its choices
LETTERS = 108  # in a line of a card
SLIDER, ANSWER = "by-pointer", "calculator-answer"  # classes
# A SelectionSlider's handle has no name, and its value is a place in the list: "slider, 11". So it is for the pointer
# alone: a hidden handle gets no focus, and no screen reader reads it; the knob that it draws after itself is seen and
# dragged. An answer is as wide as its cell: what is wider scrolls by itself.
_DISC = "position:absolute;inset:0;border-radius:50%;background:var(--jp-brand-color1,#1976d2)"
_KNOB = f"content:'';visibility:visible;{_DISC}"
STYLE = f"""<style>.{SLIDER} :is(.noUi-handle, .ui-slider-handle) {{visibility:hidden}}
.{SLIDER} :is(.noUi-touch-area, .ui-slider-handle)::after {{{_KNOB}}}
.{ANSWER} > .widget-html-content {{min-width:0}}</style>"""


class Calculator:
    """Sliders and menus over a question.

    `start` moves controls from where they stand. In a live notebook the widgets show; where there is no front end (a
    stored notebook, GitHub, a terminal) the answer at the start shows as text and picture. Bad values print their
    error in place of the picture; the controls stay. Controls that do not matter for given values are hidden, and keep
    their place and their value. A start that is not among the choices (an alias, 3 sequences) joins them; WorkbookError
    for an unknown control.
    """

    def __init__(self, question: Question, start: Values) -> None:
        controls = {name: question.parameter(name).control for name in question.controls}
        for name in start:
            require_name("control", name, controls)
        self.question = question
        self.invites = "" if start else question.invites  # it speaks of where the controls stand by themselves
        self.start = {name: first for name, (_, _, first) in controls.items()} | dict(start)
        self.options: Options = {
            name: (text, _choices(known, self.start[name])) for name, (text, known, _) in controls.items()
        }
        if question.longest:
            self.options[STEP] = (self.options[STEP][0], range(1, question.longest(self.start) + 1))
        self.moved = tuple(start)

    def answer(self, **changes: Any) -> CalculatorAnswer:
        """The answer at the starting values, with `changes`: what the sliders would show."""
        if unknown := sorted(set(changes) - set(self.options)):
            raise WorkbookError(f"no control named {unknown[0]!r}", ", ".join(self.options), "pick one of these")
        return self._asked({**self.start, **changes})

    def _asked(self, values: Values) -> CalculatorAnswer:
        return self.question.ask(self.question.from_controls(values))

    def used(self, values: Values) -> set[str]:
        """The controls that matter for `values`."""
        return set(self.question.used(values)) if self.question.used else set(self.options)

    @property
    def front(self) -> tuple[str, ...]:
        """The controls in sight; all of them where the question does not choose."""
        return self.question.front or tuple(self.options)

    def render(self, values: Values) -> str:
        """HTML for `values`; an error is shown, not raised."""
        try:
            return self._asked(values).as_html()
        except WorkbookError as error:
            return self.render_error(error)

    def render_error(self, error: WorkbookError) -> str:
        """HTML that stands in place of the answer."""
        style = f"{PANEL};border-left:5px solid #d32f2f;white-space:pre-wrap"
        return f'<pre class="error" style="{style}">{escape(str(error))}</pre>'

    def widget(self) -> VBox:
        """The live calculator, as an ipywidgets box: presets, the controls, what else moves them, the answer."""
        import ipywidgets as w

        output = w.HTML()
        output.add_class(ANSWER)
        typed = {VALUE, *self.question.typed}
        boxes = {
            name: w.HBox(_control(w, name, *option, self.start[name], typed=name in typed))
            for name, option in self.options.items()
        }
        controls = {name: box.children[0] for name, box in boxes.items()}

        def redraw(change: object = None) -> None:
            values = {name: control.value for name, control in controls.items()}
            used = self.used(values)
            for name, box in boxes.items():
                self._show(box, name in used)
            output.value = self.render(values)

        redraw()
        for control in controls.values():
            control.observe(redraw, names="value")
        invites = w.HTML(f'{STYLE}<p class="invites" style="margin:4px 0">{escape(self.invites)}</p>')
        rows = [*self._presets(w, controls), *self._grids(w, boxes), *self._player(w, controls), invites, output]
        return w.VBox(rows, layout=w.Layout(max_width="764px"))

    def _grids(self, w: Any, boxes: Mapping[str, Any]) -> list[Any]:
        """The controls in front, and the others under *more*, which is open where one of them was moved."""
        columns = w.Layout(grid_template_columns="repeat(auto-fill, minmax(min(100%, 300px), 1fr))")
        front = [box for name, box in boxes.items() if name in self.front]
        grids = [w.GridBox(front, layout=columns)]
        if rest := {name: box for name, box in boxes.items() if name not in self.front}:
            inside = w.GridBox(list(rest.values()), layout=columns)
            more = w.Accordion(children=[inside], selected_index=0 if rest.keys() & set(self.moved) else None)
            more.set_title(0, "more")
            grids.append(more)
        return grids

    def _presets(self, w: Any, controls: Mapping[str, Any]) -> list[Any]:
        """A row of buttons, each of which moves some controls."""

        def button(name: str, values: Values) -> Any:
            def press(_: object) -> None:
                for control, value in values.items():
                    controls[control].value = value

            made = w.Button(description=name, layout=w.Layout(width="auto"))
            made.on_click(press)
            return made

        made = [button(name, values) for name, values in self.question.presets.items()]
        return [w.HBox(made, layout=w.Layout(flex_flow="row wrap"))] if made else []

    def _show(self, box: Any, used: bool) -> None:
        """A slider that is not used goes altogether: its knob would stay in sight."""
        control, *sliders = box.children
        control.layout.visibility = "visible" if used else "hidden"
        for part in (*sliders, *([box] if self.question.closes else [])):
            part.layout.display = None if used else "none"

    def last(self, values: Values) -> int | None:
        """The last of the steps that there are under `values`; None where nothing happens step by step."""
        if self.question.last is None:
            return None
        try:
            return self.question.last({name: value for name, value in values.items() if name != STEP})
        except WorkbookError:  # told in place of the picture
            return 1

    def _player(self, w: Any, controls: Mapping[str, Any]) -> list[Any]:
        """A button that plays the steps, where something happens step by step."""
        if self.question.last is None:
            return []
        step, others = controls[STEP], [control for name, control in controls.items() if name != STEP]

        def end() -> int | None:
            return self.last({name: control.value for name, control in controls.items()})

        interval = self.question.interval_ms
        play = w.Play(min=1, max=end(), value=step.value, interval=interval, description="play the steps")
        w.link((play, "value"), (step, "value"))
        for control in others:
            control.observe(lambda change: setattr(play, "max", end()), names="value")
        return [play]

    def _ipython_display_(self) -> None:
        from IPython.display import display

        answer = self.answer()
        cards = (*answer.cards, self._told(answer))
        bundle: dict[str, Any] = {
            "text/plain": repr(self),
            "image/svg+xml": svg_of(*cards),
            "image/png": b64encode(png_of(*cards)).decode(),
        }
        with suppress(ImportError):
            bundle[WIDGET_VIEW] = {"version_major": 2, "version_minor": 0, "model_id": self.widget().model_id}
        display(bundle, raw=True, metadata={"image/png": {"alt": answer.picture.alt}})

    def _told(self, answer: CalculatorAnswer) -> Card:
        """What a picture does not show and a stored one must say: the settings, what they mean, and what to do here."""
        used = self.used(self.start)
        said = [
            _set(self.options[name][0], value) for name, value in self.start.items() if name in used and value != ""
        ]
        lines = [*_wrapped(f"Set: {', '.join(said)}."), *_wrapped(answer.sentence)]
        marks = tuple(TextMark(MARGIN, 46 + 18 * at, line, 12.5) for at, line in enumerate(lines))
        return Card(self._to_do, 56 + 18 * len(lines), marks)

    def __repr__(self) -> str:
        answer = self.answer()
        command = [f"In a terminal: {answer.command}"] if answer.command else []
        return "\n".join((str(answer), "", *command, self._to_do))

    @property
    def _to_do(self) -> str:
        """For a stored notebook, whose controls are not there yet."""
        return f"Run this cell to move its controls. {self.invites}".strip()


def _wrapped(text: str) -> list[str]:
    return wrap(text, LETTERS, break_on_hyphens=False)


def _set(text: str, value: object) -> str:
    """
    >>> _set("sequence, tokens", 2048), _set("GPU", "h100")
    ('sequence 2,048 tokens', 'GPU h100')
    """
    name, _, unit = text.partition(", ")
    counted = isinstance(value, int)
    return " ".join(filter(None, (name, f"{value:,}" if counted else str(value), unit if counted else "")))


def _choices(choices: Sequence[Any], start: Any) -> list[Any]:
    if start in choices:
        return list(choices)
    numbers = all(type(choice) is int for choice in (*choices, start))
    return sorted([*choices, start]) if numbers else [start, *choices]


def _control(w: Any, name: str, text: str, choices: Sequence[Any], value: object, *, typed: bool) -> list[Any]:
    """A menu of names, or a box with a number, beside which a slider moves over the choices.

    JupyterLab takes the arrow keys from a menu, and leaves them to a box. A config's path and a calculator's one number
    are typed as well; the answer waits for the end of it.
    """
    layout, style = w.Layout(width="auto", flex="1 1 auto"), {"description_width": "120px"}
    if typed:
        free = {"options": choices, "ensure_option": False, "continuous_update": False}
        return [w.Combobox(value=str(value), description=text, layout=layout, style=style, **free)]
    if name == CONFIG:
        hint = "path of a config.json, or of its folder"
        return [w.Text(value, description=text, placeholder=hint, continuous_update=False, layout=layout, style=style)]
    if not all(isinstance(choice, int) for choice in choices):
        return [w.Dropdown(options=choices, value=value, description=text, layout=layout, style=style)]
    limits = {"min": min(choices), "max": max(choices)}
    narrow = w.Layout(width="218px", flex="0 0 auto")
    box = w.BoundedIntText(value=value, description=text, layout=narrow, style=style, **limits)
    options = [(f"{choice:,}", choice) for choice in choices]
    slider = w.SelectionSlider(options=options, value=value, readout=False, layout=layout)
    slider.add_class(SLIDER)
    w.link((box, "value"), (slider, "value"), transform=(partial(_nearest, choices), int))
    return [box, slider]


def _nearest(choices: Sequence[int], number: int) -> int:
    """Where the slider stands beside a number that is none of its own."""
    return min(choices, key=lambda choice: abs(choice - number))
