"""What a scheduler speaks of: sequences, and plans of one step, with blocks to move and tokens to compute. No torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto

from ..paging.blocks import Copy


@dataclass(eq=False, repr=False)
class Sequence:
    """A request while it is served. `computed` of its tokens have keys and values in the pool.

    `times` are the seconds at which each of `tokens` was there, on the clock of whoever drives the scheduler.
    """

    number: int
    prompt: tuple[int, ...]
    new_tokens: int
    at_s: float = 0.0
    user: str = ""
    priority: int = 0
    tokens: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    computed: int = 0
    prefix_tokens: int = 0  # of the prompt, found in the prefix cache when it was first admitted
    preempted: int = 0
    swapped: bool = False
    done: bool = False

    def __repr__(self) -> str:
        return f"{self.number}"  # the block manager names it in every message

    @property
    def ids(self) -> tuple[int, ...]:
        return (*self.prompt, *self.tokens)

    @property
    def known(self) -> int:
        return len(self.prompt) + len(self.tokens)

    @property
    def uncomputed(self) -> int:
        """Tokens to compute before the next one is known: 1 while it decodes."""
        return self.known - self.computed

    @property
    def longest(self) -> int:
        return len(self.prompt) + self.new_tokens


class MoveKind(Enum):
    """Between which memories blocks are moved."""

    SWAP_OUT = auto()
    SWAP_IN = auto()


@dataclass(frozen=True)
class TokenChunk:
    """The next `tokens` tokens of `sequence`; they attend to `context` tokens, themselves included.

    The last `drafts` of them are proposals: what they are, a smaller model says before the step.
    """

    sequence: Sequence
    tokens: int
    context: int
    drafts: int = 0


@dataclass(frozen=True)
class Plan:
    """One step: blocks to move first, in this order, then one forward over all chunks."""

    chunks: tuple[TokenChunk, ...]
    moves: tuple[tuple[MoveKind, tuple[Copy, ...]], ...] = ()
    block_size: int = 16

    @property
    def new_tokens(self) -> int:
        """Tokens to compute."""
        return sum(chunk.tokens for chunk in self.chunks)

    @property
    def context_tokens(self) -> int:
        """Tokens whose keys and values are read, a shared one for each that reads it."""
        return sum(chunk.context for chunk in self.chunks)

    @property
    def pairs(self) -> int:
        """Query-key pairs under a causal mask."""
        return sum(c.tokens * c.context - c.tokens * (c.tokens - 1) // 2 for c in self.chunks)

    @property
    def moved_blocks(self) -> int:
        return sum(len(copies) for _, copies in self.moves)

    def drafting(self) -> list[Plan]:
        """What a smaller model computes before this step: the same without proposals, then a token for each of them.

        The last proposal is computed by nobody but the large model, so four proposals are four forwards.
        """
        known = [TokenChunk(c.sequence, c.tokens - c.drafts, c.context - c.drafts) for c in self.chunks]
        rounds = [Plan(tuple(known), self.moves, self.block_size)]
        for at in range(1, max((chunk.drafts for chunk in self.chunks), default=0)):
            guessing = [chunk for chunk in self.chunks if chunk.drafts > at]
            rounds.append(Plan(tuple(TokenChunk(c.sequence, 1, c.context - c.drafts + at) for c in guessing)))
        return rounds
