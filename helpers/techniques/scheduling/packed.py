"""One forward over sequences that compute different numbers of tokens: laid end to end, and nobody sees another's.

Shapes: tokens of all sequences T, query heads H, key heads K, head dim D. With padding the same step would be
[sequences, longest]; packed it is [1, T], and the block-diagonal mask is never built: each sequence attends alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..paging.attention import BlockTables, KVPool, PagedInputs, gathered, paged_model
from ..paging.blocks import BlockManager


@dataclass(frozen=True)
class PackedTables:
    """Where the tokens of each sequence are. `new` of each are computed, the last of its `lengths`."""

    tables: tuple[tuple[int, ...], ...]
    lengths: tuple[int, ...]
    new: tuple[int, ...]
    block_size: int
    device: torch.device

    def last(self, counts: Sequence[int]) -> Tensor:
        """Places in the packed row of each sequence's last `counts` tokens, in order, [sum of counts]."""
        ends = zip(accumulate(self.new), counts, strict=True)
        return torch.tensor([at for end, count in ends for at in range(end - count, end)], device=self.device)

    def positions(self, new: int) -> Tensor:
        """Positions of the tokens in their own sequences, [1, T]; `new` is T."""
        each = [range(length - new, length) for length, new in zip(self.lengths, self.new, strict=True)]
        return torch.tensor([[place for places in each for place in places]], device=self.device)

    def slots(self, new: int) -> Tensor:
        """Their places in the pool laid flat, [1, T]."""
        starts = range(len(self.new))
        owners = torch.tensor([at for at in starts for _ in range(self.new[at])], device=self.device)
        positions = self.positions(new)[0]
        longest = max(map(len, self.tables))
        tables = torch.tensor([[*table, *[0] * (longest - len(table))] for table in self.tables], device=self.device)
        blocks = tables[owners, positions // self.block_size]
        return (blocks * self.block_size + positions % self.block_size)[None]

    def rows(self, members: list[int]) -> BlockTables:
        """The tables of some sequences, as rows of equal numbers of new tokens."""
        longest = max(len(self.tables[at]) for at in members)
        padded = [[*self.tables[at], *[0] * (longest - len(self.tables[at]))] for at in members]
        lengths = torch.tensor([self.lengths[at] for at in members], device=self.device)
        return BlockTables(torch.tensor(padded, device=self.device), lengths, self.block_size)


def packed(
    query: Tensor, keys: Tensor, values: Tensor, where: PackedTables, scale: float, window: int | None = None
) -> Tensor:
    """[1, H, T, D] attention of each sequence to itself alone; `query` [1, H, T, D], the pool as for `gathered`.

    Sequences that compute as many tokens as each other, such as all that decode, are one call.
    """
    starts = [0, *accumulate(where.new)]
    out = query.new_empty(*query.shape[:-1], values.shape[-1])
    for new in sorted(set(where.new)):
        members = [at for at, count in enumerate(where.new) if count == new]
        columns = torch.tensor([list(range(starts[at], starts[at] + new)) for at in members], device=query.device)
        rows = query[0][:, columns].transpose(0, 1)  # [members, H, new, D]
        found = gathered(rows, keys, values, where.rows(members), scale, window)
        out[0][:, columns] = found.transpose(0, 1)
    return out


@dataclass(frozen=True)
class PackedRow:
    """Tokens `ids` of the sequence that the manager knows as `owner`, of which `context` then have keys and values."""

    owner: object
    ids: tuple[int, ...]
    context: int
    wanted: int = 1  # of its last tokens the best next one is asked


@torch.no_grad()
def packed_forward(
    model: PreTrainedModel, pool: KVPool, manager: BlockManager, rows: Sequence[PackedRow]
) -> list[tuple[int, ...]]:
    """The best next token after each of the last `wanted` tokens of every row, by one forward over all of them."""
    where = PackedTables(
        tuple(tuple(manager.tables[row.owner]) for row in rows),
        tuple(row.context for row in rows),
        tuple(len(row.ids) for row in rows),
        manager.block_size,
        model.device,
    )
    ids = [token for row in rows for token in row.ids]
    with paged_model(model):
        logits = model(
            input_ids=torch.tensor([ids], device=model.device),
            position_ids=where.positions(len(ids)),
            use_cache=False,
            logits_to_keep=where.last([row.wanted for row in rows]),
            paged=PagedInputs(pool, where, packed),
        ).logits[0]
    best = iter(logits.argmax(-1).tolist())
    return [tuple(next(best) for _ in range(row.wanted)) for row in rows]
