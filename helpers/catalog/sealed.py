"""Functions that show nobody what they hold: no cell, no code, no default leads to what they share.

Python lists a function's cells for whoever asks. `functools.cmp_to_key` makes an object in C that calls a function and
shows it to nobody but the garbage collector.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cmp_to_key
from typing import Any

SEALED: type = type(cmp_to_key(max))  # who is asked by `gc` what such an object refers to would tell


def sealed(function: Callable) -> Callable:
    """Calls `function`, and keeps it where nobody finds it.

    >>> sealed(max)(3, 4)
    4
    """

    def filled(arguments: Any, box: Any) -> int:
        box.append(function(*arguments[0], **arguments[1]))
        return 0

    key: Callable[[Any], Any] = cmp_to_key(filled)

    def call(*arguments: Any, **named: Any) -> Any:
        box: list[Any] = []
        _ = key((arguments, named)) < key(box)
        return box[0]

    return call
