"""A meter on storages: every allocation that PyTorch's operators return, as it happens.

The meter is a dispatch mode, so it runs the reader's own code unchanged on any device. It looks at the outputs of
each operator, counts a storage once however many views it has, rounds it as the CUDA caching allocator does, and
hears from a finalizer when the storage is freed. What an operator allocates and frees within itself stays hidden;
on a GPU the allocator's own counters show that remainder.

A mode changes one thing by being there: autograd adds a second gradient to the first in place, but makes a third
tensor while any mode watches. The meter counts what happens without it.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

from ...catalog.errors import WorkbookError
from ...catalog.sealed import sealed
from ..breakdown import Part, rounded
from .gradient_sum import ADD, GradientSum, adds_gradients
from .leaves import leaves
from .timeline import AllocationEvent, StorageLifetime

WRAPPERS = frozenset({"AsyncCollectiveTensor", "DTensor", "Float8TrainingTensor"})
STAND_INS = frozenset({"FakeTensor", "FunctionalTensor"})  # they wrap no tensor of memory: they are counted themselves
LIFT = torch.ops.aten.lift_fresh.default  # by it modes hear of a tensor that was made of Python's or NumPy's data
LIBRARY = "library"  # the phase of blocks that belong to no forward: nothing saved them
Where = Callable[[], tuple[str, str]]


def _registry() -> tuple[Callable[..., None], ...]:
    """Functions that open a meter, close it, and tell all open ones of a storage or a file; and all that there are of
    a storage that is gone. No other way leads to one: who could reach the meter of the step that it is part of would
    write its own peak."""
    meters: list[Meter] = []
    hearing: weakref.WeakSet[Meter] = weakref.WeakSet()

    def opened(meter: Meter) -> None:
        meters.append(meter)

    def closed(meter: Meter) -> None:
        meters.remove(meter)

    def resized(storage: torch.UntypedStorage) -> None:
        for meter in meters:
            meter._resized(storage)

    def stored(path: str | Path) -> None:
        for meter in meters:
            meter.stored(path)

    def died(key: int, gone: weakref.ref) -> None:
        """A storage's finalizer has run: nothing is free while the storage is there, whoever calls it."""
        for meter in [*hearing] if gone() is None else ():
            meter._died(key)

    return tuple(sealed(one) for one in (opened, closed, resized, stored, died, hearing.add, hearing.discard))


_opened, _closed, _tell_resized, tell_stored, _tell_died, _hears, _hears_no_more = _registry()
_resize = torch.UntypedStorage.resize_


@functools.wraps(_resize)
def _watched(storage: torch.UntypedStorage, size: int) -> object:
    """FSDP empties and refills storages with `resize_`, which is no operator: open meters hear of it.

    It stands in for PyTorch's from the first import on, so that whether one is open shows nowhere.
    """
    result = _resize(storage, size)
    _tell_resized(storage)
    return result


torch.UntypedStorage.resize_ = _watched  # type: ignore[method-assign, assignment]


