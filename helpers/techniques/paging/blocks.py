"""The block manager: who holds which block of the KV cache. Block numbers only: no keys, no values, no torch.

A pool of blocks of a few tokens each; a sequence takes one when it needs one, anywhere in the pool, and its block table
says which (PagedAttention, arXiv 2309.06180). `ContiguousManager`, at the end, is what came before: one region for each
sequence, of the longest length that it might reach. Both count the slots that they reserved and did not fill.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Hashable
from typing import NamedTuple, Protocol

from ...catalog.errors import WorkbookError, require_whole


class OutOfBlocksError(WorkbookError):
    """More blocks were wanted than there are; nothing was changed. Preempt someone, or wait."""

    def __init__(self, what: str, needed: int, available: int, where: str = "device") -> None:
        self.needed, self.available = needed, available
        told = f"{what}: {needed} blocks needed, {available} available on the {where}"
        super().__init__(told, f"at most {available} blocks", "release, preempt or wait for a sequence")


class Copy(NamedTuple):
    """Contents that the owner of the memory must move before it writes again."""

    source: int
    target: int


class BlockCache(Protocol):
    """Who refers to blocks that no sequence uses, and frees them when they are needed: a prefix cache."""

    def unused(self) -> int: ...

    def can_free(self, wanted: int) -> bool: ...

    def evict(self, wanted: int) -> int: ...


class BlockManager:
    """`blocks` blocks of `block_size` tokens on the device, and `host_blocks` more to swap out to.

    Every table entry counts as one reference to its block, and so does every block that a prefix cache keeps.
    A block with two references is never written to. A call that raises has changed nothing.

    >>> manager = BlockManager(blocks=4, block_size=16)
    >>> manager.append("a", 20), manager.tables["a"], manager.fork("a", "b"), manager.append("b", 1)
    ([], [0, 1], None, [Copy(source=1, target=2)])
    """

    def __init__(self, blocks: int, block_size: int = 16, host_blocks: int = 0) -> None:
        self.blocks, self.block_size = require_whole("blocks", blocks), require_whole("block_size", block_size)
        self.free = deque(range(blocks))
        self.references = [0] * blocks
        self.tables: dict[Hashable, list[int]] = {}
        self.lengths: dict[Hashable, int] = {}  # tokens, also of sequences that are swapped out
        self.host_free = deque(range(require_whole("host_blocks", host_blocks, least=0)))
        self.host_tables: dict[Hashable, list[int]] = {}
        self.cache: BlockCache | None = None  # set by the PrefixCache that keeps this manager's blocks

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    @property
    def available(self) -> int:
        """Blocks that could be taken now: free ones, and those that only a prefix cache holds."""
        return len(self.free) + (self.cache.unused() if self.cache else 0)

    def has(self, needed: int) -> bool:
        """Whether `needed` blocks are available."""
        missing = needed - len(self.free)
        return missing <= 0 or (self.cache is not None and self.cache.can_free(missing))

    def needed(self, sequence: Hashable, tokens: int) -> int:
        """Blocks to take before `tokens` more fit: new ones, and a copy if the last is part full and shared."""
        table, length = self.tables.get(sequence, []), self.lengths.get(sequence, 0)
        return self.blocks_for(length + tokens) - len(table) + self._must_copy(table, length, tokens)

    def append(self, sequence: Hashable, tokens: int = 1) -> list[Copy]:
        """Make room for `tokens` more of `sequence`, a new one or not. Returns the copy to make before writing."""
        require_whole("tokens", tokens)
        self._on_device(sequence, new=True)
        needed = self.needed(sequence, tokens)
        if needed > len(self.free):
            self._reserve(needed, f"{tokens} more tokens of sequence {sequence!r}")
        table, length = self.tables.setdefault(sequence, []), self.lengths.get(sequence, 0)
        copies = []
        if self._must_copy(table, length, tokens):  # copy on write: the others keep the block as it is
            copies = [Copy(table[-1], self._take())]
            self._drop(table[-1])
            table[-1] = copies[0].target
        table.extend(self._take() for _ in range(needed - len(copies)))
        self.lengths[sequence] = length + tokens
        return copies

    def truncate(self, sequence: Hashable, tokens: int) -> None:
        """Keep the first `tokens` of `sequence`; the blocks behind them are dropped. For proposals that were wrong."""
        self._on_device(sequence)
        require_whole("tokens", tokens, 0, self.lengths[sequence])
        table = self.tables[sequence]
        while len(table) > self.blocks_for(tokens):
            self._drop(table.pop())
        self.lengths[sequence] = tokens

    def share(self, sequence: Hashable, blocks: list[int]) -> None:
        """Start `sequence` on full blocks that are in use already, such as a prefix found in the prefix cache."""
        new_sequence(sequence, self.lengths)
        unused = [block for block in blocks if not (0 <= block < self.blocks and self.references[block])]
        if unused:
            raise WorkbookError(f"block {unused[0]} to share", "blocks that are in use", "append instead")
        for block in blocks:
            self.references[block] += 1
        self.tables[sequence], self.lengths[sequence] = list(blocks), len(blocks) * self.block_size

    def fork(self, parent: Hashable, child: Hashable) -> None:
        """A second sequence with the same tokens so far, and the same blocks: it takes none."""
        self._on_device(parent)
        new_sequence(child, self.lengths)
        for block in self.tables[parent]:
            self.references[block] += 1
        self.tables[child], self.lengths[child] = list(self.tables[parent]), self.lengths[parent]

    def release(self, sequence: Hashable) -> None:
        """The sequence is done: drop its references, wherever its blocks are."""
        known(sequence, self.lengths)
        for block in self.tables.pop(sequence, []):
            self._drop(block)
        self.host_free.extend(self.host_tables.pop(sequence, []))
        del self.lengths[sequence]

    def swap_out(self, sequence: Hashable) -> list[Copy]:
        """Give up all its device blocks for host blocks; returns (device, host) pairs to copy.

        Shared blocks are copied too: were they left behind, sequences on the host could hold on to the whole pool.
        """
        self._on_device(sequence)
        table = self.tables[sequence]
        if len(table) > len(self.host_free):
            raise OutOfBlocksError(f"swapping out sequence {sequence!r}", len(table), len(self.host_free), where="host")
        moves = [Copy(block, self.host_free.popleft()) for block in table]
        self.host_tables[sequence] = [move.target for move in moves]
        for block in self.tables.pop(sequence):
            self._drop(block)
        return moves

    def receive(self, sequence: Hashable, tokens: int) -> list[int]:
        """Host blocks for a sequence of `tokens` tokens that was computed elsewhere; `swap_in` brings it here."""
        new_sequence(sequence, self.lengths)
        needed = self.blocks_for(require_whole("tokens", tokens))
        if needed > len(self.host_free):
            raise OutOfBlocksError(f"receiving sequence {sequence!r}", needed, len(self.host_free), where="host")
        self.host_tables[sequence] = [self.host_free.popleft() for _ in range(needed)]
        self.lengths[sequence] = tokens
        return self.host_tables[sequence]

    def swap_in(self, sequence: Hashable) -> list[Copy]:
        """Back into blocks of its own; returns (host, device) pairs to copy. What was shared before no longer is."""
        known(sequence, self.host_tables)
        self._reserve(len(self.host_tables[sequence]), f"swapping in sequence {sequence!r}")
        moves = [Copy(block, self._take()) for block in self.host_tables.pop(sequence)]
        self.host_free.extend(move.source for move in moves)
        self.tables[sequence] = [move.target for move in moves]
        return moves

    def hold(self, block: int) -> None:
        """One more reference to a block in use, from a prefix cache."""
        self.references[block] += 1

    def let_go(self, block: int) -> None:
        self._drop(block)

    def fills(self) -> dict[int, int]:
        """Tokens in each block that some sequence on the device uses; a shared block counts once."""
        return {
            block: min(self.block_size, self.lengths[sequence] - at * self.block_size)
            for sequence, table in self.tables.items()
            for at, block in enumerate(table)
        }

    @property
    def reserved_slots(self) -> int:
        return len(self.fills()) * self.block_size

    @property
    def filled_slots(self) -> int:
        return sum(self.fills().values())

    def _must_copy(self, table: list[int], length: int, tokens: int) -> bool:
        return bool(tokens and length % self.block_size and self.references[table[-1]] > 1)

    def _reserve(self, needed: int, what: str) -> None:
        """Have `needed` blocks in the free list, or raise before anything has changed."""
        if needed <= len(self.free):
            return
        if not self.has(needed):
            raise OutOfBlocksError(what, needed, self.available)
        if self.cache:
            self.cache.evict(needed - len(self.free))

    def _take(self) -> int:
        block = self.free.popleft()
        self.references[block] = 1
        return block

    def _drop(self, block: int) -> None:
        self.references[block] -= 1
        if not self.references[block]:
            self.free.append(block)

    def _on_device(self, sequence: Hashable, new: bool = False) -> None:
        if sequence in self.host_tables:
            raise WorkbookError(f"sequence {sequence!r} is swapped out", "a sequence on the device", "swap_in first")
        if not new:
            known(sequence, self.tables)


class ContiguousManager:
    """`slots` slots in a row; a sequence gets `max_tokens` of them, side by side, first fit, until it is released.

    Kernels of the time wanted a sequence's keys in one piece, and nobody knows how long an answer will be.

    >>> manager = ContiguousManager(slots=4096, max_tokens=2048)
    >>> manager.append("a", 400)
    >>> manager.reserved_slots, manager.filled_slots
    (2048, 400)
    """

    def __init__(self, slots: int, max_tokens: int) -> None:
        self.slots, self.max_tokens = require_whole("slots", slots), require_whole("max_tokens", max_tokens)
        self.starts: dict[Hashable, int] = {}
        self.lengths: dict[Hashable, int] = {}

    def fits(self) -> bool:
        """Whether another region fits somewhere."""
        return self._hole() is not None

    def append(self, sequence: Hashable, tokens: int = 1) -> None:
        """Room for `tokens` more; a new sequence takes its whole region now."""
        length = self.lengths.get(sequence, 0) + require_whole("tokens", tokens)
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

    def release(self, sequence: Hashable) -> None:
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


def known(sequence: Hashable, among: Container[Hashable]) -> None:
    if sequence not in among:
        expected = "one that was appended to, and not released"
        raise WorkbookError(f"sequence {sequence!r} holds nothing here", expected, "append first; release once")


def new_sequence(sequence: Hashable, among: Container[Hashable]) -> None:
    if sequence in among:
        raise WorkbookError(f"sequence {sequence!r} exists already", "a new name", "release it first")
