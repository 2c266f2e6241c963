"""One thread for each test process: two run at once on two cores, and small tensors gain nothing from more."""

import pytest


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
