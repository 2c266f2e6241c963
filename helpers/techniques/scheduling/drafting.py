"""Speculation: a small model proposes the next tokens of everybody who decodes, and the large one checks them. Greedy.

The large model's forward over a token and four proposals says what it would have said after each of them. The first
proposals that it agrees with are kept, and so is its own next token: from one to five tokens a step, and the same ones
as without proposals. What was computed for the others is dropped.

Leviathan, Kalman, Matias, "Fast Inference from Transformers via Speculative Decoding" (2023), where both are greedy.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

from transformers import PreTrainedModel

from ...catalog.errors import WorkbookError
from ..paging.attention import KVPool
from ..paging.blocks import BlockManager
from .packed import PackedRow, packed_forward
from .plan import Plan, Sequence, TokenChunk


class Drafter:
    """`model` proposes for `large`, which `manager` keeps blocks for. It has a pool of its own under the same numbers.

    So a block of the manager is a block in either pool, and costs the keys and values of both models.
    """

    def __init__(self, model: PreTrainedModel, large: PreTrainedModel, manager: BlockManager, host_blocks: int) -> None:
        words, those = model.config.vocab_size, large.config.vocab_size
        if words != those:
            what = f"a draft model with {words:,} tokens for one with {those:,}"
            raise WorkbookError(what, "the same vocabulary, or its numbers mean other words", "take one of its family")
        self.model, self.manager = model, manager
        self.pool = KVPool(manager.blocks, manager.block_size, host_blocks)
        self.seen: WeakKeyDictionary[Sequence, int] = WeakKeyDictionary()  # tokens with its keys and values
        self.forwards = 0

    def propose(self, plan: Plan) -> dict[Sequence, tuple[int, ...]]:
        """The proposals of each chunk that asks for some. Computes what this model has not seen of all others, too."""
        proposed: dict[Sequence, tuple[int, ...]] = {}
        for number, part in enumerate(plan.drafting()):
            rows = [self._row(chunk, proposed, first=not number) for chunk in part.chunks]
            self.forwards += 1
            best = packed_forward(self.model, self.pool, self.manager, rows)
            for chunk, guesses in zip(part.chunks, best, strict=True):
                proposed[chunk.sequence] = (*proposed.get(chunk.sequence, ()), *guesses)
        return {chunk.sequence: proposed[chunk.sequence] for chunk in plan.chunks if chunk.drafts}

    def _row(self, chunk: TokenChunk, proposed: dict[Sequence, tuple[int, ...]], first: bool) -> PackedRow:
        sequence, begin = chunk.sequence, chunk.context - chunk.tokens
        if first:  # all proposals right: then the last of them was never fed to this model, and comes now
            begin = min(self.seen.get(sequence, begin), begin)
        self.seen[sequence] = chunk.context
        known = (*sequence.ids, *proposed.get(sequence, ()))
        return PackedRow(sequence, known[begin : chunk.context], chunk.context)


def agreed(proposed: tuple[int, ...], best: tuple[int, ...]) -> tuple[int, ...]:
    """The tokens that a step gives: proposals as long as the large model would have said them, and its next one.

    `best[i]` is what it says after i of the proposals, so there is one more of them.

    >>> agreed((5, 8, 3), (5, 8, 4, 9))
    (5, 8, 4)
    """
    right = next((at for at, token in enumerate(proposed) if token != best[at]), len(proposed))
    return best[: right + 1]
