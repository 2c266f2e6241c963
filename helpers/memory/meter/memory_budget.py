"""A block of code under a budget: its peak of live tensors, and what was live at that moment."""

from __future__ import annotations

import contextlib
import linecache
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, ClassVar

from ... import PACKAGE
from ...catalog.errors import require_number, require_package
from ..breakdown import Part, format_bytes
from .timeline import AllocationEvent, live_at_peak

if TYPE_CHECKING:
    from torch import nn

LARGEST = 5
MAX_MIB = 2**30


@dataclass
class Report:
    """What a guarded block needs; `peak_bytes` and `largest` are settled when the block is left.

    `unseen_bytes` is what a GPU's allocator counted beyond the tensors that operators return.
    """

    budget_bytes: int
    peak_bytes: int = 0
    unseen_bytes: int = 0
    largest: tuple[LiveTensors, ...] = field(default=(), repr=False)

    @property
    def fits(self) -> bool:
        return self.peak_bytes <= self.budget_bytes

    def __str__(self) -> str:
        over = self.peak_bytes - self.budget_bytes
        verdict = f"{format_bytes(over)} too much" if over > 0 else f"{format_bytes(-over)} to spare"
        peak, budget = format_bytes(self.peak_bytes), format_bytes(self.budget_bytes)
        lines = [f"memory budget: peak {peak}, budget {budget}, {verdict}"]
        if self.largest:
            lines.append("largest live tensors at the peak:")
            lines += [str(row) for row in self.largest]
        if self.unseen_bytes:
            unseen = format_bytes(self.unseen_bytes)
            lines.append(f"  {unseen:>11}  that no operator returned: cuBLAS, temporaries in kernels")
        return "\n".join(lines)


@dataclass(frozen=True)
class LiveTensors:
    """Live tensors of one shape that one line made."""

    size_bytes: int
    count: int
    shape: tuple[int, ...]
    owner: str

    def __str__(self) -> str:
        shape = " × ".join(map(str, self.shape)) or "scalar"
        several = f"{self.count} of " if self.count > 1 else ""
        return f"  {format_bytes(self.size_bytes):>11}  {several + shape:<24} {self.owner}".rstrip()


@contextlib.contextmanager
def memory_budget(mib: float, holding: Iterable[nn.Module] | nn.Module = ()) -> Iterator[Report]:
    """Count what the block allocates, and the parameters and buffers of the models in `holding`.

    >>> with memory_budget(mib=1) as spent:
    ...     kept = torch.zeros(1024)
    >>> spent.peak_bytes, spent.fits
    (4096, True)
    """
    require_package("torch", "a budget of bytes")
    import torch
    from torch import nn

    from .meter import FreshMeter
    from .watch import Watch

    expected, do = "a positive number of MiB", "write memory_budget(mib=120) for 120 MiB"
    mib = require_number("the memory budget", mib, below=MAX_MIB, expected=expected, do=do)
    models = (holding,) if isinstance(holding, nn.Module) else tuple(holding)
    meter, spent = FreshMeter(), Report(round(2**20 * mib))
    for model in models:
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            meter.adopt([tensor], Part.PARAMETERS)
            meter.name(tensor, f"{name} (held)")
    watch = Watch(models[0] if len(models) == 1 else None, None, torch.device("cpu"), meter=meter)
    phase_and_module = meter.where
    meter.where = lambda: _with_line(*phase_and_module())
    held_bytes, card = meter.live_bytes, _Card()
    try:
        with watch.hooked(), meter:
            yield spent
    finally:
        meter.stop()
        spent.peak_bytes = max(meter.peak_bytes, held_bytes + card.rose_bytes())
        spent.unseen_bytes = spent.peak_bytes - meter.peak_bytes
        spent.largest = _largest_at_peak(meter.events)


def _with_line(phase: str, module: str) -> tuple[str, str]:
    """The module at work and the line of the user's code, so that a failure names where to look."""
    return phase, " ".join(filter(None, (module, _users_line())))


def _users_line() -> str:
    """file:line of the innermost frame that is neither torch's, another package's nor this one's; of a notebook's cell
    what stands there, since its file is a temporary one."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        path = frame.f_code.co_filename.replace("\\", "/")
        ours = frame.f_globals.get("__name__", "").startswith(f"{PACKAGE}.memory.")
        if not ours and "site-packages" not in path and "/lib/python" not in path and not path.startswith("<frozen"):
            if "/ipykernel_" in path or path.startswith("<ipython"):
                return linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
            return f"{path.rsplit('/', 1)[-1]}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def _largest_at_peak(events: list[AllocationEvent]) -> tuple[LiveTensors, ...]:
    """What was live at the peak, by line and shape, the largest first."""
    grouped: dict[tuple[tuple[int, ...], str], list[int]] = {}
    for block in live_at_peak(events):
        grouped.setdefault((block.shape, block.owner), []).append(block.size_bytes)
    rows = [LiveTensors(sum(sizes), len(sizes), *key) for key, sizes in grouped.items()]
    return tuple(sorted(rows, key=lambda row: row.size_bytes, reverse=True)[:LARGEST])


class _Card:
    """The CUDA allocator's rise since now. Its peak is one counter for all, so an inner block saves the outer ones'."""

    open: ClassVar[list[_Card]] = []

    def __init__(self) -> None:
        import torch

        self.cuda = torch.cuda
        self.begun = self.highest = 0
        if self._in_use():
            for outer in self.open:
                outer.highest = max(outer.highest, self.cuda.max_memory_allocated())
            self.cuda.reset_peak_memory_stats()
            self.begun = self.cuda.memory_allocated()
        self.open.append(self)

    def rose_bytes(self) -> int:
        """The peak since the block began, less what was allocated then; 0 without a GPU in use."""
        self.open.remove(self)
        return max(self.highest, self.cuda.max_memory_allocated()) - self.begun if self._in_use() else 0

    def _in_use(self) -> bool:
        return self.cuda.is_available() and self.cuda.is_initialized()
