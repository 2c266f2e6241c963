"""How `from_pretrained` brings a base in 4 bits to a GPU: what that leaves in the allocator's cache stays reserved.

As in modeling_utils.py and core_model_loading.py of Transformers 5.17 to 5.23.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from torch import nn

from .bases import QuantizedBase, is_unpacked, prepare
from .fake import twin, without_memory

if TYPE_CHECKING:
    from .record import Session


def load(model: nn.Module, base: QuantizedBase, session: Session) -> nn.Module:
    """Give a base of `bases.in_4_bits` its tensors in the order in which it is loaded, then prepare it.

    First one block as large as all of it (caching_allocator_warmup), freed at once: the weights come to lie in it. Then
    they come one by one, by name, and each is quantized before the next (convert_and_load_state_dict_in_model uses no
    threads then).
    """
    made = {}
    with session.mode:
        if session.device == "cuda":
            with session.meter.held(_all_of_it(model)):
                pass
        for _, weight in sorted(model.named_parameters(), key=lambda named: _natural(named[0])):
            made[id(weight)] = twin(weight)
    model = without_memory(model, session.mode, made)
    prepare(model, base, session)
    return model


def _all_of_it(model: nn.Module) -> int:
    """get_total_byte_count: half a byte for each value that is going to be quantized, and nothing for its scales."""
    return math.floor(
        sum(weight.numel() * (0.5 if is_unpacked(weight) else weight.element_size()) for weight in model.parameters())
    )


def _natural(name: str) -> list[tuple[bool, int | str]]:
    """dot_natural_key: layer 2 before layer 10."""
    return [(not part.isdigit(), int(part) if part.isdigit() else part) for part in name.split(".")]
