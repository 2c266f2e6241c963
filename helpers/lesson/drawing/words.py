"""What pictures show, in words: sentences for whoever cannot see them, made of the numbers that are drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from ...memory.breakdown import format_bytes
from .marks import label

MOST = 12  # entries that a sentence lists; of more it says how many there are


def listed(entries: Iterable[str], most: int = MOST) -> str:
    """The entries after one another; of more than `most` the first ones, and the number of the others.

    >>> listed(["a 1", "b 2"]), listed("abcd", most=2)
    ('a 1, b 2', 'a, b, and 2 more')
    """
    every = list(entries)
    more = [f"and {len(every) - most} more"] if len(every) > most else []
    return ", ".join([*every[:most], *more])


def of_parts(parts: Mapping[str, int], labels: Mapping[str, str] | None = None) -> str:
    """Bytes by part, those that are there; `labels` are names for this picture alone.

    >>> of_parts({"parameters": 2**20, "kv_cache": 2**21, "logits": 0})
    'parameters 1.00 MiB, KV cache 2.00 MiB'
    """
    return listed(
        f"{(labels or {}).get(part, label(part, parts))} {format_bytes(size)}" for part, size in parts.items() if size
    )


def number(value: float) -> str:
    """Four digits, or all of them before the point.

    >>> number(0.12345), number(16384)
    ('0.1235', '16,384')
    """
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def of_curve(name: str, x: Sequence[float], y: Sequence[float], at: str, show: Callable[[float], str] = number) -> str:
    """A curve by its ends, and by its highest or lowest point where that is at neither; `at` names the x axis.

    >>> of_curve("waste", [1, 2, 4], [3.0, 9.0, 5.0], "users")
    'waste goes from 3 to 5, and is highest, 9, at 2 users'
    """
    y = [0.0 if abs(value) < 1e-12 else value for value in y]  # what rounding left of a zero
    ends = f"{name} goes from {show(y[0])} to {show(y[-1])}"
    low, high = (pick(range(len(y)), key=y.__getitem__) for pick in (min, max))
    turns = [
        f", and is {word}, {show(y[place])}, at {number(x[place])} {at}"
        for word, place in (("highest", high), ("lowest", low))
        if y[place] not in (y[0], y[-1])
    ]
    return ends + "".join(turns)


def over(x: Sequence[float], what: str) -> str:
    """What runs across a picture, and from where to where.

    >>> over([1, 2, 4096], "tokens")
    'Across, tokens from 1 to 4,096'
    """
    return f"Across, {what} from {number(x[0])} to {number(x[-1])}"
