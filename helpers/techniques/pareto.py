"""Choices made one after the other, and the bytes and price of each path so far. No torch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, NamedTuple, TypeVar

from ..catalog.pareto import unbeaten

T = TypeVar("T")


class Path(NamedTuple, Generic[T]):
    """What was chosen so far: the bytes and the price of it all, the last choice, and the path before that."""

    nbytes: int
    price: float
    last: T | None = None
    before: Path[T] | None = None

    def then(self, choice: T, nbytes: int, price: float) -> Path[T]:
        return Path(self.nbytes + nbytes, self.price + price, choice, self)

    def choices(self) -> list[T]:
        """All of them, the first one first."""
        path, found = self, list[T]()
        while path.before is not None and path.last is not None:
            found.append(path.last)
            path = path.before
        return found[::-1]


def unbeaten_paths(paths: Iterable[Path[T]]) -> list[Path[T]]:
    """The paths that no other beats in bytes and price, those of fewest bytes first.

    Whatever is chosen after a beaten path can be chosen after its better, so nothing is lost without it.
    """
    return unbeaten(paths, lambda path: (path.nbytes, path.price))
