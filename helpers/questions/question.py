"""A question: its parameters and the function that answers. Flags, controls, page and command are made of it."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..catalog.devices import Device
from ..catalog.errors import require_name
from ..catalog.models import model as resolve_model
from .parameter import CONFIG, Option, Parameter
from .setups import NoCommandError, Values, gpu_word, model_word, names_of, reserve_bytes, setup_of, setup_options
from .setups import within_positions as within

UNKNOWN = object()  # what nobody else knows by name, and no command can say


@dataclass(frozen=True)
class Question:
    """`answer` takes the parameters by name: those of a `setup` as one, made of them, and the reserve in bytes.

    `words` describe its command, `title` and `asks` its page; `controls` are the parameters that have one, in order,
    of which `front` stand in sight and the others behind *more*. `means` turns what the controls say into what the
    flags do, where these are not the same; `used` names the controls that matter. `presets` are settings by name.
    """

    name: str
    words: str
    answer: Callable[..., Any]
    parameters: tuple[Parameter, ...]
    setup: type | None = None
    family: tuple[str, ...] = ("estimate",)
    units: str = "bytes"
    title: str = ""
    asks: str = ""
    invites: str = ""
    controls: tuple[str, ...] = ()
    front: tuple[str, ...] = ()
    shown: tuple[Parameter, ...] = ()  # controls that no flag has
    used: Callable[[Values], Collection[str]] | None = None
    means: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    last: Callable[[Values], int] | None = None  # where the control "step" ends, of what happens step by step
    longest: Callable[[Values], int] | None = None  # where it ends at most, whatever controls choose
    interval_ms: int = 0
    typed: Collection[str] = ()  # controls that take what they do not offer, as a name of the hub
    closes: bool = False  # whether controls that are not used give up their place
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def parameter(self, name: str) -> Parameter:
        every = {one.name: one for one in (*self.parameters, *self.shown)}
        return every[require_name("parameter", name, every)]

    def ask(self, said: Values) -> Any:
        """The answer to what was said by parameter; what is left out is as `answer` has it. WorkbookError."""
        own = names_of(self.setup) if self.setup else set()
        rest = {name: value for name, value in said.items() if name not in own}
        if "reserve" in rest:
            rest["reserve_bytes"] = reserve_bytes(rest.pop("reserve"), rest.get("gpu"))
        if self.setup:
            return self.answer(setup_of(self.setup, said), **rest)
        return self.answer(**rest)

    def from_controls(self, chosen: Values) -> dict[str, Any]:
        """What the controls say, by parameter; a path that was typed takes the place of the model."""
        said = {name: self.parameter(name).meant(value) for name, value in chosen.items() if name != CONFIG}
        if path := str(chosen.get(CONFIG, "")).strip():
            said["model"] = path
        if self.means:
            said = self.means(said)
        for name in {one.name for one in self.parameters if one.within_positions} & said.keys():
            said[name] = within(resolve_model(said["model"]), said[name])
        return said

    def command(self, asked: Values) -> str | None:
        """The command that asks for `asked`, quoted for a shell; None where something of it cannot be written.

        What is asked is by parameter, with the setup, the model and the card as they are.
        """
        try:
            return shlex.join(["workbook", *self.family, self.name, *map(str, self._written(asked))])
        except NoCommandError:
            return None

    def _written(self, asked: Values) -> Iterable[object]:
        for option in self._options(asked):
            yield from option

    def _options(self, asked: Values) -> Iterable[Option]:
        said = dict(asked)
        if setup := said.pop("setup", None):
            yield from setup_options(setup, *(name for name in said if name in names_of(type(setup))))
        for one in self.parameters:
            if one.name in said:
                yield from one.said(_word(said[one.name]))


def _word(value: Any) -> Any:
    if value is UNKNOWN:
        raise NoCommandError
    if isinstance(value, Device):
        return gpu_word(value)
    return model_word(value) if hasattr(value, "source") and hasattr(value, "layers") else value
