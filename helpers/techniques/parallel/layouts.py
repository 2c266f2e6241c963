"""Which tokens each rank has when a sequence is divided, and how much of causal attention each then computes. No torch.

A sequence is cut into chunks of equal length. A query of chunk a sees all keys of chunk b < a, half of its own chunk's
and none of a later one. So a rank that has the last tokens computes far more than the one that has the first.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...catalog.errors import WorkbookError, require_whole
from ...memory.breakdown import TextEnum


class Seen(TextEnum):
    """What the queries of one chunk see of the keys of another."""

    ALL = "all"
    CAUSAL = "causal"
    NOTHING = "nothing"


@dataclass(frozen=True)
class ChunkLayout:
    """`chunks[rank]` are the numbers of the chunks that the rank has, in the order in which it holds them."""

    name: str
    chunks: tuple[tuple[int, ...], ...]

    @property
    def ranks(self) -> int:
        return len(self.chunks)

    @property
    def count(self) -> int:
        """Chunks of the whole sequence."""
        return sum(map(len, self.chunks))

    def tokens_of(self, rank: int, tokens: int) -> list[int]:
        """The positions of a rank's tokens in a sequence of `tokens`: what cuts the input, and what RoPE needs.

        >>> zigzag(2).tokens_of(0, 8), zigzag(2).tokens_of(1, 8)
        ([0, 1, 6, 7], [2, 3, 4, 5])
        """
        length = self.chunk_tokens(tokens)
        return [at for chunk in self.chunks[rank] for at in range(chunk * length, (chunk + 1) * length)]

    def chunk_tokens(self, tokens: int) -> int:
        """Tokens of one chunk; WorkbookError where chunks would not be equally long."""
        require_whole("tokens", tokens)
        if tokens % self.count:
            above = -(-tokens // self.count) * self.count
            what = f"{tokens} tokens in {self.count} chunks of the {self.name} layout"
            raise WorkbookError(what, f"a multiple of {self.count}", f"pad the sequence to {above} tokens")
        return tokens // self.count

    def pairs(self, rank: int, tokens: int) -> int:
        """Pairs of a query and a key that it sees: the work of a rank in causal attention over `tokens`.

        >>> [contiguous(4).pairs(rank, 8) for rank in range(4)], [zigzag(4).pairs(rank, 8) for rank in range(4)]
        ([3, 7, 11, 15], [9, 9, 9, 9])
        """
        length = self.chunk_tokens(tokens)
        return sum(chunk * length**2 + length * (length + 1) // 2 for chunk in self.chunks[rank])

    def step_pairs(self, step: int, tokens: int) -> tuple[int, ...]:
        """The same by rank for one step of the ring, in which rank r has the keys of rank r - `step`.

        All ranks wait for the slowest in every step.
        """
        length = self.chunk_tokens(tokens)
        cost = {Seen.ALL: length**2, Seen.CAUSAL: length * (length + 1) // 2, Seen.NOTHING: 0}
        owners = [(rank - step) % self.ranks for rank in range(self.ranks)]
        return tuple(
            sum(cost[seen(a, b)] for a in self.chunks[rank] for b in self.chunks[owner])
            for rank, owner in enumerate(owners)
        )


def seen(queries: int, keys: int) -> Seen:
    """What the queries of one chunk see of the keys of another."""
    if queries == keys:
        return Seen.CAUSAL
    return Seen.ALL if queries > keys else Seen.NOTHING


def contiguous(ranks: int) -> ChunkLayout:
    """Rank r has the r-th part of the sequence: of the last rank's work the first does almost nothing."""
    return ChunkLayout("contiguous", tuple((rank,) for rank in range(require_whole("ranks", ranks))))


def zigzag(ranks: int) -> ChunkLayout:
    """Twice as many chunks as ranks: rank r has the r-th from the front and the r-th from the back. All work alike.

    >>> zigzag(4).chunks
    ((0, 7), (1, 6), (2, 5), (3, 4))
    """
    require_whole("ranks", ranks)
    return ChunkLayout("zigzag", tuple((rank, 2 * ranks - 1 - rank) for rank in range(ranks)))