class Meter(TorchDispatchMode):
    """Counts storages while it is active.

    `limit_bytes` makes it a wall: the allocation that would pass it raises `torch.OutOfMemoryError`.
    `where` names the phase and the owning module of an allocation; it is asked once per new storage.
    """

    def __init__(self, limit_bytes: int | None = None, where: Where = lambda: ("", "")) -> None:
        super().__init__()
        self.limit_bytes, self.where = limit_bytes, where
        self.live: dict[int, StorageLifetime] = {}  # by the storage's address in C++, valid while it lives
        self.events: list[AllocationEvent] = []
        self.live_bytes = self.peak_bytes = 0
        self._finalizers: dict[int, weakref.finalize] = {}
        self._categories: dict[int, str] = {}  # of storages without bytes, should they be refilled
        self._sum: GradientSum | None = None
        self.stepping = False  # whether an optimizer steps, which inside a backward is no phase of its own
        _hears(self)  # also of what was adopted before it is entered

    def call(self, func: Any, args: tuple, kwargs: dict) -> Any:
        """Run an operator; what it returns is counted."""
        return func(*args, **kwargs)

    def adopt(self, tensors: Iterable[torch.Tensor], category: str) -> None:
        """Count tensors that were alive before the meter started, as `category`."""
        for tensor in tensors:
            self._see(local(tensor), category)

    def relabel(self, tensors: Iterable[torch.Tensor], category: str) -> None:
        """Settle the category of blocks that are alive now."""
        for block in filter(None, map(self.block_of, tensors)):
            block.category = category

    def name(self, tensor: torch.Tensor, owner: str) -> None:
        """Settle who owns a block that is alive now."""
        if block := self.block_of(tensor):
            block.owner = owner

    def block_of(self, tensor: torch.Tensor) -> StorageLifetime | None:
        return self.live.get(local(tensor).untyped_storage()._cdata)

    def place_of(self, storage: torch.UntypedStorage) -> str:
        """Where a storage lies, for meters that tell places apart."""
        return ""

    def hold(self, size_bytes: int, owner: str) -> StorageLifetime:
        """Count a block that no operator returns; it stays."""
        block = StorageLifetime(rounded(size_bytes), LIBRARY, owner, ())
        self._allocated(block)
        return block

    def stored(self, path: str | Path) -> None:
        """The file at `path` has been written, or deleted: for meters that count files."""

    @contextlib.contextmanager
    def held(self, *sizes_bytes: int) -> Iterator[None]:
        """Count blocks that an operator makes and frees within itself, alive while this is open."""
        phase, owner = self.where()
        blocks = [self.hold(size_bytes, owner) for size_bytes in sizes_bytes]
        try:
            yield
        finally:
            for block in blocks:
                self.live_bytes -= block.size_bytes
                self.events.append(AllocationEvent(block, -1, phase))

    def __enter__(self) -> Meter:
        _opened(self)
        return super().__enter__()

    def __exit__(self, *problem: object) -> None:
        _closed(self)
        last = _get_current_dispatch_mode()
        super().__exit__(*problem)
        if last is not self and problem[0] is None:
            what = f"{type(last).__name__} is the last of PyTorch's modes where a meter is closed"
            raise WorkbookError(what, "the meter, as it was opened", "leave each mode that you enter, and no other")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None) -> Any:
        if wraps_others(types):
            return NotImplemented
        peak_bytes = self.peak_bytes
        result = self.call(func, args, kwargs or {})
        for value in leaves((args, kwargs) if result is None else result):  # `_foreach_copy_` returns nothing
            if isinstance(value, torch.Tensor) and not holds_no_memory((type(value),)):
                self._see(value)
        if func is ADD and adds_gradients(*args):
            made, first = (tensor.untyped_storage()._cdata for tensor in (result, args[0]))
            if made in self.live and self.live[made] is self.events[-1].block:
                self._sum = GradientSum(made, first, len(self.events), peak_bytes)
        return result

    def stop(self) -> None:
        """Forget all storages; later frees no longer reach this meter."""
        for finalizer in self._finalizers.values():
            finalizer.detach()
        self._finalizers.clear()
        _hears_no_more(self)

    def _see(self, tensor: torch.Tensor, category: str = Part.WORKSPACE) -> None:
        storage = tensor.untyped_storage()
        if (block := self.live.get(storage._cdata)) is not None:
            if block.size_bytes != rounded(storage.nbytes()):  # grown by `resize_`, or as an `out=`
                self._resized(storage)
            return
        if is_meta(tensor):
            return
        if storage.nbytes():
            self._count(storage, tuple(tensor.shape), category)
        elif category != Part.WORKSPACE:
            self._categories[storage._cdata] = category

    def _count(self, storage: torch.UntypedStorage, shape: tuple[int, ...], category: str) -> None:
        size_bytes, place = rounded(storage.nbytes()), self.place_of(storage)
        self._require_room(size_bytes, place)
        phase, owner = self._where_now()
        block = StorageLifetime(size_bytes, phase, owner, shape, category, place)
        self.live[storage._cdata] = block
        self._allocated(block)
        self._finalizers[storage._cdata] = _finalizer(storage)

    def _require_room(self, size_bytes: int, place: str) -> None:
        if self.limit_bytes is not None and self.live_bytes + size_bytes > self.limit_bytes:
            raise out_of_memory(size_bytes, self.live_bytes, self.limit_bytes)

    def _resized(self, storage: torch.UntypedStorage) -> None:
        """A storage of another size: the old block is gone, and a new one is of the same category."""
        key = storage._cdata
        if key in self.live:
            self._categories[key] = self.live[key].category
            self._freed(key)
        if storage.nbytes():
            self._count(storage, (), self._categories.get(key, Part.WORKSPACE))

    def _allocated(self, block: StorageLifetime) -> None:
        self.live_bytes += block.size_bytes
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        self.events.append(AllocationEvent(block, +1, self._where_now()[0]))

    def _died(self, key: int) -> None:
        if key in self._finalizers:
            self._freed(key)

    def _freed(self, key: int) -> None:
        block = self.live.pop(key)
        finalizer = self._finalizers.pop(key, None)
        if finalizer is not None:
            finalizer.detach()  # its storage may live on without bytes
        self.live_bytes -= block.size_bytes
        if self._sum is not None and (self._sum.first, self._sum.events) == (key, len(self.events)):
            self._add_in_place(block, self._sum)
        else:
            self.events.append(AllocationEvent(block, -1, self._where_now()[0]))

    def _where_now(self) -> tuple[str, str]:
        """What `where` says, on a line apart from those that make what the meter keeps: `Beside` leaves those out."""
        return self.where()

    def _add_in_place(self, block: StorageLifetime, added: GradientSum) -> None:
        """The first of two gradients had no other owner: their sum lies in its `block`, and has none of its own."""
        apart = self.events.pop().block
        self.live[added.made] = block
        self.live_bytes += block.size_bytes - apart.size_bytes
        self.peak_bytes = max(added.peak_bytes, self.live_bytes)


