"""Which keys a query sees, and so which tiles of the score matrix a kernel visits. No torch until tensors come in.

Queries are aligned to the last keys, as decoding needs: of 8 queries over 10 keys the first is at position 2. A query
before position 0 (more queries than keys) sees nothing that is causal.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ...catalog.errors import WorkbookError, require_whole

if TYPE_CHECKING:
    from torch import Tensor


class Tile(NamedTuple):
    """A tile of the score matrix. `whole`: every pair in it is seen, so nothing in it needs to be masked."""

    row: int
    column: int
    whole: bool


class Mask(ABC):
    """Which pairs of a query and a key take part. Positions are whole numbers, in tokens."""

    @abstractmethod
    def sees(self, query: Tensor, key: Tensor) -> Tensor:
        """Whether the queries at these positions see these keys; the two broadcast, as FlexAttention's `mask_mod`."""

    @abstractmethod
    def spans(self, first: int, last: int, keys: int) -> list[range]:
        """The keys that at least one query from position `first` to `last` sees, in order and apart."""

    @abstractmethod
    def covers(self, first: int, last: int, span: range) -> bool:
        """Whether every query from position `first` to `last` sees every key of `span`."""

    def check(self, keys: int) -> None:  # noqa: B027
        """Raise WorkbookError if the mask says nothing of so many keys; only a table can."""

    def allowed(self, queries: Tensor, keys: Tensor) -> Tensor:
        """(queries, keys) of bool, from two vectors of positions."""
        return self.sees(queries[:, None], keys[None, :])

    def columns(self, queries: int, keys: int, tile_q: int, tile_k: int) -> Iterator[list[range]]:
        """For each row of tiles the columns to visit, as ranges in order and apart."""
        self.check(keys)
        for start in range(0, queries, tile_q):
            first = keys - queries + start
            last = min(first + tile_q, keys) - 1
            yield joined(range(span.start // tile_k, -(-span.stop // tile_k)) for span in self.spans(first, last, keys))

    def tiles(self, queries: int, keys: int, tile_q: int = 128, tile_k: int = 128) -> Iterator[Tile]:
        """The tiles that hold at least one pair that is seen, row by row.

        >>> len(list(Causal().tiles(4096, 4096))), len(list(Window(512).tiles(4096, 4096)))
        (528, 150)
        """
        for row, ranges in enumerate(self.columns(queries, keys, tile_q, tile_k)):
            first = keys - queries + row * tile_q
            last = min(first + tile_q, keys) - 1
            for columns in ranges:
                for column in columns:
                    span = range(column * tile_k, min((column + 1) * tile_k, keys))
                    yield Tile(row, column, self.covers(first, last, span))


@dataclass(frozen=True)
class Full(Mask):
    """Every query sees every key: an encoder, cross-attention, one step of decoding."""

    def sees(self, query: Tensor, key: Tensor) -> Tensor:
        return (query == query) & (key == key)  # True, in the shape of both

    def spans(self, first: int, last: int, keys: int) -> list[range]:
        return [range(keys)]

    def covers(self, first: int, last: int, span: range) -> bool:
        return True


@dataclass(frozen=True)
class Causal(Mask):
    """A query sees its own position and those before it: half of the tiles, and half of the diagonal ones."""

    def sees(self, query: Tensor, key: Tensor) -> Tensor:
        return key <= query

    def spans(self, first: int, last: int, keys: int) -> list[range]:
        return joined([range(last + 1)])

    def covers(self, first: int, last: int, span: range) -> bool:
        return span.stop - 1 <= first


@dataclass(frozen=True)
class Window(Mask):
    """Query i sees keys max(0, i - size + 1) to i, and the first `sinks` of all that are not after it.

    Mistral's sliding window counts itself in, as here: `sliding_window=4096` is Window(4096).
    """

    size: int
    sinks: int = 0

    def __post_init__(self) -> None:
        require_whole("size", self.size)
        require_whole("sinks", self.sinks, least=0)

    def sees(self, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & ((key > query - self.size) | (key < self.sinks))

    def spans(self, first: int, last: int, keys: int) -> list[range]:
        near = range(max(0, first - self.size + 1), last + 1)
        return joined([range(min(self.sinks, last + 1)), near])

    def covers(self, first: int, last: int, span: range) -> bool:
        unseen = range(max(self.sinks, span.start), min(last - self.size + 1, span.stop))  # of the last query
        return span.stop - 1 <= first and not unseen


@dataclass(frozen=True)
class BlockSparse(Mask):
    """`blocks[i][j]`: queries of block i see keys of block j, each `block` tokens long; causal unless told otherwise.

    The blocks are the model's; the tiles that a kernel visits may be larger or smaller.
    """

    block: int
    blocks: Sequence[Sequence[bool]]
    causal: bool = True

    def __post_init__(self) -> None:
        require_whole("block", self.block)
        object.__setattr__(self, "blocks", tuple(tuple(bool(seen) for seen in row) for row in self.blocks))
        if not self.blocks or any(len(row) != len(self.blocks) for row in self.blocks):
            what = f"a table of {len(self.blocks)} rows, of {sorted({len(row) for row in self.blocks})} blocks"
            raise WorkbookError(what, "as many rows as columns, at least one", "pass blocks=[[1, 0], [1, 1]]")

    def check(self, keys: int) -> None:
        if keys > len(self.blocks) * self.block:
            what = f"{keys} keys, and a table of {len(self.blocks)} blocks of {self.block}"
            raise WorkbookError(what, f"at most {len(self.blocks) * self.block} keys", "make the table larger")

    def sees(self, query: Tensor, key: Tensor, table: Tensor | None = None) -> Tensor:
        """`table`: the blocks as a tensor, where a compiler must not see one made."""
        table = query.new_tensor(self.blocks) if table is None else table
        seen = (table[query.clamp(min=0) // self.block, key // self.block] > 0) & (query >= 0)
        return seen & (key <= query) if self.causal else seen

    def spans(self, first: int, last: int, keys: int) -> list[range]:
        pieces = []
        for row in range(max(first, 0) // self.block, last // self.block + 1):
            end = min(last + 1, (row + 1) * self.block) if self.causal else keys
            pieces += [self._span(column, end) for column, seen in enumerate(self.blocks[row]) if seen]
        return joined(sorted(pieces, key=lambda span: span.start))

    def covers(self, first: int, last: int, span: range) -> bool:
        rows = range(first // self.block, last // self.block + 1)
        columns = range(span.start // self.block, (span.stop - 1) // self.block + 1)
        seen = first >= 0 and all(self.blocks[row][column] for row in rows for column in columns)
        return seen and (not self.causal or span.stop - 1 <= first)

    def _span(self, column: int, end: int) -> range:
        return range(column * self.block, min((column + 1) * self.block, end))


def joined(ranges: Iterable[range]) -> list[range]:
    """Ranges in the order of their starts, without empty ones; those that meet or overlap are one.

    >>> joined([range(0, 4), range(2, 6), range(9, 9), range(8, 12)])
    [range(0, 6), range(8, 12)]
    """
    apart: list[range] = []
    for one in filter(None, ranges):
        if apart and one.start <= apart[-1].stop:
            apart[-1] = range(apart[-1].start, max(apart[-1].stop, one.stop))
        else:
            apart.append(one)
    return apart
