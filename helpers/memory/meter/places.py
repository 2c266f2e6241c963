"""A meter that tells places apart: what leaves the device is a bill in host memory, in file pages or on a disk.

    with PlacesMeter() as meter:
        here = torch.empty(1_000_000)                       # the device, which a CPU plays where there is no GPU
        with at(Place.HOST):
            there = torch.empty(1_000_000).copy_(here)      # host memory
    meter.bytes_in(Place.DEVICE), meter.bytes_in(Place.HOST)       # (4000256, 4000256)

With a GPU the storage says where it lies: CUDA's are on the device, the others on the host unless `at` says more.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from enum import StrEnum
from pathlib import Path

import torch

from ..breakdown import rounded
from .meter import LIBRARY, Meter, tell_stored
from .timeline import AllocationEvent, StorageLifetime


class Place(StrEnum):
    """Where bytes lie. File pages are memory that the system can take back: it has the file to read them from."""

    DEVICE = "device"
    HOST = "host"
    PAGES = "file pages"
    DISK = "disk"


_HERE: ContextVar[Place | None] = ContextVar("place", default=None)


@contextlib.contextmanager
def at(place: Place) -> Iterator[None]:
    """What this thread allocates on the CPU while this is open lies in `place`. Without a meter it changes nothing."""
    token = _HERE.set(place)
    try:
        yield
    finally:
        _HERE.reset(token)


def on_disk(path: str | Path) -> None:
    """Tell open meters that the file at `path` has been written, or deleted."""
    tell_stored(path)


class PlacesMeter(Meter):
    """A Meter with an account for each `Place`; `live_bytes` and `peak_bytes` are those of all places together.

    `limits` are walls, as {Place.HOST: 2**30}: the allocation that would pass one raises `torch.OutOfMemoryError`.
    Storages are rounded to 512 bytes as on the device; files are counted as long as they are.
    """

    def __init__(self, limits: Mapping[Place, int] | None = None) -> None:
        super().__init__()
        self.limits = dict(limits or {})
        self._files: dict[str, StorageLifetime] = {}

    def bytes_in(self, place: Place) -> int:
        """Bytes that lie in `place` now."""
        return self._now()[place]

    def peak_in(self, place: Place) -> int:
        """The most bytes that lay in `place` at once."""
        return self.peaks()[place]

    def peaks(self) -> dict[Place, int]:
        """`peak_in` of every place."""
        now: Counter[str] = Counter()
        most = dict.fromkeys(Place, 0)
        for event in self.events:
            place = Place(event.block.place)
            now[place] += event.sign * event.block.size_bytes
            most[place] = max(most[place], now[place])
        return most

    def adopt(self, tensors: Iterable[torch.Tensor], category: str, place: Place | None = None) -> None:
        """Count tensors that were alive before the meter started, as `category`, in `place`."""
        with at(place) if place else contextlib.nullcontext():
            super().adopt(tensors, category)

    def stored(self, path: str | Path) -> None:
        """Count the file at `path` with the size that it has now; 0 where there is none any more."""
        key = str(Path(path).resolve())
        if old := self._files.pop(key, None):
            self.live_bytes -= old.size_bytes
            self.events.append(AllocationEvent(old, -1, old.phase))
        if Path(key).exists():
            block = StorageLifetime(Path(key).stat().st_size, LIBRARY, Path(key).name, (), place=Place.DISK)
            self._files[key] = block
            self._allocated(block)

    def place_of(self, storage: torch.UntypedStorage) -> str:
        if storage.device.type == "cuda":
            return Place.DEVICE
        return _HERE.get() or (Place.HOST if torch.cuda.is_available() else Place.DEVICE)

    def _now(self) -> Counter[str]:
        now: Counter[str] = Counter()
        for block in (*self.live.values(), *self._files.values()):
            now[block.place] += block.size_bytes
        return now

    def _require_room(self, size_bytes: int, place: str) -> None:
        limit = self.limits.get(Place(place))
        if limit is not None and (used := self._now()[place]) + size_bytes > limit:
            raise place_is_full(Place(place), size_bytes, used, limit)


def place_is_full(place: Place, request_bytes: int, used_bytes: int, limit_bytes: int) -> torch.OutOfMemoryError:
    """The error of a place with a limit; a device's is in PyTorch's words."""
    mib = 2**20
    return torch.OutOfMemoryError(
        f"{place}: out of memory. Tried to allocate {request_bytes / mib:.2f} MiB. Its limit is "
        f"{limit_bytes / mib:.2f} MiB, of which {(limit_bytes - used_bytes) / mib:.2f} MiB is free."
    )


def pinned_bytes(size_bytes: int) -> int:
    """What PyTorch's allocator of pinned memory takes for one tensor: the next power of two, and nothing for nothing.

    CachingHostAllocatorImpl::allocate in aten/src/ATen/core/CachingHostAllocator.h, by default: it does not split a
    block, and keeps it for the next tensor. `pinned_max_round_threshold_mb` in PYTORCH_ALLOC_CONF leaves larger ones as
    they are, and `torch.accelerator.empty_host_cache()` gives back what is in no tensor, where PyTorch is new enough.

    >>> pinned_bytes(43 * 2**20) // 2**20
    64
    """
    return 0 if size_bytes == 0 else 1 << (size_bytes - 1).bit_length()


def account_bytes(sizes_bytes: Iterable[int]) -> int:
    """What a PlacesMeter counts for storages of these sizes."""
    return sum(map(rounded, sizes_bytes))
