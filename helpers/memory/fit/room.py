"""Whether so many bytes fit a device: fits, tight, or does not fit. The one place that decides it.

    from helpers.memory.fit import Room
    Room(device("h100")).verdict(79 * 2**30)                    # 'tight': less is left than the reserve
    Room(device("h100"), 0).verdict(79 * 2**30)                 # 'fits'
    Room(device("rtx-4090")).holes(20 * 2**30)                  # that holes may take more than the 3.12 GiB to spare

A prediction counts what PyTorch allocates. The context of CUDA, with its kernels and the driver's state, and NCCL's
buffers come on top: for them `reserves` says what is kept. Holes between blocks come on top as well: `holes` says how
many bytes they can take.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ...catalog.devices import Device
from ...catalog.errors import require_whole
from ...catalog.hardware import cuda_of
from ..breakdown import TextEnum, format_bytes
from .reserves import PYTORCH, Reserve, reserve

# What a step of training needed beside its tensors so as to run, in percent of them, at most: the smallest capacity
# under which its trace does not fail, over forty steps (tests/memory/fit/test_holes.py).
HOLES_PERCENT = 38  # in PyTorch's default segments
EXPANDABLE_PERCENT = 5  # with expandable_segments:True


class Verdict(TextEnum):
    """Of a need on a device. `TIGHT` may run or fail: the bytes are there, and the reserve is not."""

    FITS = "fits"
    TIGHT = "tight"
    DOES_NOT_FIT = "does not fit"


@dataclass(frozen=True)
class Room:
    """A device's memory, of which `kept_bytes` are kept for what PyTorch does not count: of `ranks` of an engine.

    None keeps what `reserve` says of the card, the engine and the ranks.
    """

    card: Device
    kept_bytes: int | None = None
    ranks: int = 1
    engine: str = PYTORCH

    def __post_init__(self) -> None:
        if self.kept_bytes is not None:
            do = "pass 0 to keep nothing, or what nvidia-smi shows beside PyTorch's memory"
            require_whole("the reserve", self.kept_bytes, 0, unit="bytes", do=do)

    @cached_property
    def reserve(self) -> Reserve:
        return reserve(self.card, self.engine, self.ranks)

    @property
    def reserve_bytes(self) -> int:
        return self.reserve.size_bytes if self.kept_bytes is None else self.kept_bytes

    @property
    def for_tensors_bytes(self) -> int:
        """What a run may allocate and fit."""
        return max(0, self.card.capacity_bytes - self.reserve_bytes)

    @property
    def kept_told(self) -> str:
        """How much is kept and for what: up to so much, unless somebody said how much."""
        most = "up to " if self.kept_bytes is None else ""
        return f"{most}{format_bytes(self.reserve_bytes)}"

    def verdict(self, need_bytes: int) -> Verdict:
        if need_bytes > self.card.capacity_bytes:
            return Verdict.DOES_NOT_FIT
        return Verdict.FITS if need_bytes + self.reserve_bytes <= self.card.capacity_bytes else Verdict.TIGHT

    def sentence(self, need_bytes: int, for_what: str = "") -> str:
        """The verdict with the bytes to spare (`for_what`), that are left, or that are too many.

        Both to spare and too many are counted beside the reserve: a run that saves what is too much fits.

        >>> from helpers.catalog import device
        >>> h100 = Room(device("h100"))
        >>> print(h100.sentence(79 * 2**30)[:73])
        Tight on the NVIDIA H100 SXM 80 GB: 225.28 MiB left, and up to 794.00 MiB
        >>> print(h100.sentence(2**37).partition(" for")[0])
        Does not fit the NVIDIA H100 SXM 80 GB: 49.56 GiB too much, beside up to 794.00 MiB kept
        """
        left = self.card.capacity_bytes - need_bytes
        kept, who = self.kept_told, self.reserve.told
        spare, beside = left - self.reserve_bytes, f", beside {kept} kept for {who}" if self.reserve_bytes else ""
        match self.verdict(need_bytes):
            case Verdict.FITS:
                return f"Fits the {self.card.title} with {format_bytes(spare)} to spare{for_what}{beside}."
            case Verdict.TIGHT:
                return f"Tight on the {self.card.title}: {format_bytes(left)} left, and {kept} are kept for {who}."
        return f"Does not fit the {self.card.title}: {format_bytes(-spare)} too much{beside}."

    def leaves_for_holes(self, need_bytes: int) -> bool:
        """Whether a step of training runs in PyTorch's default segments, too, however its blocks fall."""
        return cuda_of(self.card) is None or need_bytes * (100 + HOLES_PERCENT) <= self.for_tensors_bytes * 100

    def is_near(self, need_bytes: int) -> bool:
        """Whether a closed form cannot decide about a step: holes do, or the percent that it may be off by.

        >>> from helpers.catalog import device
        >>> [Room(device("rtx-4090")).is_near(gib * 2**30) for gib in (15, 17, 23, 24)]
        [False, True, True, False]
        """
        return not self.leaves_for_holes(need_bytes) and 100 * need_bytes <= 101 * self.for_tensors_bytes

    def holes(self, need_bytes: int) -> tuple[str, ...]:
        """The sentence under a step of training whose tensors fit, but perhaps not with the holes beside them."""
        if self.verdict(need_bytes) is Verdict.DOES_NOT_FIT or self.leaves_for_holes(need_bytes):
            return ()
        return (
            "Set expandable_segments:True for it (chapter 03): in PyTorch's default segments holes can take up to "
            f"{HOLES_PERCENT} % of these bytes again. `workbook trace train` says whether they do.",
        )
