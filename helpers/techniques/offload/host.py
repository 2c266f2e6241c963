"""Tensors in host memory: one flat block for a layer, pinned where a GPU will read it, and a pool of such blocks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ...catalog.errors import WorkbookError, require_whole
from ...memory.meter.places import Place, at

ALIGN_BYTES = 16  # the widest that a GPU loads in one instruction; every tensor of a layer begins at a multiple


@dataclass(frozen=True)
class HostLayout:
    """Where each tensor of a group lies in one flat block of bytes: name to (offset in bytes, shape, dtype)."""

    places: Mapping[str, tuple[int, torch.Size, torch.dtype]]
    size_bytes: int

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> HostLayout:
        """Their order; each begins at a multiple of ALIGN_BYTES.

        >>> Layout.of({"weight": torch.empty(4, 3), "bias": torch.empty(4)}).size_bytes
        64
        """
        places, end = {}, 0
        for name, tensor in tensors.items():
            places[name] = (end, tensor.shape, tensor.dtype)
            end += -(-tensor.nbytes // ALIGN_BYTES) * ALIGN_BYTES
        return cls(places, end)

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """The tensors as views of `flat`, uint8 of `size_bytes` or more."""
        return {
            name: flat[at_byte : at_byte + shape.numel() * dtype.itemsize].view(dtype).view(shape)
            for name, (at_byte, shape, dtype) in self.places.items()
        }


def host_block(size_bytes: int, pinned: bool) -> Tensor:
    """`size_bytes` of host memory, uint8; WorkbookError where the host has no such room."""
    require_whole("size_bytes", size_bytes, 0, unit="bytes", do="pass the bytes of what it shall hold")
    with at(Place.HOST):
        try:
            return torch.empty(size_bytes, dtype=torch.uint8, device="cpu", pin_memory=pinned)
        except (RuntimeError, MemoryError) as problem:
            if not _is_full(problem):
                raise
            raise no_room(size_bytes, problem) from None


def packed(tensors: Mapping[str, Tensor], pinned: bool) -> tuple[HostLayout, Tensor]:
    """Copies of `tensors` in one block of host memory, and where each of them lies."""
    layout = HostLayout.of(tensors)
    flat = host_block(layout.size_bytes, pinned)
    with torch.no_grad():
        for name, view in layout.views(flat).items():
            view.copy_(tensors[name])
    return layout, flat


class HostBuffers:
    """`count` blocks of host memory that are allocated once and lent again and again: pinning a block takes long.

    (The system must find, clear and lock its pages, which takes longer than to copy as many bytes.) WorkbookError where
    all are out, for to wait for one of them is the caller's decision.
    """

    def __init__(self, count: int, size_bytes: int, pinned: bool) -> None:
        require_whole("count", count, do="two are enough for one copy on its way and one being filled")
        self.count, self.size_bytes = count, size_bytes
        self._free = [host_block(size_bytes, pinned) for _ in range(count)]

    def take(self) -> Tensor:
        if not self._free:
            what = f"all {self.count} buffers of {self.size_bytes:,} bytes are in use"
            raise WorkbookError(what, "a buffer that has come back", "give() one back first, or make more")
        return self._free.pop()

    def give(self, buffer: Tensor) -> None:
        if len(self._free) == self.count or any(buffer.data_ptr() == one.data_ptr() for one in self._free):
            raise WorkbookError("a buffer comes back that is not out", "each taken buffer once", "keep count of them")
        self._free.append(buffer)


def no_room(size_bytes: int, problem: BaseException) -> WorkbookError:
    reason = str(problem).splitlines()[0]
    do = "offload less of it (a host needs 16 bytes for each parameter that it optimizes), or take a disk as the tier"
    return WorkbookError(
        f"the host has no room for {size_bytes:,} bytes: {reason}", "as many bytes free on the host", do
    )


def _is_full(problem: BaseException) -> bool:
    text = str(problem).lower()
    return isinstance(problem, MemoryError | torch.OutOfMemoryError) or any(
        words in text for words in ("out of memory", "not enough memory", "allocate memory", "memory allocation")
    )
