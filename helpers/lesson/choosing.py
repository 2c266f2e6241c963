"""A guess that is no number: a direction, an order, one of a few; and what the cell that answers says of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..catalog.errors import WorkbookError
from .plain import as_number, shown


@dataclass(frozen=True)
class Choice:
    """What the reader picked of `options`, or None."""

    question: str
    options: tuple[str, ...]
    picked: str | None


def choose(question: str, *options: str, guess: str | None = None) -> Choice:
    """Commit to one of `options`, as it is written or by its number from 1. Leave `guess=None` to go on without it.

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
        for at, option in enumerate([question, *options]):
            print(f"  {at}  {option}" if at else option)
        print(f"Put one in place of None, as guess={options[0]!r} or guess=1, and run this cell again.")
    return Choice(question, options, picked)


def _picked(options: tuple[str, ...], guess: object) -> str | None:
    if isinstance(guess, str):
        named = {option.lower(): option for option in options}
        numbered = {str(at): option for at, option in enumerate(options, 1)}
        return (numbered | named).get(guess.strip().lower())
    number = as_number(guess)
    return next((option for at, option in enumerate(options, 1) if at == number), None)


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
