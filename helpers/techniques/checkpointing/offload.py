"""Activations kept in host memory between forward and backward, by hooks on saved tensors: naive, then real.

    with Offload(keep=model.parameters()) as offload:
        loss = model(x).sum()
    loss.backward()                  # each tensor comes back when the backward pass asks for it
    offload.bytes_out, offload.bytes_back, offload.bytes_left

A host copy is hidden from `Meter`, which counts the device; so a CPU can play the device and show what leaves it.
A `PlacesMeter` counts it for the host.
At work: `torch.autograd.graph.save_on_cpu(pin_memory=True)`, which does what `NaiveOffload` does.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import _get_current_dispatch_mode, _pop_mode_temporarily

from ...memory.meter.meter import Meter
from ...memory.meter.places import Place, PlacesMeter, at

SMALL_BYTES = 1024  # below this a transfer costs more than the memory is worth; torchtune's limit as well


class NaiveOffload(saved_tensors_hooks):
    """Each saved tensor goes out by itself, parameters too; what three operators saved goes, and comes back, thrice.

    It can raise the peak: what comes back stands beside what never had to leave, as a copy of the largest weight does.
    """

    def __init__(self) -> None:
        self.bytes_out = self.bytes_back = self.bytes_left = 0
        super().__init__(self.pack, self.unpack)

    def pack(self, tensor: Tensor) -> Any:
        self.bytes_out += tensor.nbytes
        return tensor.device, on_host(tensor)

    def unpack(self, packed: Any) -> Tensor:
        device, host = packed
        self.bytes_back += host.nbytes
        return on_device(host, device)


@dataclass(eq=False)
class Moved:
    """One storage in host memory, how many operators saved it or a view of it, and how many have asked for it."""

    host: Tensor
    device: torch.device
    saved: int = 0
    asked: int = 0

    @property
    def done(self) -> bool:
        """Whether everybody has had it; in a second backward everybody asks again."""
        return self.asked > 0 and self.asked % self.saved == 0


class Offload(NaiveOffload):
    """Each storage goes out once, whoever saved it and however many views it has.

    Back on the device is one more than the operators at work hold: the last one asked for, until all who saved it have
    had it or another is asked for. What stays: the storages in `keep` (parameters and buffers are on the device
    anyway), and those below `small_bytes`, counted in `bytes_left`. Use it around forward, for any number of steps.
    """

    def __init__(self, keep: Iterable[Tensor] = (), small_bytes: int = SMALL_BYTES) -> None:
        self.small_bytes = small_bytes
        self._keep = {tensor.untyped_storage()._cdata for tensor in keep}
        self._known: dict[int, weakref.ref[Moved] | None] = {}  # storages alive on the device: what became of each
        self._last: tuple[Moved, Tensor] | None = None
        super().__init__()

    def pack(self, tensor: Tensor) -> Any:
        storage = tensor.untyped_storage()
        key = storage._cdata
        small = storage.nbytes() < self.small_bytes
        if key in self._keep:
            return tensor
        if key not in self._known:
            weakref.finalize(storage, self._known.pop, key, None)  # its address will be another's
            self._known[key] = None
            self.bytes_left += storage.nbytes() if small else 0
        if small:
            return tensor
        known = self._known[key]
        moved = known() if known else None
        if moved is None:
            moved = Moved(self.send(_whole(tensor)), tensor.device)
            self.sent(moved)
            self._known[key] = weakref.ref(moved)  # the graph holds it, and frees it
            self.bytes_out += storage.nbytes()
        moved.saved += 1
        return moved, tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset()

    def unpack(self, packed: Any) -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        moved, dtype, *view = packed
        if self._last is None or self._last[0] is not moved:
            self._last = None  # freed before the next is made
            self._last = moved, self.bring(moved)
            self.bytes_back += moved.host.nbytes
        whole = self._last[1]
        moved.asked += 1
        if moved.done:
            self._last = None
        return whole.view(dtype).as_strided(*view)

    def send(self, whole: Tensor) -> Tensor:
        """The host's copy of a storage."""
        return on_host(whole)

    def sent(self, moved: Moved) -> None:
        """Called for each storage that has gone out."""

    def bring(self, moved: Moved) -> Tensor:
        """The device's copy of a storage that went out."""
        return on_device(moved.host, moved.device)


def on_host(tensor: Tensor) -> Tensor:
    """A copy in host memory, pinned if it comes from a GPU, so that the transfer need not wait for the CPU."""
    from_gpu = tensor.device.type == "cuda"
    with _out_of_sight():
        host = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=from_gpu)
        return host.copy_(tensor.detach(), non_blocking=from_gpu)


def on_device(host: Tensor, device: torch.device) -> Tensor:
    """A copy of `host` on `device`, even where that is the CPU."""
    return torch.empty(host.shape, dtype=host.dtype, device=device).copy_(host, non_blocking=device.type == "cuda")


def _whole(tensor: Tensor) -> Tensor:
    """All of the storage of which `tensor` is a view, flat."""
    values = tensor.untyped_storage().nbytes() // tensor.element_size()
    return tensor.detach().as_strided((values,), (1,), 0)


@contextlib.contextmanager
def _out_of_sight() -> Iterator[None]:
    """Host memory is not the device's: a meter without an account for the host does not see what is allocated here."""
    mode = _get_current_dispatch_mode()
    hidden = isinstance(mode, Meter) and not isinstance(mode, PlacesMeter)
    with _pop_mode_temporarily() if hidden else at(Place.HOST):
        yield
