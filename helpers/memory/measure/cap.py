"""A wall at a chosen size, the same on every machine."""

from __future__ import annotations

import contextlib
import gc
import traceback
from collections.abc import Iterable, Iterator

import torch
from torch import nn

from ...catalog.errors import require_number
from ..breakdown import GIB
from ..meter.meter import Meter


@contextlib.contextmanager
def capped(gib: float, holding: Iterable[nn.Module] = ()) -> Iterator[Meter]:
    """Make this machine, whatever it has, run out of memory at `gib` GiB.

    Counts what is allocated inside the block and the parameters of the models in `holding`, rounded to 512 bytes,
    so the same cell hits the same wall on a laptop and on an 80 GB card. The allocation that would pass the wall
    raises `torch.OutOfMemoryError`. On the way out the frames of the traceback are cleared: they would keep the
    failed step's tensors alive, which is why a retry in an `except` block often fails on a GPU.

    >>> with capped(0.001):
    ...     torch.zeros(1024, 1024)
    Traceback (most recent call last):
    torch.OutOfMemoryError: ...
    """
    do = "write capped(0.5) for half a GiB"
    require_number("the cap", gib, below=2**20, expected="a positive number of GiB", do=do)
    meter = Meter(limit_bytes=round(gib * GIB))
    meter.adopt((p for model in holding for p in model.parameters()), "parameters")
    try:
        with meter:
            yield meter
    except torch.OutOfMemoryError as error:
        traceback.clear_frames(error.__traceback__)
        raise
    finally:
        meter.stop()
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
