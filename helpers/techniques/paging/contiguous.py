"""What came before paging: a region for each sequence, reserved whole when it comes. No torch."""

from __future__ import annotations

from .errors import OutOfBlocksError, known, new_sequence, positive


class ContiguousManager:
    """`slots` slots in a row; a sequence gets `max_tokens` of them, side by side, first fit, until it is released.

    Kernels of the time wanted a sequence's keys in one piece, and nobody knows how long an answer will be.

    >>> manager = ContiguousManager(slots=4096, max_tokens=2048)
    >>> manager.append("a", 400)
    >>> manager.reserved_slots, manager.filled_slots
    (2048, 400)
    """

    def __init__(self, slots: int, max_tokens: int) -> None:
        self.slots, self.max_tokens = positive("slots", slots), positive("max_tokens", max_tokens)
        self.starts: dict[object, int] = {}
        self.lengths: dict[object, int] = {}

    def needed(self, sequence: object, tokens: int) -> int:
        """Slots to reserve before `tokens` more fit: all or nothing."""
        return 0 if sequence in self.starts else self.max_tokens

    def fits(self) -> bool:
        """Whether another region fits somewhere."""
        return self._hole() is not None

    def append(self, sequence: object, tokens: int = 1) -> None:
        """Room for `tokens` more; a new sequence takes its whole region now."""
        length = self.lengths.get(sequence, 0) + positive("tokens", tokens)
        if length > self.max_tokens:
            raise OutOfBlocksError(f"{length} tokens of sequence {sequence!r} (in slots)", length, self.max_tokens)
        if sequence not in self.starts:
            new_sequence(sequence, self.starts)
            start = self._hole()
            if start is None:
                free = self.slots - self.reserved_slots
                raise OutOfBlocksError(f"a region for sequence {sequence!r} (in slots)", self.max_tokens, free)
            self.starts[sequence] = start
        self.lengths[sequence] = length

    def release(self, sequence: object) -> None:
        known(sequence, self.starts)
        del self.starts[sequence], self.lengths[sequence]

    @property
    def reserved_slots(self) -> int:
        return len(self.starts) * self.max_tokens

    @property
    def filled_slots(self) -> int:
        return sum(self.lengths.values())

    def _hole(self) -> int | None:
        """Start of the first free stretch that is long enough."""
        end = 0
        for start in sorted(self.starts.values()):
            if start - end >= self.max_tokens:
                return end
            end = start + self.max_tokens
        return end if self.slots - end >= self.max_tokens else None
