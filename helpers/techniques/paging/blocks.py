"""The block manager: who holds which block of the KV cache. Block numbers only: no keys, no values, no torch.

A pool of blocks of a few tokens each; a sequence takes one when it needs one, anywhere in the pool, and its block table
says which (PagedAttention, arXiv 2309.06180). `ContiguousManager` beside it is what came before: one region for each
sequence, of the longest length that it might reach. Both count the slots that they reserved and did not fill.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from ...catalog.errors import WorkbookError
from .errors import OutOfBlocksError, known, new_sequence, positive


class Copy(NamedTuple):
    """Contents that the owner of the memory must move before it writes again."""

    source: int
    target: int


class BlockManager:
    """`blocks` blocks of `block_size` tokens on the device, and `host_blocks` more to swap out to.

    Every table entry counts as one reference to its block, and so does every block that a prefix cache keeps.
    A block with two references is never written to. A call that raises has changed nothing.

    >>> manager = BlockManager(blocks=4, block_size=16)
    >>> manager.append("a", 20), manager.tables["a"], manager.fork("a", "b"), manager.append("b", 1)
    ([], [0, 1], None, [Copy(source=1, target=2)])
    """

    def __init__(self, blocks: int, block_size: int = 16, host_blocks: int = 0) -> None:
        self.blocks, self.block_size = positive("blocks", blocks), positive("block_size", block_size)
        self.free = deque(range(blocks))
        self.references = [0] * blocks
        self.tables: dict[object, list[int]] = {}
        self.lengths: dict[object, int] = {}  # tokens, also of sequences that are swapped out
        self.host_free = deque(range(positive("host_blocks", host_blocks, least=0)))
        self.host_tables: dict[object, list[int]] = {}
        self.reclaim: Callable[[int], int] = lambda wanted: 0  # a prefix cache lets go of blocks that nobody uses
        self.reclaimable: Callable[[], int] = lambda: 0

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    @property
    def available(self) -> int:
        """Blocks that could be taken now: free ones, and those that only a prefix cache holds."""
        return len(self.free) + self.reclaimable()

    def needed(self, sequence: object, tokens: int) -> int:
        """Blocks to take before `tokens` more fit: new ones, and a copy if the last is part full and shared."""
        table, length = self.tables.get(sequence, []), self.lengths.get(sequence, 0)
        return self.blocks_for(length + tokens) - len(table) + self._must_copy(table, length, tokens)

    def append(self, sequence: object, tokens: int = 1) -> list[Copy]:
        """Make room for `tokens` more of `sequence`, a new one or not. Returns the copy to make before writing."""
        positive("tokens", tokens)
        self._on_device(sequence, new=True)
        needed = self.needed(sequence, tokens)
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

    def share(self, sequence: object, blocks: list[int]) -> None:
        """Start `sequence` on full blocks that are in use already, such as a prefix found in the prefix cache."""
        new_sequence(sequence, self.lengths)
        unused = [block for block in blocks if not (0 <= block < self.blocks and self.references[block])]
        if unused:
            raise WorkbookError(f"block {unused[0]} to share", "blocks that are in use", "append instead")
        for block in blocks:
            self.references[block] += 1
        self.tables[sequence], self.lengths[sequence] = list(blocks), len(blocks) * self.block_size

    def fork(self, parent: object, child: object) -> None:
        """A second sequence with the same tokens so far, and the same blocks: it takes none."""
        self._on_device(parent)
        new_sequence(child, self.lengths)
        for block in self.tables[parent]:
            self.references[block] += 1
        self.tables[child], self.lengths[child] = list(self.tables[parent]), self.lengths[parent]

    def release(self, sequence: object) -> None:
        """The sequence is done: drop its references, wherever its blocks are."""
        known(sequence, self.lengths)
        for block in self.tables.pop(sequence, []):
            self._drop(block)
        self.host_free.extend(self.host_tables.pop(sequence, []))
        del self.lengths[sequence]

    def swap_out(self, sequence: object) -> list[Copy]:
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

    def swap_in(self, sequence: object) -> list[Copy]:
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
        if needed > self.available:
            raise OutOfBlocksError(what, needed, self.available)
        self.reclaim(needed - len(self.free))

    def _take(self) -> int:
        block = self.free.popleft()
        self.references[block] = 1
        return block

    def _drop(self, block: int) -> None:
        self.references[block] -= 1
        if not self.references[block]:
            self.free.append(block)

    def _on_device(self, sequence: object, new: bool = False) -> None:
        if sequence in self.host_tables:
            raise WorkbookError(f"sequence {sequence!r} is swapped out", "a sequence on the device", "swap_in first")
        if not new:
            known(sequence, self.tables)
