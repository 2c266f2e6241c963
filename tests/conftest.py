"""Fixtures that tests of several rooms share."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from hypothesis import settings

from helpers.lesson.ranks import Ranks, kept

settings.register_profile("workbook", deadline=None)  # no test asserts a wall-clock time
settings.load_profile("workbook")


def pytest_collection_finish() -> None:
    """What was imported is no garbage: a measured step, which collects garbage first, need not look through it."""
    gc.collect()
    gc.freeze()


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """The same for what the tests of a file have imported."""
    if nextitem and nextitem.path != item.path:
        gc.collect()
        gc.freeze()


@pytest.fixture(scope="session")
def _four_ranks() -> Iterator[Ranks]:
    with Ranks(4) as ranks:
        yield ranks


@pytest.fixture(scope="session")
def _two_ranks() -> Iterator[Ranks]:
    with Ranks(2) as ranks:
        yield ranks


@pytest.fixture
def ranks4(_four_ranks: Ranks) -> Ranks:
    """Four ranks that keep nothing; started once for all tests of a process, and anew after a test that broke them."""
    _four_ranks.run(kept.clear)
    return _four_ranks


@pytest.fixture
def ranks2(_two_ranks: Ranks) -> Ranks:
    """Two ranks that keep nothing."""
    _two_ranks.run(kept.clear)
    return _two_ranks
