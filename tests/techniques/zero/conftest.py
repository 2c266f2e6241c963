"""Ranks that the tests of a module share: starting four takes seconds, calling them does not."""

import pytest

from helpers.lesson.ranks import Ranks


@pytest.fixture(scope="session")
def two():
    with Ranks(2) as ranks:
        yield ranks


@pytest.fixture(scope="session")
def four():
    with Ranks(4) as ranks:
        yield ranks
