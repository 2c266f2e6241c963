"""A guess that is no number: a direction, an order, one of a few; and what the cell that answers says of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..catalog.errors import WorkbookError
from .plain import shown


@dataclass(frozen=True)
class Choice:
    """What the reader picked of `options`, or None."""

    question: str
    options: tuple[str, ...]
    picked: str | None


def choose(question: str, *options: str, guess: str | None = None) -> Choice:
    """Commit to one of `options`, as it is written or by its number from 1. Leave `guess=None` to go on without.

    What is none of them is no guess: a line says which there are, and the chapter goes on.

    >>> choose("Which is larger?", "the weights", "the gradients", guess=1).picked
    Your guess. Which is larger? the weights
    'the weights'
    """
    if len(options) < 2 or len(set(options)) < len(options):
        raise WorkbookError(f"the options are {options}", "two or more that differ", "pass each option once")
    picked = _picked(options, guess)
    if picked is not None:
        print(f"Your guess. {question} {picked}")
    else:
        if guess is not None:
            print(f"{shown(guess, 40)} is none of these, so you have no guess yet.")
        listed = "\n".join(f"  {at}  {option}" for at, option in enumerate(options, 1))
        print(f"{question}\n{listed}\nPut the number of one in place of None and run this cell again.")
    return Choice(question, options, picked)


def _picked(options: tuple[str, ...], guess: object) -> str | None:
    if isinstance(guess, str):
        return next((option for option in options if option.lower() == guess.strip().lower()), None)
    if not isinstance(guess, int) or isinstance(guess, bool) or not 1 <= guess <= len(options):
        return None
    return options[guess - 1]


def settle(right: str, you: Choice, because: Mapping[str, str]) -> None:
    """Print the option that is `right`, then a sentence of `because` for the one that was picked, or for the right one.

    >>> settle("b", choose("Which?", "a", "b", guess="a"), {"a": "a is a lock.", "b": "b is a key."})
    Your guess. Which? a
    It is b. b is a key.
    You said a. a is a lock.
    """
    if not isinstance(you, Choice):
        print(f"It is {right}. {because[right]}")
        print(f"{shown(you, 40)} is no guess. One is made by choose(..., guess=1).")
        return
    if right not in you.options or set(because) != {*you.options}:
        do = "give each option its sentence in because={...}"
        raise WorkbookError(f"an answer to {you.question!r}", f"one of {', '.join(you.options)}", do)
    print(f"It is {right}. {because[right]}")
    if you.picked is not None and you.picked != right:
        print(f"You said {you.picked}. {because[you.picked]}")
