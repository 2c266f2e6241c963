"""Embedding stores: formula, trace and measurement give the same bytes, and the stores find what is near."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from helpers.catalog import WorkbookError
from helpers.memory import trace
from helpers.memory.breakdown import Breakdown, rounded
from helpers.memory.meter import Meter
from helpers.memory.other_shapes import flat_store, graph_store, product_store, scalar_store
from helpers.techniques.retrieval import FlatStore, GraphStore, ProductStore, ScalarStore

COUNT, DIMENSIONS, LINKS = 1500, 48, 8
VECTORS = torch.nn.functional.normalize(torch.randn(COUNT, DIMENSIONS, generator=torch.Generator().manual_seed(0)))
QUERIES = torch.nn.functional.normalize(
    VECTORS[:50] + 0.1 * torch.randn(50, DIMENSIONS, generator=torch.manual_seed(1))
)
STORES: dict[str, tuple[Callable[[Tensor], object], Callable[[], Breakdown]]] = {
    "flat": (FlatStore, lambda: flat_store(COUNT, DIMENSIONS)),
    "scalar": (ScalarStore, lambda: scalar_store(COUNT, DIMENSIONS)),
    "product": (lambda vectors: ProductStore(vectors, 12), lambda: product_store(COUNT, DIMENSIONS, 12)),
    "graph": (
        lambda vectors: GraphStore(vectors, LINKS),
        lambda: graph_store(COUNT, DIMENSIONS, LINKS, GraphStore(VECTORS, LINKS).upper_entries),
    ),
}


def live(meter: Meter) -> int:
    return sum(block.size_bytes for block in meter.live.values())


@pytest.mark.parametrize("name", STORES)
def test_a_store_holds_what_the_formula_says_to_the_byte(name: str) -> None:
    make, predict = STORES[name]
    storages = [tensor.untyped_storage() for tensor in vars(make(VECTORS)).values() if isinstance(tensor, Tensor)]
    assert len({storage.data_ptr() for storage in storages}) == len(storages)
    assert sum(rounded(storage.nbytes()) for storage in storages) == predict().total


@pytest.mark.parametrize("name", ["flat", "scalar"])
def test_the_trace_says_the_same_of_stores_whose_shape_does_not_depend_on_values(name: str) -> None:
    make, predict = STORES[name]
    with trace.fake(device="cpu") as session:
        vectors = torch.empty(COUNT, DIMENSIONS)
        before = live(session.meter)
        store = make(vectors)
        traced = live(session.meter) - before
    assert traced == predict().total
    del store


def recall(found: Tensor, k: int = 10) -> float:
    exact = FlatStore(VECTORS).search(QUERIES, k)
    return sum(len(set(a) & set(b)) for a, b in zip(found.tolist(), exact.tolist(), strict=True)) / exact.numel()


@pytest.mark.parametrize(("name", "least"), [("flat", 1.0), ("scalar", 0.95), ("product", 0.35), ("graph", 0.9)])
def test_a_store_finds_what_is_near(name: str, least: float) -> None:
    store = STORES[name][0](VECTORS)
    assert recall(store.search(QUERIES, 10)) >= least


def test_the_mean_number_of_upper_entries_is_that_of_many_draws() -> None:
    drawn = [GraphStore(VECTORS[:400], LINKS, seed).upper_entries for seed in range(20)]
    assert sum(drawn) / len(drawn) == pytest.approx(400 / (LINKS - 1), rel=0.1)
    mean = graph_store(40_000, DIMENSIONS, LINKS)["upper_layers"]
    assert mean / 100 == pytest.approx(sum(drawn) / len(drawn) * LINKS * 4, rel=0.1)


def test_a_graph_has_no_link_to_itself_and_none_twice() -> None:
    for row, links in enumerate(GraphStore(VECTORS, LINKS).lowest.tolist()):
        assert row not in links
        assert len(set(links)) == 2 * LINKS


def test_a_graph_of_one_and_of_two() -> None:
    for count in (1, 2):
        store = GraphStore(VECTORS[:count], LINKS)
        assert store.search(VECTORS[:1], 1).tolist() == [[0]]


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: flat_store(0, 8), "vectors is 0"),
        (lambda: scalar_store(8, 0), "dimensions is 0"),
        (lambda: product_store(1000, 10, 3), "10 dimensions in 3 parts"),
        (lambda: graph_store(1000, 8, 1), "links is 1"),
        (lambda: graph_store(1000, 8, 4, -1), "upper_entries is -1"),
        (lambda: FlatStore(torch.ones(3)), r"vectors of shape \(3,\)"),
        (lambda: ProductStore(VECTORS, 5), "1500 vectors of 48 dimensions in 5 parts"),
        (lambda: ProductStore(VECTORS[:100], 4), "100 vectors"),
        (lambda: GraphStore(VECTORS, 8).search(QUERIES, 100), "width is 64"),
    ],
)
def test_bad_input_is_told(call, told: str) -> None:
    with pytest.raises(WorkbookError, match=told):
        call()
