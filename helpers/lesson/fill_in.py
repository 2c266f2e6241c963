"""A gap of a few lines in a chapter, tried at once: nothing is graded, and nothing stops."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from math import isclose, isfinite
from typing import Any

from ..catalog.errors import WorkbookError

Result = float | tuple[float, ...]


def fill_in(function: Callable, cases: Mapping[tuple, Result], rel: float = 0.0, hex_first: bool = False) -> None:
    """Call what the reader wrote with each case's arguments, and print what it gave beside what is right.

    `cases` is arguments to result, a number or a tuple of numbers; `rel` is the distance allowed, as a fraction of the
    result. `hex_first` shows the first argument, a code, as 0x2e66. Never raises for what the reader wrote: an
    unwritten gap says so in a line, and the first mistake ends the list.

    >>> fill_in(lambda weights, bits: weights * bits // 8, {(1024, 4): 512})
    ✓ <lambda>(1,024, 4) = 512
    """
    if not cases:
        raise WorkbookError("a fill-in without cases", "arguments and their results", "pass {(1024, 4): 512}")
    for arguments, expected in cases.items():
        shown = [hex(arguments[0]), *map(_shown, arguments[1:])] if hex_first else map(_shown, arguments)
        call = f"{getattr(function, '__name__', 'your function')}({', '.join(shown)})"
        if not _tried(function, arguments, expected, rel, call):
            break


def filled(function: Callable, *arguments: float) -> float | None:
    """What the reader's function gives, for `compare`; None while its gap is open, or where it gives no number.

    >>> filled(lambda weights, bits: weights * bits // 8, 1024, 4)
    512
    """
    try:
        given = function(*arguments)
    except Exception:  # the reader's: fill_in has told of it
        return None
    is_number = isinstance(given, int | float) and not isinstance(given, bool) and isfinite(given)
    return given if is_number else None


def _tried(function: Callable, arguments: tuple, expected: Result, rel: float, call: str) -> bool:
    try:
        given = function(*arguments)
        right = given is not None and given is not ... and _close(given, expected, rel)
    except NotImplementedError as gap:
        print(f"○ {call}: {_unwritten(gap)}, or go on without.")
        return False
    except Exception as problem:  # the reader's: of any kind
        print(f"✗ {call} raises {type(problem).__name__}: {problem}")
        return False
    print(f"✓ {call} = {_shown(given)}" if right else f"✗ {call} gives {_shown(given)}, expected {_shown(expected)}")
    return bool(right)


def _close(given: Any, expected: Result, rel: float) -> bool:
    if not isinstance(expected, tuple):
        return isclose(given, expected, rel_tol=rel, abs_tol=0.0)
    as_many = isinstance(given, tuple) and len(given) == len(expected)
    return as_many and all(_close(number, wanted, rel) for number, wanted in zip(given, expected, strict=True))


def _unwritten(gap: NotImplementedError) -> str:
    """Whose gap it is: that of the function called, or of an earlier one which it calls."""
    frames = traceback.extract_tb(gap.__traceback__)[1:]  # the first is our own call
    if len(frames) < 2:
        return "nothing is written yet. Fill the gap above"
    return f"{frames[-1].name}, which it calls, is not written yet. Fill that gap"


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(_shown, value))})"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return repr(value)
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.6g}"
