"""Values that leave PyTorch are counted at every door, and a few may."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from helpers.catalog import WorkbookError
from helpers.memory.meter import Meter, TorchAlone
from tests.memory.doors import Door

NUMPY, TOLIST = torch.Tensor.numpy, torch.Tensor.tolist


def handed_over(values):
    """Number by number."""
    found = []
    values.apply_(lambda value: found.append(value) or value)
    return found


def into_memory_of(values, lend):
    """Written into memory that is not PyTorch's."""
    kept = np.zeros(len(values), dtype=str(values.dtype).removeprefix("torch."))
    lend(kept).copy_(values)
    return kept


DOORS = {
    "numpy": lambda values: values.numpy(),
    "asarray": np.asarray,
    "from_dlpack": np.from_dlpack,
    "list": lambda values: values.tolist(),
    "detached": lambda values: values.detach().cpu().numpy(force=True),
    "numbers": lambda values: [value.item() for value in values],
    "floats": lambda values: [float(value) for value in values],
    "storage": lambda values: list(values.untyped_storage()),
    "apply": handed_over,
    "from_numpy": lambda values: into_memory_of(values, torch.from_numpy),
    "frombuffer": lambda values: into_memory_of(values, lambda kept: torch.frombuffer(kept.data, dtype=values.dtype)),
    "to a numpy of before": lambda values: NUMPY(values),
    "to a list of before": lambda values: TOLIST(values),
    "out": lambda values: [torch.add(values, 0, out=torch.from_numpy(np.zeros(len(values), "f4"))), values][1],
    "map": lambda values: values.clone().map_(values, max),
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


def test_values_that_leave_in_a_dispatch_of_somebodys_own_are_counted():
    door = Door(lambda: torch.ones(100, 100).tolist())
    with TorchAlone(), pytest.raises(WorkbookError, match="many values leave PyTorch"):
        torch.neg(door)
