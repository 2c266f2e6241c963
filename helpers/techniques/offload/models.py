"""Several models under one budget of device memory: loaded when asked for, the least recently used one evicted.

    pool = ModelPool(budget_bytes=16 * 2**30, streams=streams)
    pool.add("chat", chat_model)
    pool.add("code", code_model)
    with pool.use("chat") as model:
        model.generate(...)

Weights do not change in use, so evicting costs nothing: the host has its copy, and the device's is dropped.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ...catalog.errors import WorkbookError, require_name, require_whole
from ...memory.breakdown import rounded
from .host import HostLayout, packed
from .streams import Streams


@dataclass(eq=False)
class _Model:
    """A model, its weights on the host, its block on the device while it is loaded, and how many use it now."""

    model: nn.Module
    layout: HostLayout
    host: Tensor
    device: torch.device
    block: Tensor | None = None
    users: int = 0

    @property
    def size_bytes(self) -> int:
        return rounded(self.layout.size_bytes)


class ModelPool:
    """Models whose weights take turns in `budget_bytes` of device memory.

    Counted are `loads`, `hits` (a use that found its model loaded), `evictions` and `loaded_bytes`. Buffers, as rotary
    frequencies, stay on the device and are not in the budget.
    """

    def __init__(self, budget_bytes: int, streams: Streams) -> None:
        require_whole("budget_bytes", budget_bytes, unit="bytes", do="8 GiB are 8 * 2**30")
        self.budget_bytes, self.streams = budget_bytes, streams
        self.loads = self.hits = self.evictions = self.loaded_bytes = 0
        self._models: OrderedDict[str, _Model] = OrderedDict()  # the least recently used first

    def add(self, name: str, model: nn.Module) -> None:
        """Take a model's weights off the device; WorkbookError if it could never be loaded under this budget."""
        if name in self._models:
            raise WorkbookError(f"there is a model {name!r} already", "a new name", "pick another")
        weights = {key: parameter.data for key, parameter in model.named_parameters()}
        if not weights:
            raise WorkbookError(f"{name!r} has no weights", "a model with parameters", "leave it out of the pool")
        size_bytes = rounded(HostLayout.of(weights).size_bytes)
        if size_bytes > self.budget_bytes:
            what = f"{name!r} takes {size_bytes:,} bytes, and the budget is {self.budget_bytes:,}"
            raise WorkbookError(
                what, "a model that fits by itself", "quantize it, stream its layers, or raise the budget"
            )
        first = next(iter(weights.values()))
        layout, host = packed(weights, first.is_cuda)
        self._models[name] = _Model(model, layout, host, first.device)
        _empty(model)

    @property
    def loaded(self) -> tuple[str, ...]:
        """Names of the models on the device, the least recently used first."""
        return tuple(name for name, one in self._models.items() if one.block is not None)

    @property
    def used_bytes(self) -> int:
        return sum(one.size_bytes for one in self._models.values() if one.block is not None)

    @contextlib.contextmanager
    def use(self, name: str) -> Iterator[nn.Module]:
        """The model on the device, which is not evicted while this is open."""
        require_name("model", name, self._models)
        one = self._models[name]
        if one.block is None:
            self._make_room(name, one.size_bytes)
            self._load(one)
        else:
            self.hits += 1
        self._models.move_to_end(name)
        one.users += 1
        try:
            yield one.model
        finally:
            one.users -= 1

    def _make_room(self, name: str, size_bytes: int) -> None:
        idle = [other for other, one in self._models.items() if one.block is not None and not one.users]
        busy_bytes = sum(one.size_bytes for one in self._models.values() if one.block is not None and one.users)
        if busy_bytes + size_bytes > self.budget_bytes:  # nothing is evicted in vain
            what = (
                f"{name!r} takes {size_bytes:,} bytes, and models in use hold {busy_bytes:,} of {self.budget_bytes:,}"
            )
            raise WorkbookError(what, "room beside the models in use", "leave one of them first, or raise the budget")
        while self.used_bytes + size_bytes > self.budget_bytes:
            self._evict(idle.pop(0))

    def _load(self, one: _Model) -> None:
        """A block and a copy; the model sees it when all of it is there, and a failure leaves nothing behind."""
        block = torch.empty(one.layout.size_bytes, dtype=torch.uint8, device=one.device)
        self.streams.join(self.streams.copy([(block, one.host)], [self.streams.so_far()], name="weights"))
        views = one.layout.views(block)
        for key, parameter in one.model.named_parameters():
            parameter.data = views[key]
        one.block = block
        self.loads += 1
        self.loaded_bytes += one.layout.size_bytes

    def _evict(self, name: str) -> None:
        one = self._models[name]
        _empty(one.model)
        one.block = None
        self.evictions += 1


def _empty(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.data = parameter.data.new_empty(0)