class FreshMeter(Meter):
    """A Meter of what a block makes itself: it leaves out storages that come from outside and were not adopted.

    The plain one counts every storage that an operator returns, and a transposed weight is the weight's storage.
    What `torch.tensor` and `torch.from_numpy` make of data that is no tensor was made here, a number alone left out.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.foreign: dict[int, tuple[weakref.finalize, int]] = {}  # with the bytes that each had

    def __torch_dispatch__(self, func, types, args=(), kwargs=None) -> Any:
        if wraps_others(types):
            return NotImplemented
        made = func is LIFT and args[0].dim() > 0  # a number alone is Python's, as an optimizer's count of steps is
        for value in () if made else leaves((args, kwargs)):
            if isinstance(value, torch.Tensor):
                self._leave_out(value.untyped_storage())
        return super().__torch_dispatch__(func, types, args, kwargs)

    def _died(self, key: int) -> None:
        super()._died(key)
        self.foreign.pop(key, None)

    def stop(self) -> None:
        super().stop()
        for finalizer, _ in self.foreign.values():
            finalizer.detach()
        self.foreign.clear()

    def _leave_out(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key not in self.live and key not in self.foreign and storage.nbytes():
            # its address may serve a new storage once it is freed, and that one counts
            self.foreign[key] = _finalizer(storage), storage.nbytes()

    def _see(self, tensor: torch.Tensor, category: str = Part.WORKSPACE) -> None:
        storage = tensor.untyped_storage()
        if storage._cdata in self.foreign:
            finalizer, before_bytes = self.foreign[storage._cdata]
            if storage.nbytes() <= before_bytes:
                return
            finalizer.detach()
            del self.foreign[storage._cdata]  # grown here: PyTorch made a new block for all of it
        super()._see(tensor, category)


def _finalizer(storage: torch.UntypedStorage) -> weakref.finalize:
    """Tells meters that a storage is gone. `weakref` lists what it calls, so that leads to no meter."""
    return weakref.finalize(storage, _tell_died, storage._cdata, weakref.ref(storage))


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a DTensor, which claims the bytes of all ranks and holds none; any other tensor as it is.

    Of what a collective has not yet filled, the tensor that it fills.
    """
    inside = {"DTensor": "_local_tensor", "AsyncCollectiveTensor": "elem"}.get(type(tensor).__name__)
    return local(getattr(tensor, inside)) if inside else tensor


def is_meta(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a shape alone; a fake one stands for one on a device of its own."""
    device = getattr(tensor, "fake_device", None)  # a fake one's `device` is an operator, and slow
    return (tensor.device if device is None else device).type == "meta"


def holds_no_memory(types: Iterable[type]) -> bool:
    """Whether an operator is for tensors that only wrap others, DTensors or torchao's in FP8.

    They run it on the plain tensors inside, which then come by a mode too.
    """
    return any(kind.__name__ in WRAPPERS for kind in types)


def wraps_others(types: Iterable[type[torch.Tensor]]) -> bool:
    """Whether an operator is for tensors with a dispatch of their own, whoever wrote it.

    A mode that answers NotImplemented stays active while they run it, and sees what happens inside.
    """
    own = (kind for kind in types if kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__)
    return any(kind.__name__ not in STAND_INS for kind in own)


def out_of_memory(request_bytes: int, live_bytes: int, limit_bytes: int) -> torch.OutOfMemoryError:
    """The error a card of `limit_bytes` would raise, in the words PyTorch uses."""
    asked, cap, free, live = map(_size, (request_bytes, limit_bytes, limit_bytes - live_bytes, live_bytes))
    return torch.OutOfMemoryError(
        f"capped: out of memory. Tried to allocate {asked}. The cap is {cap}, "
        f"of which {free} is free; {live} is allocated."
    )


def _size(size_bytes: int) -> str:
    return f"{size_bytes / 2**10:.2f} KiB" if 0 < size_bytes < 2**20 else f"{size_bytes / 2**20:.2f} MiB"
