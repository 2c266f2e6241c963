"""Bytes of an embedding store: flat, with eight bits a value, product-quantized, or a graph in layers as HNSW has it.

A graph's upper layers depend on a draw: a node is in layer l with probability M ** -l, so a store of n vectors has
n / (M - 1) entries above the lowest layer on average. `graph_store` takes the number drawn, or that mean.
"""

from __future__ import annotations

from ...catalog.errors import WorkbookError, require_whole
from ..breakdown import Breakdown, rounded

FP32 = INT32 = 4
CODES = 256  # a byte for each part of a product-quantized vector


def flat_store(vectors: int, dimensions: int, width: int = FP32) -> Breakdown:
    """Every value as it is.

    >>> flat_store(1_000_000, 768).total
    3072000000
    """
    _require(vectors, dimensions)
    return Breakdown(vectors=rounded(vectors * dimensions * width))


def scalar_store(vectors: int, dimensions: int) -> Breakdown:
    """One byte a value, and for each dimension a lowest value and a scale: a quarter of the flat one."""
    _require(vectors, dimensions)
    return Breakdown(codes=rounded(vectors * dimensions), scales=2 * rounded(dimensions * FP32))


def product_store(vectors: int, dimensions: int, parts: int) -> Breakdown:
    """One byte for each of `parts` pieces of a vector, and 256 centroids for each piece.

    >>> product_store(1_000_000, 768, 96).total / flat_store(1_000_000, 768).total < 1 / 31
    True
    """
    _require(vectors, dimensions)
    if dimensions % require_whole("parts", parts):
        what = f"{dimensions} dimensions in {parts} parts"
        raise WorkbookError(what, "parts that divide the dimensions", f"pass parts={dimensions // 8 or 1}")
    return Breakdown(codes=rounded(vectors * parts), centroids=rounded(CODES * dimensions * FP32))


def graph_store(vectors: int, dimensions: int, links: int, upper_entries: int | None = None) -> Breakdown:
    """Flat vectors, 2 x `links` neighbours of each in the lowest layer, and `links` for each entry above it.

    A node has a byte for its level, and four for where its upper entries begin. For a million vectors of 768 and M = 32
    this is 1.00 of what Faiss' guidelines say of an HNSW index, d x 4 + M x 2 x 4 bytes a vector
    (github.com/facebookresearch/faiss/wiki/Guidelines-to-choose-an-index).

    >>> round(graph_store(1_000_000, 768, 32).total / (1_000_000 * (768 * 4 + 32 * 2 * 4)), 2)
    1.0
    """
    _require(vectors, dimensions)
    require_whole("links", links, 2)
    if upper_entries is None:
        upper_entries = round(vectors / (links - 1))
    require_whole("upper_entries", upper_entries, 0)
    return Breakdown(
        vectors=rounded(vectors * dimensions * FP32),
        lowest_layer=rounded(vectors * 2 * links * INT32),
        upper_layers=rounded(upper_entries * links * INT32),
        levels=rounded(vectors) + rounded(vectors * INT32),
    )


def _require(vectors: int, dimensions: int) -> None:
    require_whole("vectors", vectors)
    require_whole("dimensions", dimensions)
