"""A stand-in for the GPU: a meter counts what really happens on this CPU, and the simulator says what is reserved.

It has the methods of `record.target.Gpu`, so every experiment runs as it would, at toy sizes, and its figures are true
of this CPU: they are compared with the same predictions, with `on="cpu"`.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from unittest import mock

from helpers.catalog.errors import WorkbookError
from helpers.course.record.target import ExperimentSizes, MemoryCounters, Target
from helpers.memory.accuracy.recordings import MeasuredWith, RecordedDevice
from helpers.memory.allocator import alloc, empty_cache, free, read_snapshot, replay
from helpers.memory.measure import clock, probes
from helpers.memory.meter.meter import Meter
from tests.memory.allocator.snapshots import snapshot_of

MADE = MeasuredWith("2.11.0", "13.0", "580.65", "0.1.0", "2026-11-22")
MACHINE = RecordedDevice("rehearsal", "a rehearsal on this CPU", "cpu", 2**34, (8, 0))
TOY = ExperimentSizes(
    train="tiny-llama",
    sequence=32,
    serve="tiny-llama",
    contexts=(32, 96),
    chunk=32,
    decode_context=64,
    sweep_bytes=2**18,
    copy_bytes=2**20,
    probes=("copy",),
    cat_tokens=(16, 20),
    cat_users=2,
    random_steps=200,
    random_log2=22,
    timed_runs=1,
)


class CpuGpu:
    """Counts from the first event of `meter` on; `free` is what it says to be free."""

    device = "cpu"

    def __init__(self, meter: Meter, free_bytes: int = 2**34, machine: RecordedDevice = MACHINE) -> None:
        self.meter, self.free, self.known = meter, free_bytes, machine
        self.emptied: list[int] = []  # how many events there were at each empty_cache

    def machine(self) -> RecordedDevice:
        return self.known

    def made(self) -> MeasuredWith:
        return MADE

    def free_bytes(self) -> int:
        return self.free

    def clear(self) -> None:
        gc.collect()
        self.empty_cache()

    def empty_cache(self) -> None:
        self.emptied.append(len(self.meter.events))

    def finish(self) -> None:
        """Nothing is launched here."""

    def memory(self) -> MemoryCounters:
        gc.collect()
        ran = replay(self._steps(0))
        return (
            MemoryCounters(ran.allocated[-1], ran.reserved[-1], self.meter.live_bytes)
            if len(ran)
            else MemoryCounters(0, 0)
        )

    def peak(self, run) -> MemoryCounters:
        first = max(0, len(self._steps(0)) - 1)
        run()
        ran = replay(self._steps(0))
        return MemoryCounters(max(ran.allocated[first:], default=0), max(ran.reserved[first:], default=0))

    def history(self, run):
        reserved, first = self.memory().reserved, len(self.meter.events)
        if reserved:
            raise WorkbookError(f"{reserved} bytes were reserved before the history", "none", "--only")
        run()
        return read_snapshot(snapshot_of(self._steps(first)))

    def _steps(self, first: int) -> list:
        """The meter's events from `first` on, and the caches thrown away between them."""
        steps, born = [], set()
        for number, event in enumerate(self.meter.events):
            if number >= first:
                steps += [empty_cache()] * (number in self.emptied)
                key = id(event.block)
                if event.sign > 0:
                    born.add(key)
                    steps.append(alloc(key, event.block.size_bytes))
                elif key in born:
                    steps.append(free(key))
        return steps + [empty_cache()] * (len(self.meter.events) in self.emptied)


@contextlib.contextmanager
def quick_clocks() -> Iterator[None]:
    """Timings of toys: nothing is held against them, so they need no patience."""
    with (
        mock.patch.dict(probes.SIZES, cpu=probes.ProbeSizes(2**14, 64, 2, 16, 32)),
        mock.patch.multiple(clock, RUNS=1, LEAST_S=0, LEAST_PASSES=1, MOST_PASSES=2),
    ):
        yield


@contextlib.contextmanager
def rehearsed(**changes: object) -> Iterator[Target]:
    """This CPU as a target, its meter running."""
    meter = Meter()
    with meter, quick_clocks():
        try:
            yield Target(CpuGpu(meter, **changes), TOY)
        finally:
            meter.stop()
