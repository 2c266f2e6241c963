"""A wall on purpose: PyTorch's own error at the cap, and a machine that works afterwards."""

import weakref

import pytest
import torch
from torch import nn

from helpers.catalog import TrainSetup, WorkbookError
from helpers.memory import budget, measure
from helpers.memory.measure import steps

MIB, GIB = 2**20, 2**30


def floats(mib):
    return torch.empty(mib * MIB // 4)


def test_it_is_a_real_out_of_memory_error():
    words = r"Tried to allocate 5\.00 MiB\. The cap is 4\.00 MiB"
    with pytest.raises(torch.OutOfMemoryError, match=words), measure.capped(4 / 1024):
        floats(5)
    words = r"Tried to allocate 512\.00 KiB\. The cap is 4\.00 MiB, of which 0\.00 MiB is free"
    with pytest.raises(torch.OutOfMemoryError, match=words), measure.capped(4 / 1024):
        kept = floats(4), torch.empty(2**17)  # noqa: F841 - both at once
    with pytest.raises(torch.cuda.OutOfMemoryError), measure.capped(4 / 1024):  # the name that people catch
        floats(5)


def test_what_fits_to_the_last_byte_fits():
    with measure.capped(4 / 1024) as meter:
        kept = [floats(3), floats(1)]
    assert meter.peak_bytes == 4 * MIB
    del kept


def test_a_failed_run_leaves_no_tensor_alive_and_the_next_one_fits():
    def run(sizes):
        kept = [floats(mib) for mib in sizes]
        return sum(tensor.numel() for tensor in kept)

    with measure.capped(8 / 1024) as meter:
        try:
            with measure.capped(8 / 1024) as inner:
                run([3, 3, 3])
        except torch.OutOfMemoryError as error:
            assert inner.live_bytes == 0, "the failed frame still holds its tensors"
            caught = error  # even when somebody keeps the error
        assert run([4, 4]) == 8 * MIB // 4
    assert meter.peak_bytes == 8 * MIB
    assert caught


def test_the_error_that_pytest_or_a_notebook_keeps_holds_no_tensor():
    seen = []

    def run():
        first = floats(3)
        seen.append(weakref.ref(first))
        return first, floats(3)

    with pytest.raises(torch.OutOfMemoryError) as kept, measure.capped(4 / 1024) as meter:
        run()
    assert meter.live_bytes == 0
    assert seen[0]() is None
    assert kept.value


def test_held_models_count_and_others_do_not():
    model = nn.Linear(512, 512, bias=False)  # 1 MiB
    with measure.capped(1.5 / 1024) as meter:
        floats(1)
    assert meter.peak_bytes == MIB
    with pytest.raises(torch.OutOfMemoryError, match=r"1\.00 MiB is allocated"), measure.capped(1.5 / 1024, [model]):
        floats(1)


def test_a_model_that_is_larger_than_the_cap_does_not_fit():
    with pytest.raises(torch.OutOfMemoryError), measure.capped(0.5 / 1024, [nn.Linear(512, 512)]):
        pytest.fail("the block must not begin")


def test_other_errors_pass_and_the_meter_is_off_afterwards():
    with pytest.raises(ZeroDivisionError), measure.capped(1) as meter:
        1 / 0  # noqa: B018
    floats(1)
    assert meter.peak_bytes == 0


def test_the_wall_stands_where_the_budget_says():
    setup = TrainSetup("tiny-llama", "fp32", "adamw-fused", 2, 128)
    peak_gib = budget.train(setup).peak_bytes / GIB

    def fits(gib):
        try:
            with measure.capped(gib):
                run = steps.training_run(setup, "cpu")
                run.step(), run.step()
        except torch.OutOfMemoryError:
            return False
        return True

    assert [fits(peak_gib * share) for share in (0.99, 1.01, 0.99)] == [False, True, False]


@pytest.mark.parametrize("cap", [0, -1, True, None, "8", float("nan"), float("inf"), 2**20])
def test_bad_caps(cap):
    with pytest.raises(WorkbookError, match="the cap is") as raised, measure.capped(cap):
        pass
    assert "capped(0.5)" in raised.value.do


def test_accelerate_takes_it_for_an_out_of_memory():
    from accelerate.utils.memory import should_reduce_batch_size

    with pytest.raises(torch.OutOfMemoryError) as raised, measure.capped(4 / 1024):
        torch.ones(2**21)
    assert should_reduce_batch_size(raised.value), "so that auto_find_batch_size can be tried under a cap"
