"""One call cut into tiles: which slices a tile means, and the scores in it. Forward and backward share it."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from .masks import Mask, Tile
from .shapes import checked, sides


class Cut:
    """Queries and keys cut into tiles. A tile of queries has those of all heads that share keys, one below the other.

    So each product is with one head of keys: nothing is repeated for a group of query heads.
    """

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, mask: Mask, tile: int | tuple[int, int], scale: float | None):
        self.sizes, self.mask = checked(q, k, v, mask, scale), mask
        self.tile_q, self.tile_k = sides(tile)

    def tiles(self) -> Iterator[Tile]:
        return self.mask.tiles(self.sizes.queries, self.sizes.keys, self.tile_q, self.tile_k)

    def rows(self, tensor: Tensor, row: int) -> Tensor:
        """The queries of a row of tiles in (batch, heads, queries, …): a view (batch, kv_heads, group, queries, …)."""
        grouped = tensor.unflatten(1, (self.sizes.kv_heads, self.sizes.group))
        return grouped[:, :, :, row * self.tile_q : (row + 1) * self.tile_q]

    def below(self, tensor: Tensor, row: int) -> Tensor:
        """The same as rows of one product, (batch, kv_heads, group * queries, …), in the format of sums."""
        return self.rows(tensor, row).flatten(2, 3).to(self.sizes.sums)

    def put(self, row: int, wholes: tuple[Tensor, ...], parts: tuple[Tensor, ...]) -> None:
        """Write what `below` made of each of `parts` into the queries of a row of tiles."""
        for whole, part in zip(wholes, parts, strict=True):
            rows = self.rows(whole, row)
            rows.copy_(part.view(rows.shape))

    def slots(self, tensor: Tensor, column: int) -> Tensor:
        """The keys of a column of tiles in (batch, kv_heads, keys, …): a view."""
        return tensor[:, :, column * self.tile_k : (column + 1) * self.tile_k]

    def column(self, tensor: Tensor, column: int) -> Tensor:
        """The same, in the format of sums."""
        return self.slots(tensor, column).to(self.sizes.sums)

    def scores(self, queries: Tensor, keys: Tensor, tile: Tile) -> Tensor:
        """(batch, kv_heads, group * queries, keys) of one tile; -inf where a query does not see a key."""
        scores = queries @ keys.transpose(-1, -2)
        if not tile.whole:
            unseen = ~self.seen(tile, scores.device)
            scores.unflatten(2, (self.sizes.group, -1)).masked_fill_(unseen, float("-inf"))
        return scores

    def seen(self, tile: Tile, device: torch.device) -> Tensor:
        """(queries, keys) of bool: the pairs of one tile that take part."""
        first, start = tile.row * self.tile_q, tile.column * self.tile_k
        queries = range(self.sizes.queries)[first : first + self.tile_q]
        keys = range(self.sizes.keys)[start : start + self.tile_k]
        ahead = self.sizes.keys - self.sizes.queries
        at = torch.arange(queries.start + ahead, queries.stop + ahead, device=device)
        return self.mask.allowed(at, torch.arange(keys.start, keys.stop, device=device))
