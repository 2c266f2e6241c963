"""A meter of what a block makes itself: what was there before is not counted when a view of it comes by."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils._pytree import tree_iter

from .meter import Meter, holds_no_memory


class FreshMeter(Meter):
    """A Meter that leaves out storages which reach an operator from outside and were not adopted.

    The plain one counts every storage that an operator returns, and a transposed weight is the weight's storage.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.foreign: dict[int, weakref.finalize] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None) -> Any:
        if holds_no_memory(types):
            return NotImplemented
        for value in tree_iter((args, kwargs)):
            if isinstance(value, torch.Tensor):
                self._leave_out(value.untyped_storage())
        return super().__torch_dispatch__(func, types, args, kwargs)

    def stop(self) -> None:
        super().stop()
        for finalizer in self.foreign.values():
            finalizer.detach()
        self.foreign.clear()

    def _leave_out(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key not in self.live and key not in self.foreign and storage.nbytes():
            # its address may serve a new storage once it is freed, and that one counts
            self.foreign[key] = weakref.finalize(storage, self.foreign.pop, key)

    def _see(self, tensor: torch.Tensor, category: str = "workspace") -> None:
        if tensor.untyped_storage()._cdata not in self.foreign:
            super()._see(tensor, category)
