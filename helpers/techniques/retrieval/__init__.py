"""Stores of embeddings to search by inner product: exact, quantized, and as a graph. Imports catalog; torch.

    from helpers.techniques.retrieval import FlatStore
    FlatStore(embeddings).search(queries, k=10)

Their bytes: `memory.other_shapes.vector_store`.
"""

from typing import TYPE_CHECKING

from ...catalog.lazy import lazy

if TYPE_CHECKING:
    from .graph import GraphStore
    from .stores import FlatStore, ProductStore, ScalarStore


__getattr__ = lazy(__name__)
