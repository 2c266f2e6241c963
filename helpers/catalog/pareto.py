"""Of things that cost two numbers, those that no other beats."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


def unbeaten(things: Iterable[T], costs: Callable[[T], tuple[float, float]], *, ties: bool = False) -> list[T]:
    """Those that no other is as low as in both costs and lower in one, by the first: the second falls from each to the
    next. Of several with the same costs the first one is kept, or with `ties` all.

    >>> unbeaten([(1, 9.0), (2, 5.0), (3, 6.0), (2, 5.0)], lambda thing: thing)
    [(1, 9.0), (2, 5.0)]
    """
    front: list[T] = []
    last: tuple[float, float] | None = None
    for cost, thing in sorted(((costs(thing), thing) for thing in things), key=lambda pair: pair[0]):
        if last is None or cost[1] < last[1] or (ties and cost == last):
            front.append(thing)
            last = cost
    return front
