"""Published histories replay block for block, and say whose they are."""

import pytest

from helpers.catalog.errors import WorkbookError
from helpers.memory.accuracy.published import history, names
from helpers.memory.allocator import Settings, compare_with_snapshot
from helpers.memory.allocator.snapshot_summary import summarize


@pytest.mark.parametrize("name", names())
def test_every_block_lies_where_it_lay_on_the_card(name):
    found = compare_with_snapshot(history(name).snapshot)
    assert found.agrees, str(found)
    assert found.allocations > 1000


def test_the_transformer_s_step():
    found, told = history("transformer-step"), summarize(history("transformer-step").snapshot)
    assert (told.comparison.allocations, told.comparison.segment_events) == (3853, 65)
    assert told.peak_reserved_bytes == found.snapshot.reserved_bytes == 750 * 2**20
    assert not told.comparison.begins
    assert "MIT" in found.licence
    assert "NiuHuangxiaozi" in found.source


def test_another_allocator_lies_otherwise():
    snapshot = history("transformer-step").snapshot
    assert not compare_with_snapshot(snapshot, Settings(large_segment_size_mb=24)).agrees


def test_an_unknown_history_is_refused():
    with pytest.raises(WorkbookError, match="transformer-step"):
        history("transformer")
