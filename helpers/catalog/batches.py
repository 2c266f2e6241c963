"""How the sequences of a batch lie in it: padded to the longest, end to end in one row, or packed. No torch.

Padded rows are those of Transformers' collators, and `padding_free` and `packing` those of TRL 1.16's SFTTrainer
(trl/trainer/sft_trainer.py): it packs by best fit into rows of max_length, and puts those of a micro-batch end to end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .errors import WorkbookError, require_whole
from .setup_fields import MAX_COUNT, MAX_TOKENS

PADDED, PADDING_FREE, PACKING = "padded", "padding-free", "packing"


@dataclass(frozen=True)
class Batch:
    """`rows` of `tokens` each; `filled` of all are tokens of sequences, and `several` say that rows hold several."""

    rows: int
    tokens: int
    filled: int
    several: bool
    ragged: bool = False

    @property
    def masked(self) -> bool:
        """Whether Transformers gives SDPA a mask of tokens x tokens for each row."""
        return self.several or self.ragged

    @property
    def empty_percent(self) -> float:
        return 100 * (1 - self.filled / (self.rows * self.tokens))


def batch_of(lengths: Sequence[int], how: str = PADDED) -> Batch:
    """The batch of sequences of these lengths: the longest counts where they are padded, their sum where they are not.

    >>> batch_of((300, 420, 768, 512)), batch_of((300, 420, 768, 512), PADDING_FREE).tokens
    (Batch(rows=4, tokens=768, filled=2000, several=False, ragged=True), 2000)
    """
    for length in lengths:
        require_whole("a length", length, most=MAX_TOKENS)
    if not lengths:
        raise WorkbookError("no lengths", "those of a batch's sequences", "pass them, as (300, 420, 768)")
    total = sum(lengths)
    if how == PADDED:
        return Batch(len(lengths), max(lengths), total, several=False, ragged=len(set(lengths)) > 1)
    return Batch(1, total, total, several=len(lengths) > 1)


def packed(row_tokens: int, rows: int) -> Batch:
    """`rows` of `row_tokens` each, full of sequences, end to end in one: the most that a micro-batch can hold."""
    require_whole("row_tokens", row_tokens, most=MAX_TOKENS)
    require_whole("rows", rows, most=MAX_COUNT)
    return Batch(1, rows * row_tokens, rows * row_tokens, several=True)
