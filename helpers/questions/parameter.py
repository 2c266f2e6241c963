"""One thing that can be said of a question: its flag and help, its control, and how a command says it again."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..catalog.setup_fields import flag_of

Option = tuple[object, ...]  # a flag and its value, or a flag alone
CONFIG = "config"  # the control whose path, where one is typed, takes the place of the model
LEFT_OUT = object()  # a field of a setup that its command does not say
AS_FLAG = object()  # a control begins where its flag does


@dataclass(frozen=True)
class Parameter:
    """`name` is the setup's field, or the argument of the function that answers.

    `words` are those of --help; without them it has no flag. `type` reads what is typed: `str`, `whole`, `decimal`,
    `names`; `bool` is a flag that takes no value, `either` one that has a --no- form. A command says what is not
    `default`, or everything where `always`. `label` stands in front of a control, and without it there is none; `steps`
    are what it offers, by what it shows them as where that is a mapping; `start` is where it begins. `completes` are
    names for a shell, `choices` all that there are. What is `within_positions` a control keeps to those of the model.

    >>> tokens = Parameter("sequence", "tokens in a sequence", 2048, whole, label="tokens", steps=(1024, 2048))
    >>> tokens.option, list(tokens.said(512)), list(tokens.said(2048))
    ('--sequence', [('--sequence', 512)], [])
    """

    name: str
    words: str = ""
    default: Any = None
    type: Callable[[str], Any] = str
    flag: str = ""
    also: tuple[str, ...] = ()
    metavar: str | None = None
    required: bool = False
    by_position: bool = False
    always: bool = False
    choices: tuple[str, ...] | None = None
    completes: tuple[str, ...] = ()
    group: str = ""
    label: str = ""
    steps: Sequence[Any] | Mapping[Any, Any] = ()
    start: Any = AS_FLAG
    within_positions: bool = False

    @property
    def option(self) -> str:
        return self.name if self.by_position else self.flag or flag_of(self.name)

    def with_control(self, label: str, steps: Sequence[Any] | Mapping[Any, Any], start: Any = AS_FLAG) -> Parameter:
        return replace(self, label=label, steps=steps, start=start)

    @property
    def control(self) -> tuple[str, Sequence[Any], Any]:
        """Its text, what it offers, and where it stands."""
        return self.label, tuple(self.steps), self.default if self.start is AS_FLAG else self.start

    def meant(self, shown: Any) -> Any:
        """The value that a control's choice stands for."""
        return self.steps[shown] if isinstance(self.steps, Mapping) and shown in self.steps else shown

    def said(self, value: Any) -> Iterator[Option]:
        """How a command says `value`; nothing where the flag says it by itself."""
        if not (self.words and (self.always or value != self.default)) or value in (None, LEFT_OUT):
            return
        if self.type in (bool, either):
            yield (self.option if value else f"--no-{self.option.removeprefix('--')}",)
        elif self.by_position:
            yield ("--", value) if str(value).startswith("-") else (value,)
        else:
            written = ",".join(map(str, value)) if isinstance(value, tuple) else value
            yield (f"{self.option}={written}",) if str(written).startswith("-") else (self.option, written)


def either(text: str) -> bool:
    """The type of a flag that has a --no- form: argparse never reads a word for it."""
    raise argparse.ArgumentTypeError(f"{text!r} beside a flag that takes no value")


def names(text: str) -> tuple[str, ...]:
    """
    >>> names("lm_head, down_proj")
    ('lm_head', 'down_proj')
    """
    return tuple(name.strip() for name in text.split(",") if name.strip())


def whole(text: str) -> int:
    """Digits only: Python's int() would take 1_000 and ' 7 ' too."""
    if not text.removeprefix("-").isascii() or not text.removeprefix("-").isdigit() or len(text) > 18:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number{_digits_of(text)}")
    return int(text)


def _digits_of(text: str) -> str:
    """What to write for 8k, 8,192 or 1.000.

    >>> _digits_of("8k"), _digits_of("8,192"), _digits_of("ten")
    (': write 8192', ': write 8192', '')
    """
    if found := re.fullmatch(r"(\d{1,6})[kK]i?", text):
        return f": write {int(found[1]) * 1024}"
    return f": write {re.sub('[.,_ ]', '', text)}" if re.fullmatch(r"\d{1,3}([.,_ ]\d{3}){1,4}", text) else ""


def wholes(text: str) -> int | tuple[int, ...]:
    """One whole number, or several between commas."""
    return tuple(map(whole, text.split(","))) if "," in text else whole(text)


def decimal(text: str) -> float:
    """Digits with at most one point: Python's float() would take 1e9, nan and ' 7 ' too."""
    if not (text.isascii() and text.replace(".", "", 1).isdigit() and len(text) < 18):
        point = f": write {text.replace(',', '.')}" if re.fullmatch(r"\d{1,9},\d{1,9}", text) else ""
        raise argparse.ArgumentTypeError(f"{text!r} is not a decimal number{point}")
    return float(text)
