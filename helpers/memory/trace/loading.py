"""From a model on meta to one on the GPU: how a base in 4 bits is loaded, and adapters that are made on the host.

What loading leaves in the allocator's cache stays reserved. As in modeling_utils.py and core_model_loading.py of
Transformers 5.17 to 5.23.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from unittest import mock

from torch import nn

from ..meter.meter import Meter
from ..meter.timeline import StorageLifetime
from .fake import Swapped, twin, without_memory
from .quantized import BASES, QuantizedBase, is_unpacked, packed_bytes

if TYPE_CHECKING:
    from .record import Session

DYNAMIC_MAP_BYTES = 4 * 256  # name2qmap["dynamic"] in bitsandbytes/functional.py: one for all layers, made at the first


def load(model: nn.Module, base: QuantizedBase, session: Session) -> nn.Module:
    """Give a base of `quantized.in_4_bits` its tensors in the order in which it is loaded, then prepare it.

    First one block as large as all of it (caching_allocator_warmup), freed at once: the weights come to lie in it. Then
    they come one by one, by name, and each is quantized before the next (convert_and_load_state_dict_in_model uses no
    threads then, from 5.4 on; `read_ahead` has the releases before). The session keeps where each weight begins.
    """
    made: Swapped = {}
    with session.mode:
        if session.device == "cuda":
            with session.meter.held(_all_of_it(model)):
                pass
        for _, weight in sorted(model.named_parameters(), key=lambda named: _natural(named[0])):
            session.weights_from.append(len(session.meter.events))
            made[id(weight)] = weight, twin(weight)
        session.weights_from.append(len(session.meter.events))
    model = without_memory(model, session.mode, made)
    if session.device == "cuda" and BASES[base.weights]:
        session.meter.hold(DYNAMIC_MAP_BYTES, "bitsandbytes: levels of an 8-bit scale")
    if base.prepared:
        from peft import prepare_model_for_kbit_training

        prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    return model


def _all_of_it(model: nn.Module) -> int:
    """get_total_byte_count: half a byte, or one, for each value that is going to be quantized, nothing for scales."""
    return math.floor(
        sum(
            weight.numel() * (packed_bytes(weight) if is_unpacked(weight) else weight.element_size())
            for weight in model.parameters()
        )
    )


def _natural(name: str) -> list[tuple[bool, int | str]]:
    """dot_natural_key: layer 2 before layer 10."""
    return [(not part.isdigit(), int(part) if part.isdigit() else part) for part in name.split(".")]


@contextlib.contextmanager
def linears_made_on_host(meter: Meter) -> Iterator[None]:
    """Linear layers built inside count from when they are cast: peft makes adapters so (`LoraLayer.update_layer`).

    It builds them as `nn.Linear` in host memory, then moves them to the device and type of the layer that they adapt.
    With fake tensors only the change of type shows: what it replaced was never on the device. An adapter that keeps
    its type counts where it was built.
    """
    construct = nn.Linear.__init__
    made: list[StorageLifetime | None] = []

    def constructed(self: nn.Linear, *args: Any, **kwargs: Any) -> None:
        construct(self, *args, **kwargs)
        made.extend(map(meter.block_of, self.parameters()))

    with mock.patch.object(nn.Linear, "__init__", constructed):
        yield
    alive = {id(block) for block in meter.live.values()}
    for block in filter(None, made):
        if id(block) not in alive:
            block.size_bytes = 0
