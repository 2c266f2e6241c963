"""How long something takes. Other work on the machine only ever adds time: the fastest run says most about one thing,
and how two compare is told by runs of the same second.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping
from statistics import median
from typing import TypeVar

import torch

from ...catalog.errors import WorkbookError, unknown_name

RUNS, LEAST_S = 3, 0.01  # in each pass: as many runs as this many, and more where they are short
LEAST_PASSES, MOST_PASSES = 5, 12
LEAST_ON_GPU_S = 1e-3  # launches take microseconds: so many runs go between two events that they do not count

Run = Callable[[], object]
Name = TypeVar("Name", bound=Hashable)


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
        do = "measure on device='cpu', or run `workbook doctor` to see why"
        raise WorkbookError("there is no GPU that PyTorch can use", "a CUDA device", do)
    return where


def fastest(run: Run, device: str | torch.device | None = None) -> float:
    """Seconds of the fastest `run()`, found as `settle` does it."""
    return settle({"run": run}, device)["run"]


def settle(
    runs: Mapping[Name, Run], device: str | torch.device | None = None, against: Name | None = None
) -> dict[Name, float]:
    """Seconds of the fastest run of each, all timed in turns.

    With `against`, seconds that compare: the fastest of that one, times the median over the passes of how much longer
    each took than it did in the same pass. A burst of other work then slows both and changes nothing; the fastest
    runs of two things may have met different machines. On a GPU the time is the device's own, between two events,
    over as many runs in a row as fill a millisecond. Raises WorkbookError for a device that is not there.
    """
    if against is not None and against not in runs:
        raise unknown_name("run to compare with", str(against), map(str, runs))
    passes = in_turns(runs, device)
    best = {name: min(one[name] for one in passes) for name in runs}
    if against is None:
        return best
    return {name: best[against] * median(one[name] / one[against] for one in passes) for name in runs}


def in_turns(
    runs: Mapping[Name, Run], device: str | torch.device | None = None, rel: float = 0.02
) -> list[dict[Name, float]]:
    """Seconds of each run, pass by pass: five passes, and on until two in a row find none faster by more than `rel`.

    In each pass the fastest of three runs or more counts; there are twelve passes at most.
    """
    where = usable(device)
    timer = _between_events if where.type == "cuda" else _on_cpu
    best = {name: timer(run) for name, run in runs.items()}  # the first run of each pays for what is new
    passes: list[dict[Name, float]] = []
    quiet = 0
    while len(passes) < LEAST_PASSES or (quiet < 2 and len(passes) < MOST_PASSES):
        passes.append({name: _quickest(timer, run) for name, run in runs.items()})
        faster = any(seconds < best[name] * (1 - rel) for name, seconds in passes[-1].items())
        quiet = 0 if faster else quiet + 1
        best = {name: min(best[name], seconds) for name, seconds in passes[-1].items()}
    return passes


def _quickest(timer: Callable[[Run], float], run: Run) -> float:
    """The fastest of three runs; of more, up to ten milliseconds, where a run is shorter than a burst of other work."""
    taken = [timer(run) for _ in range(RUNS)]
    while sum(taken) < LEAST_S and len(taken) < 100:
        taken.append(timer(run))
    return min(taken)


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
