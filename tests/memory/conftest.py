"""One thread for each test process: two run at once on two cores, and small tensors gain nothing from more."""

import functools
import os

import pytest


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def pytest_runtest_setup(item):
    """PyTorch asks the processor whether it has FP8 products, and not oneDNN, which may have been told to hide them."""
    if "ONEDNN_MAX_CPU_ISA" in os.environ and "torchao-fp8" in item.name and not _has_fp8():
        pytest.skip("oneDNN, told to be an older processor, has no FP8 product, and PyTorch calls it all the same")


@functools.cache
def _has_fp8() -> bool:
    import torch

    eight_bits, one = torch.ones(32, 64).to(torch.float8_e4m3fn), torch.ones(())
    try:
        torch._scaled_mm(eight_bits, eight_bits.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
    except RuntimeError:
        return False
    return True
