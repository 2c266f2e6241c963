"""Decoding, continued: thousands of steps that differ in nothing but what grows with the cache, from two that were run.

The events of a step are those of the one before, in the same order; of those whose size changes, the number of elements
grows by as many from step to step. Of the steps between only these are told, for what is made and freed at one size
leaves the allocator as it found it; of the last step, all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from ..breakdown import rounded
from ..meter.timeline import AllocationEvent, StorageLifetime

WIDTHS = (1, 2, 4, 8)  # bytes of an element


def continued(
    events: Sequence[AllocationEvent], marks: Sequence[int], steps: int, windows: Mapping[str, int]
) -> Iterator[AllocationEvent]:
    """`steps` more of the steps that ended at `marks`, of which the last two are like all that follow.

    `windows` says, by a part of a module's name, how many tokens its layer's cache holds at most.
    """
    before, step = events[marks[-3] : marks[-2]], events[marks[-2] : marks[-1]]
    growths = {
        at: _Growth.between(old.block, new.block, _window(new.block, windows))
        for at, (old, new) in enumerate(zip(before, step, strict=True))
        if new.sign > 0
    }
    here, there = _made_in(step), _made_in(before)
    live = {at: event.block for at, event in enumerate(step) if event.sign > 0}
    for number in range(1, steps + 1):
        told = range(len(step)) if number == steps else _that_change(step, growths, here, there)
        made: dict[int, StorageLifetime] = {}
        for at in told:
            event = step[at]
            if event.sign > 0:
                made[at] = growths[at].block(event.block, number)
                yield AllocationEvent(made[at], 1, event.phase)
            else:
                freed = made[here[id(event.block)]] if id(event.block) in here else live[there[id(event.block)]]
                yield AllocationEvent(freed, -1, event.phase)
        live |= made


@dataclass(frozen=True)
class _Growth:
    """How a block grows from one step to the next: elements of so many bytes, up to a most."""

    elements: int
    more: int
    width: int
    most: int | None

    @classmethod
    def between(cls, old: StorageLifetime, new: StorageLifetime, window: int | None) -> _Growth:
        elements, more = prod(new.shape), prod(new.shape) - prod(old.shape)
        width = next((w for w in WIDTHS if rounded(elements * w) == new.size_bytes), 0)
        if not width:  # a view of something larger, whose shape says nothing of its bytes
            elements, more, width = new.size_bytes, new.size_bytes - old.size_bytes, 1
        return cls(elements, more, width, more * window if window and more > 0 else None)

    def block(self, like: StorageLifetime, number: int) -> StorageLifetime:
        elements = self.elements + number * self.more
        size = rounded((elements if self.most is None else min(elements, max(self.elements, self.most))) * self.width)
        return StorageLifetime(size, like.phase, like.owner, (), like.category)


def _made_in(step: Sequence[AllocationEvent]) -> dict[int, int]:
    """The number of the event that made a block, by the block."""
    return {id(event.block): at for at, event in enumerate(step) if event.sign > 0}


def _that_change(
    step: Sequence[AllocationEvent], growths: Mapping[int, _Growth], here: Mapping[int, int], there: Mapping[int, int]
) -> list[int]:
    """The events of blocks whose size is not the same in every step."""

    def made_at(at: int) -> int:
        block = id(step[at].block)
        return here[block] if block in here else there[block]

    return [at for at in range(len(step)) if growths[made_at(at)].more]


def _window(block: StorageLifetime, windows: Mapping[str, int]) -> int | None:
    return next((tokens for name, tokens in windows.items() if name in f"{block.owner}."), None)
