"""Three stores that look at every vector: as it is, with a byte for each value, and with a byte for each piece."""

from __future__ import annotations

import torch
from torch import Tensor

from ...catalog.errors import WorkbookError, require_whole

CODES = 256


class FlatStore:
    """The vectors (n, d) themselves; exact."""

    def __init__(self, vectors: Tensor) -> None:
        self.vectors = require_matrix(vectors).clone()

    def search(self, queries: Tensor, k: int) -> Tensor:
        """The indices (queries, k) of the nearest by inner product, the nearest first."""
        return (queries @ self.vectors.T).topk(k).indices


class ScalarStore:
    """A byte for each value, between the lowest and the highest of its dimension."""

    def __init__(self, vectors: Tensor) -> None:
        self.low = require_matrix(vectors).amin(0)
        self.scale = (vectors.amax(0) - self.low).clamp_min(1e-12) / (CODES - 1)
        self.codes = ((vectors - self.low) / self.scale).round().to(torch.uint8)

    def search(self, queries: Tensor, k: int) -> Tensor:
        """Codes are compared as they are: low adds the same to every score, and the scale goes to the query."""
        return ((queries * self.scale) @ self.codes.float().T).topk(k).indices


class ProductStore:
    """A byte for each of `parts` pieces: the nearest of 256 centroids, which k-means finds piece by piece."""

    def __init__(self, vectors: Tensor, parts: int, rounds: int = 10, seed: int = 0) -> None:
        count, dimensions = require_matrix(vectors).shape
        if dimensions % require_whole("parts", parts) or count < CODES:
            what = f"{count} vectors of {dimensions} dimensions in {parts} parts"
            raise WorkbookError(what, f"{CODES} vectors or more, and parts that divide them", "pass fewer parts")
        pieces = vectors.view(count, parts, -1).transpose(0, 1)
        drawn = torch.randperm(count, generator=torch.Generator().manual_seed(seed))[:CODES]
        self.centroids = pieces[:, drawn].contiguous()
        for _ in range(rounds):
            nearest = torch.cdist(pieces, self.centroids).argmin(-1)
            for centroids, piece, code in zip(self.centroids, pieces, nearest, strict=True):
                sums = torch.zeros_like(centroids).index_add_(0, code, piece)
                filled = torch.bincount(code, minlength=CODES)[:, None]
                centroids.copy_(torch.where(filled > 0, sums / filled.clamp_min(1), centroids))
        self.codes = torch.cdist(pieces, self.centroids).argmin(-1).T.to(torch.uint8).contiguous()

    def search(self, queries: Tensor, k: int) -> Tensor:
        """A table of a piece's scores with all centroids, once for each query; then sums of look-ups."""
        tables = torch.einsum("qpd,pcd->qpc", queries.view(len(queries), len(self.centroids), -1), self.centroids)
        codes = self.codes.long().T
        return torch.stack([table.gather(1, codes).sum(0) for table in tables]).topk(k).indices


def require_matrix(vectors: Tensor) -> Tensor:
    if vectors.ndim != 2 or not len(vectors):
        raise WorkbookError(f"vectors of shape {tuple(vectors.shape)}", "(vectors, dimensions)", "stack them first")
    return vectors
