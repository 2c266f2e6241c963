"""What a run makes in host memory before it reaches the device: tensors of a trace that a GPU never allocates."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from unittest import mock

from torch import nn

from ..meter.meter import Meter
from ..meter.timeline import Block


@contextlib.contextmanager
def linears_made_on_host(meter: Meter) -> Iterator[None]:
    """Linear layers built inside count from when they are cast: peft makes adapters so (`LoraLayer.update_layer`).

    It builds them as `nn.Linear` in host memory, then moves them to the device and type of the layer that they adapt.
    With fake tensors only the change of type shows: what it replaced was never on the device. An adapter that keeps
    its type counts where it was built.
    """
    construct, made = nn.Linear.__init__, []

    def constructed(self: nn.Linear, *args: object, **kwargs: object) -> None:
        construct(self, *args, **kwargs)
        made.extend(meter.live.get(p.untyped_storage()._cdata) for p in self.parameters())

    with mock.patch.object(nn.Linear, "__init__", constructed):
        yield
    _leave_out(made, list(meter.live.values()))


def _leave_out(made: list[Block | None], live: list[Block]) -> None:
    alive = {id(block) for block in live}
    for block in made:
        if block is not None and id(block) not in alive:
            block.size_bytes = 0
