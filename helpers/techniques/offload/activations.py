"""Activations on the host between forward and backward, each fetched before backward asks for it.

    with PrefetchingOffload(streams, keep=model.parameters()) as offload:
        loss = model(x).sum()
    loss.backward()

`checkpointing.Offload` brings a tensor back when an operator asks, and the operator waits for the link. Backward asks
in about the reverse order of forward: so while one tensor is used, this one brings the tensor that was saved before it.
"""

from __future__ import annotations

from collections.abc import Iterable
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor

from ...catalog.errors import require_whole
from ..checkpointing.offload import SMALL_BYTES, Moved, Offload
from .host import host_block
from .optimizer import viewed
from .streams import Lane, StreamEvent, Streams


class PrefetchingOffload(Offload):
    """An `Offload` whose copies have lanes of their own, with at most `ahead` tensors on their way up.

    On the way down at most `stash` tensors wait for the link; a forward that makes them faster waits too, and the
    device never holds more than these, the one in use and those ahead.
    """

    def __init__(
        self,
        streams: Streams,
        keep: Iterable[Tensor] = (),
        small_bytes: int = SMALL_BYTES,
        ahead: int = 1,
        stash: int = 2,
    ) -> None:
        require_whole("ahead", ahead, 0, do="pass ahead=1")
        require_whole("stash", stash, 1, do="pass stash=2")
        super().__init__(keep, small_bytes)
        self.streams, self.ahead, self.stash = streams, ahead, stash
        self._order: list[ref[Moved]] = []
        self._at: WeakKeyDictionary[Moved, int] = WeakKeyDictionary()
        self._leaving: list[tuple[StreamEvent, Tensor]] = []  # held until its copy is done
        self._coming: WeakKeyDictionary[Moved, tuple[Tensor, StreamEvent]] = WeakKeyDictionary()

    def send(self, whole: Tensor) -> Tensor:
        if len(self._leaving) == self.stash:
            self.streams.wait(self._leaving.pop(0)[0])
        host = viewed(host_block(whole.nbytes, whole.is_cuda), whole)
        after = [self.streams.so_far()]
        self._leaving.append((self.streams.copy([(host, whole)], after, lane=Lane.DOWN, name="activation"), whole))
        return host

    def sent(self, moved: Moved) -> None:
        self._at[moved] = len(self._order)
        self._order.append(ref(moved))

    def bring(self, moved: Moved) -> Tensor:
        self._land()
        self._start(moved)
        tensor, event = self._coming.pop(moved)
        for earlier in self._before(moved):
            self._start(earlier)
        self.streams.join(event)
        return tensor

    def _land(self) -> None:
        """Backward has begun: nothing leaves any more."""
        while self._leaving:
            self.streams.wait(self._leaving.pop()[0])

    def _start(self, moved: Moved) -> None:
        if moved in self._coming:
            return
        tensor = torch.empty(moved.host.shape, dtype=moved.host.dtype, device=moved.device)
        after = [self.streams.so_far()]  # the device's block may be one that was just in use
        self._coming[moved] = tensor, self.streams.copy([(tensor, moved.host)], after, name="activation")

    def _before(self, moved: Moved) -> list[Moved]:
        """The `ahead` storages that were saved before it, of those that the graph still holds; the last one first."""
        found: list[Moved] = []
        for at in range(self._at[moved] - 1, -1, -1):
            if len(found) == self.ahead:
                break
            other = self._order[at]()
            if other is not None:
                found.append(other)
        return found
