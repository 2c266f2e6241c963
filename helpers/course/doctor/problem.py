"""A problem and the one thing to do about it, with the words and remedies that several verdicts share."""

from __future__ import annotations

from dataclasses import dataclass, replace

GIB = 2**30
AGAIN = "rm -rf .venv; make lab"
NO_CUDA = "CUDA_VISIBLE_DEVICES= make lab"


@dataclass(frozen=True)
class Problem:
    """What is wrong, and the one thing to type or do about it."""

    what: str
    do: str


def gib(size_bytes: int) -> str:
    """`0.5 GiB`, `23.5 GiB`, `140 GiB`: three figures at most."""
    size = size_bytes / GIB
    return f"{size:.0f} GiB" if size >= 99.95 or size == round(size) else f"{size:.1f} GiB"


def without_repeats(problems: tuple[Problem, ...]) -> tuple[Problem, ...]:
    """Each remedy once: problems that the same thing cures are told together, at the first one's place."""
    merged: dict[str, Problem] = {}
    for one in problems:
        first = merged.get(one.do)
        merged[one.do] = one if first is None else replace(first, what=f"{first.what}; {one.what}")
    return tuple(merged.values())
