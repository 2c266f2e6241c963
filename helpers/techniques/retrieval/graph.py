"""A graph in layers, as HNSW has it: a node's level is drawn, its links go to its nearest in each of its layers.

The links come from comparing all with all, which a million vectors would not allow; HNSW inserts one after the other,
and stores the same: 2 x M links below, M in each layer above.
"""

from __future__ import annotations

import heapq
import math
import random

import torch
from torch import Tensor

from ...catalog.errors import require_whole
from .stores import require_matrix

NOBODY = -1  # where a layer has fewer nodes than links


class GraphStore:
    """`links` is HNSW's M. `upper_entries` are drawn from `seed`: n / (M - 1) on average."""

    def __init__(self, vectors: Tensor, links: int, seed: int = 0) -> None:
        count, drawn = len(require_matrix(vectors)), random.Random(seed)
        require_whole("links", links, 2)
        levels = [int(-math.log(1 - drawn.random()) / math.log(links)) for _ in range(count)]
        self.vectors, self.links, self.top = vectors.clone(), links, max(levels)
        self.levels = torch.tensor(levels, dtype=torch.uint8)
        self.starts = (self.levels.long().cumsum(0) - self.levels).to(torch.int32)
        self.entry = levels.index(self.top)
        self.upper = torch.full((sum(levels), links), NOBODY, dtype=torch.int32)
        self.lowest = self._nearest(torch.arange(count), 2 * links)
        for level in range(1, self.top + 1):
            members = (self.levels >= level).nonzero()[:, 0]
            self.upper[self.starts[members].long() + level - 1] = self._nearest(members, links)

    @property
    def upper_entries(self) -> int:
        return len(self.upper)

    def search(self, queries: Tensor, k: int, width: int = 64) -> Tensor:
        """The k best of what is found by walking down the layers, `width` candidates wide in the lowest."""
        require_whole("width", width, k)
        return torch.tensor([self._search(query, k, width) for query in queries])

    def _search(self, query: Tensor, k: int, width: int) -> list[int]:
        at = self.entry
        for level in range(self.top, 0, -1):
            at = self._walk(query, at, level, 1)[0]
        return self._walk(query, at, 0, width)[:k]

    def _walk(self, query: Tensor, start: int, level: int, width: int) -> list[int]:
        """Best first: look at the links of the nearest node that has not been looked at, until none is near enough."""
        score = float(self.vectors[start] @ query)
        seen, todo, best = {start}, [(-score, start)], [(score, start)]
        while todo:
            far, node = heapq.heappop(todo)
            if len(best) == width and -far < best[0][0]:
                break
            fresh = [other for other in self._links(node, level) if other not in seen]
            seen.update(fresh)
            for other, found in zip(fresh, (self.vectors[fresh] @ query).tolist(), strict=True):
                heapq.heappush(todo, (-found, other))
                heapq.heappush(best, (found, other))
                if len(best) > width:
                    heapq.heappop(best)
        return [node for _, node in sorted(best, reverse=True)]

    def _links(self, node: int, level: int) -> list[int]:
        row = self.lowest[node] if level == 0 else self.upper[int(self.starts[node]) + level - 1]
        return [other for other in row.tolist() if other != NOBODY]

    def _nearest(self, members: Tensor, links: int) -> Tensor:
        """Each member's nearest other members, NOBODY where there are fewer than `links`."""
        found = torch.full((len(members), links), NOBODY, dtype=torch.int32)
        have = min(links, len(members) - 1)
        if have:
            far = torch.cdist(self.vectors[members], self.vectors[members]).fill_diagonal_(math.inf)
            found[:, :have] = members[far.topk(have, largest=False).indices].to(torch.int32)
        return found
