"""What padding wastes, and how many forwards a batch costs: counted from lengths alone. No torch but for the mask."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...catalog.errors import WorkbookError, require_whole

if TYPE_CHECKING:
    from torch import Tensor


def padding_waste(lengths: Sequence[int], batch: int | None = None) -> float:
    """Share of the slots that hold padding when every `batch` of sequences is as long as its longest; None: all.

    >>> padding_waste([10, 20, 30, 40])
    0.375
    """
    _require_lengths(lengths)
    slots = sum(len(group) * max(group) for group in _groups(lengths, batch))
    return 1 - sum(lengths) / slots


def expected_padding_waste(lengths: Sequence[int], batch: int) -> float:
    """The same for batches drawn at random from a service's `lengths`: 1 - mean / mean of the longest of `batch`.

    Of n draws the longest is at most the i-th of m sorted lengths with probability (i / m)**n.

    >>> round(expected_padding_waste([10, 20, 30, 40], batch=8), 3)
    0.358
    """
    _require_lengths(lengths)
    require_whole("batch", batch)
    ordered, count = sorted(lengths), len(lengths)
    longest = sum(length * ((at + 1) ** batch - at**batch) / count**batch for at, length in enumerate(ordered))
    return 1 - sum(lengths) / count / longest


Slots = list[list[tuple[int, int]]]  # of each slot: (first forward, forward after the last) of every answer on it


def static_slots(new_tokens: Sequence[int], batch: int) -> Slots:
    """Who sits where when a batch of answers ends with its longest. The prefill gives the first token.

    >>> static_slots([9, 1, 9, 1], batch=2)
    [[(0, 9), (9, 18)], [(0, 1), (9, 10)]]
    """
    _require_lengths(new_tokens)
    slots: Slots = [[] for _ in range(require_whole("batch", batch))]
    begin = 0
    for group in _groups(new_tokens, batch):
        for slot, length in zip(slots, group, strict=False):
            slot.append((begin, begin + length))
        begin += max(group)
    return slots


def continuous_slots(new_tokens: Sequence[int], batch: int) -> Slots:
    """The same if whoever ends is replaced before the next forward. Prefills ride along.

    >>> continuous_slots([9, 1, 9, 1], batch=2)
    [[(0, 9), (9, 10)], [(0, 1), (1, 10)]]
    """
    _require_lengths(new_tokens)
    free_at = [(0, slot) for slot in range(require_whole("batch", batch))]  # a heap: the earliest slot is taken
    slots: Slots = [[] for _ in free_at]
    for length in new_tokens:
        begin, slot = free_at[0]
        slots[slot].append((begin, begin + length))
        heapq.heapreplace(free_at, (begin + length, slot))
    return slots


def static_forwards(new_tokens: Sequence[int], batch: int) -> int:
    """Forwards of static batches: each lasts as long as its longest answer."""
    return _forwards(static_slots(new_tokens, batch))


def continuous_forwards(new_tokens: Sequence[int], batch: int) -> int:
    """Forwards if no slot stays empty while somebody waits.

    >>> static_forwards([9, 1, 9, 1], batch=2), continuous_forwards([9, 1, 9, 1], batch=2)
    (18, 10)
    """
    return _forwards(continuous_slots(new_tokens, batch))


def block_diagonal(lengths: Sequence[int]) -> Tensor:
    """[T, T] of bool: whom each token of a packed row sees; its own sequence, up to itself. T is the sum of lengths."""
    import torch

    _require_lengths(lengths)
    owner = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    return (owner[:, None] == owner[None, :]).tril()


def _forwards(slots: Slots) -> int:
    return max(end for slot in slots for _, end in slot)


def _groups(lengths: Sequence[int], batch: int | None) -> list[Sequence[int]]:
    size = len(lengths) if batch is None else require_whole("batch", batch)
    return [lengths[at : at + size] for at in range(0, len(lengths), size)]


def _require_lengths(lengths: Sequence[int]) -> None:
    if not lengths:
        raise WorkbookError("no lengths", "at least one sequence", "pass [12, 40]")
    for length in lengths:
        require_whole("a length", length)
