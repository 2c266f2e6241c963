"""What an operator is given and returns, one by one: without PyTorch's registry of trees, which anybody may change."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

_EACH: dict[type, Callable[[Any], Iterable]] = {tuple: tuple.__iter__, list: list.__iter__, deque: deque.__iter__}
_EACH |= {dict: dict.values}


def leaves(value: Any) -> Iterator[Any]:
    """What lies in tuples, lists and dicts, however deep; of their subclasses too, whatever those say that they hold.

    >>> [*leaves(([1, {"a": 2}], 3))]
    [1, 2, 3]
    """
    for kind, each in _EACH.items():
        if issubclass(type(value), kind):
            for one in each(value):
                yield from leaves(one)
            return
    yield value
