"""The working-set sweep: read a block of memory again and again, and let its size find the caches."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count, takewhile
from math import exp, log
from pathlib import Path
from statistics import median_high

import torch

from ...catalog.errors import require_whole
from ..breakdown import format_bytes
from .clock import settle, usable

SMALLEST_BYTES = 4 * 2**10
READ_PER_CALL = {"cpu": 32 * 2**20, "cuda": 2**30}  # enough that the cost of a call vanishes
LARGEST_BYTES = {"cpu": 2**28, "cuda": 2**30}
FALLING = 0.04  # from one size to the next (a factor of √2), beyond what noise does
UNNAMED = "step"
STEP = 0.09  # a whole step: L2 and L3 of a server core are 15 to 20 % apart
_LINUX = Path("/sys/devices/system/cpu/cpu0/cache")
_MACOS = {"L1": "hw.perflevel0.l1dcachesize", "L2": "hw.perflevel0.l2cachesize"}
_SUFFIX = {"K": 2**10, "M": 2**20, "G": 2**30}


@dataclass(frozen=True)
class MeasuredLevel:
    """One level of the hierarchy as measured: data up to `size_bytes` is read at `bytes_per_s`.

    `size_bytes` is None for the last level, which the sweep did not exceed.
    """

    name: str
    size_bytes: int | None
    bytes_per_s: float

    def __str__(self) -> str:
        size = "beyond" if self.size_bytes is None else format_bytes(self.size_bytes)
        return f"{self.name:<8}{size:>12}{self.bytes_per_s / 1e9:>10,.0f} GB/s"


@dataclass(frozen=True)
class Sweep:
    """Bytes per second by working-set size, what the system reports of its caches, and the levels found."""

    device: str
    sizes: tuple[int, ...]
    bytes_per_s: tuple[float, ...]
    reported: dict[str, int]

    @property
    def levels(self) -> tuple[MeasuredLevel, ...]:
        """The levels, nearest first, named after the reported caches whose size they have within a factor of two."""
        steps, plateaus = find_steps(self.sizes, self.bytes_per_s)
        names = [_name(size, self.reported) for size in steps]
        outer = "HBM" if self.device == "cuda" else "DRAM"
        return (*map(MeasuredLevel, names, steps, plateaus), MeasuredLevel(outer, None, plateaus[-1]))

    @property
    def remark(self) -> str:
        """What does not agree with the reported caches, and the likely reason; "" where all of it does."""
        if not self.reported:
            return "This system reports no cache sizes, so the steps stand for themselves."
        found = {level.name for level in self.levels}
        missed = [f"{name} ({format_bytes(size)})" for name, size in self.reported.items() if name not in found]
        said = []
        if missed:
            why = f"its speed is within {STEP:.0%} of its neighbour's, or what else runs on this machine hides it"
            said.append(f"No step near {', '.join(missed)}: {why}.")
        if UNNAMED in found:
            said.append("A step that is no reported cache is other work on this machine, or its page tables.")
        return " ".join(said and [*said, "Run the cell again when nothing else runs."])


def sweep(device: str | None = None, largest_bytes: int | None = None) -> Sweep:
    """Read blocks of 4 KiB up to `largest_bytes`, two sizes per doubling, each again and again.

    A block of n bytes is shown to `sum` as a matrix whose rows are all that same block, so one operator reads it
    many times and the same code measures a CPU's caches and a GPU's. On a CPU one thread reads: L1 and L2 belong
    to one core. Takes one to five seconds. Raises WorkbookError for a device that is not there.
    """
    where = usable(device)
    caches = reported(where)
    if largest_bytes is not None:
        do = "leave it out for eight times the last cache"
        require_whole("largest_bytes", largest_bytes, 16 * SMALLEST_BYTES, 2**36, unit="bytes", do=do)
    largest = largest_bytes or min(2**30, max(LARGEST_BYTES[where.type], 8 * max(caches.values(), default=0)))
    sizes = _sizes(largest)
    memory = torch.ones(sizes[-1] // 8, dtype=torch.int64, device=where)
    times = {size: max(1, READ_PER_CALL[where.type] // size) for size in sizes}
    with one_thread(where):
        seconds = settle({size: memory[: size // 8].expand(times[size], -1).sum for size in sizes}, where)
    rates = tuple(times[size] * size / seconds[size] for size in sizes)
    return Sweep(where.type, tuple(sizes), rates, caches)


def _sizes(largest: int) -> list[int]:
    """4 KiB, 5.6 KiB, 8 KiB, … in whole cache lines of 128 bytes."""
    sizes = (round(SMALLEST_BYTES * 2 ** (at / 2) / 128) * 128 for at in count())
    return list(takewhile(lambda size: size <= largest, sizes))


@contextlib.contextmanager
def one_thread(device: str | torch.device | None = None) -> Iterator[None]:
    """Inside, a CPU computes on one thread, for L1 and L2 belong to one core; nothing changes on a GPU."""
    threads = torch.get_num_threads()
    if usable(device).type == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def find_steps(sizes: Sequence[int], rates: Sequence[float]) -> tuple[list[int], list[float]]:
    """Where a curve of rates falls from one plateau to the next: the sizes of the steps, and every plateau's rate.

    A larger working set is never read faster, so the curve is first made to fall. A step is a run of falling
    points; it stands where the curve passes the geometric mean of the plateaus at its two ends.

    >>> find_steps([1, 2, 4, 8, 16, 32], [100, 100, 100, 25, 25, 25])
    ([6], [100.0, 25.0])
    """
    falling = _never_rising(rates)
    steps, plateaus, start = [], [], 0
    at = 1
    while at < len(falling):
        first = at - 1
        while at < len(falling) and falling[at] < falling[at - 1] * (1 - FALLING):
            at += 1
        if falling[at - 1] < falling[first] * (1 - STEP):
            steps.append(_crossing(sizes, falling, first, at - 1))
            plateaus.append(median_high(falling[start : first + 1]))
            start = at - 1
        at += 1
    return steps, [*plateaus, median_high(falling[start:])]


def _never_rising(rates: Sequence[float]) -> list[float]:
    """The nearest curve that never rises: neighbours that do are pooled into their mean (isotonic regression)."""
    pools: list[tuple[float, int]] = []
    for rate in map(float, rates):
        pools.append((rate, 1))
        while len(pools) > 1 and pools[-1][0] > pools[-2][0]:
            (last, few), (before, more) = pools.pop(), pools.pop()
            pools.append(((last * few + before * more) / (few + more), few + more))
    return [rate for rate, count in pools for _ in range(count)]


def _crossing(sizes: Sequence[int], rates: Sequence[float], first: int, last: int) -> int:
    """The size at which the curve between two points passes the geometric mean of their rates."""
    wanted = (log(rates[first]) + log(rates[last])) / 2
    for at in range(first, last):
        high, low = log(rates[at]), log(rates[at + 1])
        if high >= wanted >= low and high > low:
            part = (high - wanted) / (high - low)
            return round(exp(log(sizes[at]) + part * (log(sizes[at + 1]) - log(sizes[at]))))
    return sizes[last]


def _name(size: int, caches: dict[str, int]) -> str:
    """The reported cache nearest in size, if within a factor of two; else UNNAMED."""
    near = min(caches, key=lambda name: abs(log(caches[name] / size)), default=None)
    return near if near and 0.5 <= caches[near] / size <= 2 else UNNAMED


def reported(device: torch.device) -> dict[str, int]:
    """What the system says of its caches: bytes by level that one core or, on a GPU, one multiprocessor can use.

    {} where it says nothing, as a sandbox often does.
    """
    if device.type == "cuda":
        return _of_gpu(device)
    return _of_mac() if sys.platform == "darwin" else _of_linux(_LINUX)


def _of_gpu(device: torch.device) -> dict[str, int]:
    properties = torch.cuda.get_device_properties(device)
    named = {"L1": "shared_memory_per_multiprocessor", "L2": "L2_cache_size"}
    sizes = {level: getattr(properties, attribute, 0) for level, attribute in named.items()}
    return {level: size for level, size in sizes.items() if size}


def _of_linux(folder: Path) -> dict[str, int]:
    """From the kernel's description of the first core's data and unified caches."""
    sizes = {}
    for index in sorted(folder.glob("index*")):
        try:
            kind, level, size = ((index / name).read_text().strip() for name in ("type", "level", "size"))
            if kind in ("Data", "Unified"):
                sizes[f"L{int(level)}"] = _bytes(size)
        except (OSError, ValueError):
            continue
    return sizes


def _bytes(text: str) -> int:
    """ "32K" is 32,768."""
    return int(text[:-1]) * _SUFFIX[text[-1]] if text[-1:] in _SUFFIX else int(text)


def _of_mac() -> dict[str, int]:
    sizes = {}
    for level, name in _MACOS.items():
        try:
            done = subprocess.run(["sysctl", "-n", name], capture_output=True, text=True, timeout=5, check=True)
            sizes[level] = int(done.stdout)
        except (OSError, ValueError, subprocess.SubprocessError):
            continue
    return sizes
