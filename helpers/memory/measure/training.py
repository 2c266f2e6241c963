"""Measure a training step where it runs: on a GPU by its allocator and the meter, on a CPU by the meter alone."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from weakref import WeakSet

import torch
from torch import nn

from ...catalog.errors import WorkbookError
from ...catalog.train_setup import TrainSetup
from ..meter.meter import Meter
from ..meter.timeline import Measurement, PartOf
from ..meter.watch import Optimizers, Watch, adopt, finding, listed
from .steps import training_run


def step(
    run: Callable[[], object],
    model: nn.Module,
    optimizer: Optimizers = None,
    warmup: int = 1,
    part_of: PartOf | None = None,
) -> Measurement:
    """Run `run()`, one whole training step of yours, and account for every byte of it.

    `run` takes no arguments and does forward, backward and `optimizer.step()` as your code does. `optimizer` is one,
    several or a dict of them, and may be left out: those that step in the warm-up are found. `warmup` steps come
    first, unmeasured: the first step of a run is different, because the optimizer makes its states there
    (`warmup=0` shows it; `seconds` is steady from `warmup=2`). `part_of(block)` may name a part of your own for a block
    that the step makes, by its `shape`, its `owner` (the module at work) or its `phase`. Sizes are rounded to 512
    bytes, as CUDA rounds them. Raises WorkbookError, also for an optimizer with states that neither was passed nor has
    been found.

    >>> layer = nn.Linear(256, 256, bias=False)
    >>> measured = step(lambda: layer(torch.ones(2, 256)).sum().backward(), layer)
    >>> measured.parts["parameters"]
    262144
    """
    if not callable(run):
        what, expected = f"run is a {type(run).__name__}", "a function without arguments that makes one training step"
        raise WorkbookError(what, expected, "pass the function itself: step(train_step, model, optimizer)")
    if not isinstance(model, nn.Module):
        raise WorkbookError(f"model is a {type(model).__name__}", "a torch.nn.Module", "pass the model you train")
    device, given, found = _device_of(model), listed(optimizer), WeakSet[torch.optim.Optimizer]()
    foreign_bytes = _foreign_bytes(model, given, device)
    seconds = None
    with finding(found):
        for _ in range(warmup):
            seconds = _timed(run, device)
    return Watch(model, given, device, foreign_bytes, found=found).measure(run, seconds, part_of)


def training_step(
    setup: TrainSetup, device: str | None = None, warmup: int = 1, part_of: PartOf | None = None
) -> Measurement:
    """Build the model of `setup` with random weights and measure a real training step of it on this machine.

    `device` is "cuda" where there is a GPU, else "cpu". `part_of` is as in `step`. Raises WorkbookError when the run
    would not fit.
    """
    prepared = training_run(setup, device)
    return step(prepared.step, prepared.model, prepared.optimizers, warmup, part_of)


def _timed(run: Callable[[], object], device: torch.device) -> float:
    start = time.perf_counter()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def _device_of(model: nn.Module) -> torch.device:
    parameter = next(model.parameters(), None)
    if parameter is None:
        raise WorkbookError("the model has no parameters", "a model that trains something", "pass the model you train")
    return parameter.device


def _foreign_bytes(model: nn.Module, optimizers: Optimizers, device: torch.device) -> int:
    """Bytes that this process has allocated on a GPU for something else than this model and optimizer.

    cuBLAS workspaces of earlier cells are dropped first: this step makes its own, and they are counted.
    """
    if device.type != "cuda":
        return 0
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    owned = Meter()
    adopt(owned, model, optimizers)
    owned.stop()
    return torch.cuda.memory_allocated(device) - owned.live_bytes
