"""How long something takes at its quickest: interference only ever adds time, so the fastest run says most."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import torch

from ...catalog.errors import WorkbookError

RUNS = 3  # in each pass over what is timed
MOST_PASSES = 12
LEAST_ON_GPU_S = 1e-3  # launches take microseconds: so many runs go between two events that they do not count

Run = Callable[[], object]


def default_device() -> str:
    """ "cuda" where PyTorch can use a GPU, else "cpu"."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def usable(device: str | torch.device | None) -> torch.device:
    """The device to measure on: the GPU where there is one, for None. WorkbookError for one that is not there."""
    try:
        where = torch.device(default_device() if device is None else device)
    except (RuntimeError, TypeError):
        raise WorkbookError(f"the device is {device!r}", "cpu or cuda", "leave it out to take what is there") from None
    if where.type not in ("cpu", "cuda"):
        raise WorkbookError(f"{where} cannot be timed here", "cpu or cuda", "measure on device='cpu'")
    if where.type == "cuda" and not torch.cuda.is_available():
        raise WorkbookError("there is no GPU that PyTorch can use", "a CUDA device",
                            "measure on device='cpu', or run `workbook doctor` to see why")  # fmt: skip
    return where


def fastest(run: Run, device: str | torch.device | None = None) -> float:
    """Seconds of the fastest `run()`, found as `settle` does it."""
    return settle({"run": run}, device)["run"]


def settle(runs: Mapping[str, Run], device: str | torch.device | None = None, rel: float = 0.02) -> dict[str, float]:
    """Seconds of the fastest run of each, timed in turns until two passes find none faster by more than `rel`.

    In turns, so that a slow second of the machine hits all of them and their ratios stay true; at most twelve passes
    of three runs. On a GPU the time is the device's own, between two events, over as many runs in a
    row as fill a millisecond. Raises WorkbookError for a device that is not there.
    """
    where = usable(device)
    timer = _between_events if where.type == "cuda" else _on_cpu
    best = {name: timer(run) for name, run in runs.items()}  # the first run of each: it pays for what is new
    quiet = 0
    for _ in range(MOST_PASSES):
        quiet += 1
        for name, run in runs.items():
            seconds = min(timer(run) for _ in range(RUNS))
            if seconds < best[name] * (1 - rel):
                quiet = 0
            best[name] = min(best[name], seconds)
        if quiet == 2:
            break
    return best


def graphed(run: Run) -> Run:
    """`run` recorded once as a CUDA graph, whose replay leaves no gaps between its kernels; on a CPU `run` itself.

    A small model's step on a GPU takes longer to launch than to compute, and its time then says nothing about memory.
    A `run` that cannot be recorded, because it looks at a value on the way, is returned as it is.
    """
    if not torch.cuda.is_available():
        return run
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # what a first run allocates and compiles must not be part of the recording
        for _ in range(RUNS):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            run()
    except RuntimeError:
        torch.cuda.synchronize()
        return run
    return graph.replay


def _on_cpu(run: Run) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _between_events(run: Run) -> float:
    """Seconds of one run on the current GPU: first of a single one, then of as many as fill a millisecond."""
    once = _many(run, 1)
    return once if once >= LEAST_ON_GPU_S else _many(run, min(1000, round(LEAST_ON_GPU_S / max(once, 1e-6)) + 1))


def _many(run: Run, times: int) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(times):
        run()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3 / times
