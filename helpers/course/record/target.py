"""What an experiment is given, and what it gives back: the GPU at hand, how large to be, and figures.

Tests put a stand-in with the methods of `Gpu` in its place; its calls to torch.cuda have not run on a GPU yet.
"""

from __future__ import annotations

import datetime
import gc
import re
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from ... import __version__
from ...catalog.devices import describe
from ...catalog.errors import WorkbookError
from ...memory.accuracy.recordings import MeasuredWith, RecordedDevice
from ...memory.allocator import Snapshot, live_snapshot
from ..doctor import nvidia_smi

ROOT = Path(__file__).resolve().parents[3]
MOST_EVENTS = 1_000_000


class MemoryCounters(NamedTuple):
    """Bytes of blocks in use, bytes taken from the driver, and of the former those that tensors asked for.

    The last is exact; a block may be larger by up to 1 MiB, where the rest was not worth splitting off.
    """

    allocated: int
    reserved: int
    requested: int = 0


class Gpu:
    """The current CUDA device. WorkbookError where there is none."""

    device = "cuda"

    def __init__(self) -> None:
        if not torch.cuda.is_available():
            what = "there is no GPU that PyTorch can use, and `workbook record` writes only what was measured"
            do = "run it on a rented machine, see docs/rented-machine.md; --list shows what would be measured"
            raise WorkbookError(what, "a CUDA device", do)

    def machine(self) -> RecordedDevice:
        """Under the catalogue's name, or one made of the driver's."""
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        name = re.sub(r"[^a-z0-9.]+", "-", describe(properties.name, properties.total_memory).name.lower()).strip("-")
        capability = torch.cuda.get_device_capability()
        return RecordedDevice(name, properties.name, self.device, properties.total_memory, capability)

    def made(self) -> MeasuredWith:
        """With what, and when, is measured now."""
        driver = nvidia_smi.ask()
        toolkit = torch.version.cuda or f"hip {torch.version.hip}"
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        return MeasuredWith(torch.__version__, toolkit, driver.version if driver else "", workbook_version(), today)

    def free_bytes(self) -> int:
        return torch.cuda.mem_get_info()[0]

    def clear(self) -> None:
        """Give back what earlier work left: garbage, cuBLAS workspaces, the cache."""
        gc.collect()
        torch.cuda.synchronize()
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()

    def empty_cache(self) -> None:
        torch.cuda.empty_cache()

    def memory(self) -> MemoryCounters:
        """Now, when garbage is collected."""
        gc.collect()
        torch.cuda.synchronize()
        requested = torch.cuda.memory_stats().get("requested_bytes.all.current", 0)
        return MemoryCounters(torch.cuda.memory_allocated(), torch.cuda.memory_reserved(), requested)

    def peak(self, run: Callable[[], object]) -> MemoryCounters:
        """The most that was allocated, and the most that was reserved, while `run()` ran."""
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        run()
        torch.cuda.synchronize()
        return MemoryCounters(torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())

    def finish(self) -> None:
        """Wait for what was launched: before a clock is read."""
        torch.cuda.synchronize()

    def history(self, run: Callable[[], object]) -> Snapshot:
        """Every request, free and call to the driver while `run()` ran, and the segments after it.

        WorkbookError when something is reserved already: a replay must begin where the allocator did.
        """
        reserved = self.memory().reserved
        if reserved:
            expected = "an allocator that holds nothing"
            do = "record it in a process of its own: workbook record --only NAME"
            raise WorkbookError(f"{reserved:,} bytes were reserved before the history began", expected, do)
        torch.cuda.memory._record_memory_history(max_entries=MOST_EVENTS, context=None)
        try:
            run()
            return live_snapshot()
        finally:
            torch.cuda.memory._record_memory_history(enabled=None)


@dataclass(frozen=True)
class ExperimentSizes:
    """How large the experiments are. The defaults are the real ones, 1B and 8B shapes; tests rehearse with toys.

    Models by their catalogue names, tokens, and bytes.

    `sweep_bytes` None is the sweep's own choice. A cache is filled to each of `contexts` in chunks of `chunk` tokens.
    `cat_tokens` are where a cache that grows by torch.cat begins and ends, `cat_users` whose it is. A history of random
    requests has `random_steps`, of up to 2**`random_log2` bytes. A step's time is the fastest of `timed_runs`.
    """

    train: str = "llama-3.2-1b"
    sequence: int = 2048
    serve: str = "llama-3.1-8b"
    contexts: tuple[int, ...] = (2048, 8192, 16384, 32768, 65536)
    chunk: int = 2048
    decode_context: int = 8192
    sweep_bytes: int | None = None
    copy_bytes: int = 2**28
    probes: tuple[str, ...] = ("copy", "layernorm", "softmax", "GEMV", "attention", "GEMM")
    cat_tokens: tuple[int, int] = (512, 640)
    cat_users: int = 32
    random_steps: int = 3000
    random_log2: float = 26.0
    timed_runs: int = 5


FULL_SIZE = ExperimentSizes()


@dataclass(frozen=True)
class MeasuredFigure:
    """One measured thing, as `recordings.Entry` keeps it; `history` becomes a file beside the recording."""

    label: str
    quantity: str
    unit: str
    setup: Mapping[str, object]
    values: tuple[float, ...]
    x: tuple[float, ...] = ()
    x_unit: str = ""
    history: Snapshot | None = None


@dataclass(frozen=True)
class Target:
    """What an experiment measures: the device that is asked, and how large to be."""

    gpu: Gpu
    sizes: ExperimentSizes = FULL_SIZE

    @property
    def device(self) -> str:
        return self.gpu.device

    def peak_over(self, before: MemoryCounters, run: Callable[[], object]) -> MemoryCounters:
        """The peaks while `run()` ran, less what was there `before` this experiment.

        Small tensors may go into a segment that was there: reserved then reads low by one such segment, 2 MiB.
        """
        peak = self.gpu.peak(run)
        return MemoryCounters(peak.allocated - before.allocated, peak.reserved - before.reserved)

    def seconds(self, run: Callable[[], object]) -> float:
        """The fastest of a few runs: for steps that take tens of milliseconds and more."""
        taken = []
        for _ in range(self.sizes.timed_runs):
            self.gpu.finish()
            start = time.perf_counter()
            run()
            self.gpu.finish()
            taken.append(time.perf_counter() - start)
        return six_digits(min(taken))


def peak_figures(label: str, setup: Mapping[str, object], peak: MemoryCounters) -> Iterable[MeasuredFigure]:
    """The two figures of a run's peak."""
    yield MeasuredFigure(label, "peak allocated", "bytes", setup, (peak.allocated,))
    yield MeasuredFigure(label, "peak reserved", "bytes", setup, (peak.reserved,))


def six_digits(value: float) -> float:
    """Rounded to six digits: more is noise in a time."""
    return float(f"{value:.6g}")


def workbook_version() -> str:
    """ "0.1.0 1a2b3c4": the package's version, and the commit where it lies in its own repository."""
    command = ["git", "rev-parse", "--show-toplevel", "--short", "HEAD"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return __version__
    folder, commit = done.stdout.splitlines()
    return f"{__version__} {commit}" if Path(folder).resolve() == ROOT else __version__
