"""Seeded inputs for the cells that ask: the same everywhere, until somebody who grades chooses another seed.

A kernel that is graded never holds that seed. What is drawn comes with the cell that asks, a secret for each name, and
is gone once it was drawn: before and after, `draw` gives what everybody has.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
from collections.abc import Iterator, Mapping

PUBLIC_SEED = "0"  # what the stored outputs were drawn with
_secrets: dict[str, str] = {}  # by name, for the cell that asks now


def draw(name: str) -> random.Random:
    """A random generator for the question called `name`, seeded by that name and by WORKBOOK_SEED ("0" unless set).

    Each question has its own, so that solving one exercise does not move the inputs of the next.

    >>> draw("lab-02/example").randint(1, 100) == draw("lab-02/example").randint(1, 100)
    True
    """
    return random.Random(_secrets.pop(name, "") or secret_of(name, os.environ.get("WORKBOOK_SEED", PUBLIC_SEED)))


def secret_of(name: str, seed: str) -> str:
    """What `draw(name)` is seeded with where the grader's seed is `seed`. From one nobody gets another, or the seed."""
    text = f"{seed}/{name}"
    return text if seed == PUBLIC_SEED else hashlib.sha256(text.encode()).hexdigest()


def give(secrets: Mapping[str, str]) -> None:
    """From now on each of these names is drawn with its secret, once; of earlier ones none is left."""
    _secrets.clear()
    _secrets.update(secrets)


@contextlib.contextmanager
def given(secrets: Mapping[str, str]) -> Iterator[None]:
    """`give`, as long as it lasts."""
    give(secrets)
    try:
        yield
    finally:
        _secrets.clear()
