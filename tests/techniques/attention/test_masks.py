"""Tiles to visit, against every pair of the mask."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.catalog.errors import WorkbookError
from helpers.techniques.attention import BlockSparse, Causal, Full, Tile, Window
from helpers.techniques.attention.masks import joined
from tests.techniques.attention.drawn import masks, sides


def visited(mask, queries, keys, tile_q, tile_k):
    """From the whole table: the tiles with a pair, and whether they hold every pair."""
    table = mask.allowed(torch.arange(keys - queries, keys), torch.arange(keys))
    found = []
    for row, band in enumerate(table.split(tile_q)):
        for column, tile in enumerate(band.split(tile_k, 1)):
            if tile.any():
                found.append(Tile(row, column, bool(tile.all())))
    return found


@settings(max_examples=400, deadline=None)
@given(masks(), st.integers(1, 24), st.integers(1, 24), sides, sides)
def test_tiles_are_those_that_hold_a_pair(mask, queries, keys, tile_q, tile_k):
    assert list(mask.tiles(queries, keys, tile_q, tile_k)) == visited(mask, queries, keys, tile_q, tile_k)


@pytest.mark.parametrize(
    ("mask", "tokens", "tiles"),
    [
        (Full(), 4096, 32 * 32),
        (Causal(), 4096, 528),
        (Window(512), 4096, 150),
        (Window(512), 8192, 310),
        (Causal(), 8192, 2080),
        (Window(512, sinks=4), 4096, 150 + 32 - 5),
    ],
)
def test_worked_numbers(mask, tokens, tiles):
    assert len(list(mask.tiles(tokens, tokens))) == tiles


def test_a_window_counts_the_query_in_and_sinks_stay():
    table = Window(2, sinks=1).allowed(torch.arange(5), torch.arange(5))
    assert [row.nonzero().flatten().tolist() for row in table] == [[0], [0, 1], [0, 1, 2], [0, 2, 3], [0, 3, 4]]


def test_one_query_sees_all_that_was_before_it():
    assert list(Causal().tiles(1, 300)) == [Tile(0, 0, True), Tile(0, 1, True), Tile(0, 2, True)]
    assert list(Causal().tiles(3, 1, 1, 1)) == [Tile(2, 0, True)]  # two queries before the first key


def test_joined():
    assert joined([range(0), range(2), range(1, 2), range(2, 3), range(5, 6)]) == [range(3), range(5, 6)]


@pytest.mark.parametrize("wrong", [lambda: Window(0), lambda: Window(4, -1), lambda: BlockSparse(0, [[1]])])
def test_sizes_are_whole_numbers(wrong):
    with pytest.raises(WorkbookError):
        wrong()


def test_a_table_of_blocks_is_square_and_as_long_as_the_keys():
    for blocks in ([], [[1, 0]], [[1, 0], [1]]):
        with pytest.raises(WorkbookError, match="as many rows as columns"):
            BlockSparse(4, blocks)
    with pytest.raises(WorkbookError, match="at most 8 keys"):
        list(BlockSparse(4, [[1, 0], [1, 1]]).tiles(9, 9))
