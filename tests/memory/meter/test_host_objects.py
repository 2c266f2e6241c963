"""Bytes beside tensors: arrays to the byte, Python's own objects where they are many."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import torch

from helpers.catalog.errors import WorkbookError
from helpers.memory.meter import Beside


def test_an_array_counts_while_it_lives():
    with Beside() as beside:
        assert beside.live_bytes == 0
        kept = torch.zeros(100, 100).numpy().copy()
        stacked = np.stack([kept, kept])
        assert beside.live_bytes == 3 * 40_000
        del kept
        assert beside.live_bytes == 2 * 40_000
        del stacked
        assert beside.live_bytes == 0


def test_a_tensor_and_what_an_array_only_looks_at_are_not_beside():
    with Beside() as beside:
        tensor = torch.ones(100_000)
        view = tensor.numpy()[10:]
        assert (len(view), beside.live_bytes) == (99_990, 0)


def test_many_numbers_of_python_count_and_a_few_do_not():
    with Beside() as beside:
        few = [float(at) for at in range(1000)]
        assert (len(few), beside.live_bytes) == (1000, 0)
        many = torch.arange(20_000.0).tolist()
        assert beside.live_bytes > 8 * len(many)
        del many
        assert beside.live_bytes == 0


def test_one_within_another_goes_on():
    with Beside() as outer:
        with Beside():
            kept = np.zeros(1000)
        assert (kept.sum(), outer.live_bytes) == (0, 8000)


def test_a_peak_is_remembered_when_all_is_gone_again():
    np.zeros(10**6)
    with Beside() as beside:
        made = sum([float(at) for at in range(20_000)])
        lists = beside.peak_bytes
        assert 20_000 * 32 < lists < 20_000 * 36
        made += np.zeros(10**6).sum()
        assert (made > 0, beside.live_bytes) == (True, 0)
        assert 8 * 10**6 < beside.peak_bytes < 8 * 10**6 + 20_000


@pytest.mark.parametrize("ends", [tracemalloc.clear_traces, tracemalloc.stop])
def test_a_count_that_was_cleared_says_so_and_gives_no_number(ends):
    with Beside() as beside:
        kept = np.zeros(1000)
        ends()
        for asks in ("array_bytes", "live_bytes"):
            with pytest.raises(WorkbookError, match="cleared or stopped"):
                getattr(beside, asks)
    assert kept.sum() == 0
