"""What an experiment is given, and what it gives back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from ...memory.allocator import Snapshot
from .gpu import Gpu, Memory
from .scale import EARNEST, Scale


@dataclass(frozen=True)
class Figure:
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
class Bench:
    """Where and how large: the device that is asked, and the sizes."""

    gpu: Gpu
    scale: Scale = EARNEST

    @property
    def device(self) -> str:
        return self.gpu.device

    def peak_over(self, before: Memory, run: Callable[[], object]) -> Memory:
        """The peaks while `run()` ran, less what was there `before` this experiment.

        Small tensors may go into a segment that was there: reserved then reads low by one such segment, 2 MiB.
        """
        peak = self.gpu.peak(run)
        return Memory(peak.allocated - before.allocated, peak.reserved - before.reserved)

    def seconds(self, run: Callable[[], object]) -> float:
        """The fastest of a few runs: for steps that take tens of milliseconds and more."""
        taken = []
        for _ in range(self.scale.timed_runs):
            self.gpu.finish()
            start = time.perf_counter()
            run()
            self.gpu.finish()
            taken.append(time.perf_counter() - start)
        return digits(min(taken))


def sizes(label: str, setup: Mapping[str, object], peak: Memory) -> Iterable[Figure]:
    """The two figures of a run's peak."""
    yield Figure(label, "peak allocated", "bytes", setup, (peak.allocated,))
    yield Figure(label, "peak reserved", "bytes", setup, (peak.reserved,))


def digits(value: float) -> float:
    """Six digits: more is noise in a time."""
    return float(f"{value:.6g}")
