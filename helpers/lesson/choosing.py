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
    """Print which option is `right`, and of each why or why not: `because` has a sentence for every one.

    >>> settle("b", choose("Which?", "a", "b", guess="a"), {"a": "It is a lock.", "b": "It is a key."})
    Your guess. Which? a
    It is b. You said a.
      b  It is a key.
      a  It is a lock.
    """
    if isinstance(you, Choice) and (right not in you.options or set(because) != {*you.options}):
        do = "give each option its sentence in because={...}"
        raise WorkbookError(f"an answer to {you.question!r}", f"one of {', '.join(you.options)}", do)
    if not isinstance(you, Choice):
        print(f"It is {right}. {shown(you, 40)} is no guess: one is made by choose(..., guess=1).")
    elif you.picked is None:
        print(f"It is {right}.")
    else:
        print(f"It is {right}. You said {'so' if you.picked == right else you.picked}.")
    width = max(map(len, because))
    for option in sorted(because, key=lambda one: one != right):
        print(f"  {option:{width}}  {because[option]}")
