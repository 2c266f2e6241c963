"""Whether so many bytes fit a device: fits, tight, or does not fit. The one place that decides it.

    from helpers.memory.fit import Room
    Room(device("h100")).verdict(79 * 2**30)                    # 'tight': less is left than the reserve
    Room(device("h100"), reserve_bytes=0).verdict(79 * 2**30)   # 'fits'
    Room(device("rtx-4090")).holes(20 * 2**30)                  # that holes may take more than the 2.33 GiB to spare

A prediction counts what PyTorch allocates. The context of CUDA, with its kernels and the driver's state, comes on top:
for it a reserve is kept. Holes between blocks come on top as well: `holes` says how many bytes they can take.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...catalog.devices import Device
from ...catalog.errors import require_whole
from ...catalog.hardware import context_of, cuda_of
from ..breakdown import TextEnum, format_bytes

# The largest context that has been published: 1,343 MiB on a V100 with CUDA 11.2. From CUDA 11.7 on kernels are loaded
# when they are first used (pytorch/pytorch, issue 107667): 105 to 141 MiB on a T4 with CUDA 12.8 and 13.0. vLLM logged
# 1.79 GiB outside of PyTorch on an H100 (vllm-project/vllm, pull request 10511), its CUDA graphs included.
RESERVE_MIB = 1343
RESERVE_BYTES = RESERVE_MIB * 2**20

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
    """A device's memory, of which `reserve_bytes` are kept for what PyTorch does not count."""

    card: Device
    reserve_bytes: int = RESERVE_BYTES

    def __post_init__(self) -> None:
        do = "pass 0 to keep nothing, or what nvidia-smi shows beside PyTorch's memory"
        require_whole("the reserve", self.reserve_bytes, 0, unit="bytes", do=do)

    @property
    def for_tensors_bytes(self) -> int:
        """What a run may allocate and fit."""
        return max(0, self.card.capacity_bytes - self.reserve_bytes)

    def verdict(self, need_bytes: int) -> Verdict:
        if need_bytes > self.card.capacity_bytes:
            return Verdict.DOES_NOT_FIT
        return Verdict.FITS if need_bytes + self.reserve_bytes <= self.card.capacity_bytes else Verdict.TIGHT

    def sentence(self, need_bytes: int, for_what: str = "") -> str:
        """The verdict with the bytes to spare (`for_what`), that are left, or that are too many.

        Both to spare and too many are counted beside the reserve: a run that saves what is too much fits.

        >>> from helpers.catalog import device
        >>> h100 = Room(device("h100"))
        >>> print(h100.sentence(79 * 2**30)[:71])
        Tight on the NVIDIA H100 SXM 80 GB: 225.28 MiB left, and 1.31 GiB are k
        >>> print(h100.sentence(2**37).partition(" for")[0])
        Does not fit the NVIDIA H100 SXM 80 GB: 50.09 GiB too much, beside 1.31 GiB kept
        """
        left = self.card.capacity_bytes - need_bytes
        kept, who = format_bytes(self.reserve_bytes), context_of(self.card)
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
        >>> [Room(device("rtx-4090")).is_near(gib * 2**30) for gib in (15, 17, 22, 23)]
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
