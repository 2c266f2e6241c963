"""What this notebook runs on, in one line."""

from __future__ import annotations

import sys

from . import notes


def machine() -> str:
    """Print what was found here, and return the device for tensors: "cuda" or "cpu".

    >>> machine()  # doctest: +SKIP
    This machine: NVIDIA H100 SXM 80 GB, 78.4 GiB of memory free · torch 2.11.0+cu130 · Python 3.12.3
    'cuda'
    """
    import torch

    from ..catalog import detect
    from ..catalog.logs import hold_back_torchao
    from ..memory.breakdown import format_bytes

    hold_back_torchao()
    gpu = detect()
    if gpu:
        found = f"{gpu.title}, {format_bytes(torch.cuda.mem_get_info()[0])} of memory free"
    else:
        threads = torch.get_num_threads()
        found = f"no CUDA GPU, so everything runs on the CPU ({threads} thread{'s' * (threads > 1)})"
    print(f"This machine: {found} · torch {torch.__version__} · Python {sys.version.split()[0]}")
    notes.opened()
    return "cuda" if gpu else "cpu"
