"""Values that leave PyTorch are counted at every door, and a few may."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from helpers.catalog import WorkbookError
from helpers.memory.meter import Meter, TorchAlone

DOORS = {
    "numpy": lambda values: values.numpy(),
    "asarray": np.asarray,
    "from_dlpack": np.from_dlpack,
    "list": lambda values: values.tolist(),
    "detached": lambda values: values.detach().cpu().numpy(force=True),
    "numbers": lambda values: [value.item() for value in values],
    "floats": lambda values: [float(value) for value in values],
    "storage": lambda values: list(values.untyped_storage()),
}


@pytest.mark.parametrize("leave", DOORS.values(), ids=DOORS)
def test_many_values_do_not_leave(leave):
    with TorchAlone(), pytest.raises(WorkbookError, match="leave PyTorch"):
        leave(torch.ones(5000))
    assert len(leave(torch.ones(5000))) >= 5000


@pytest.mark.parametrize("leave", DOORS.values(), ids=DOORS)
def test_a_few_do_and_all_of_them_add_up(leave):
    with TorchAlone(100):
        for _ in range(5):
            leave(torch.ones(20, dtype=torch.uint8))
        with pytest.raises(WorkbookError):
            leave(torch.ones(20, dtype=torch.uint8))


def test_a_meter_beside_it_counts_as_without():
    with Meter() as meter, TorchAlone():
        kept = torch.ones(10_000) + 1
    assert meter.peak_bytes >= 2 * kept.nbytes


def test_lists_may_be_let_go_and_arrays_not():
    with TorchAlone(lists=True):
        assert sum(torch.ones(9000).tolist()) == sum(value.item() for value in torch.ones(9000)) == 9000
        with pytest.raises(WorkbookError):
            torch.ones(9000).numpy()
