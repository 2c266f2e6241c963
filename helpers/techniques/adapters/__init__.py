"""Adapters: a frozen model, and a few trained values beside its linear layers. LoRA, DoRA, and both on a base in NF4.

    from helpers.techniques import adapters
    adapted = adapters.adapt(model, rank=8, targets=("q_proj", "v_proj"), base="nf4-dq")
    optimizer = torch.optim.AdamW(adapted.trainable)
    ...
    adapters.merge(model)                           # from now on the base's own product contains the adapter

`lora` and `dora` are the layers, each equal to peft's; `qlora` is what they stand on where the base has 4 bits.
`engines` has peft itself, imported when it is asked for.
"""

from . import engines
from .dora import DoRALinear
from .lora import LoRALinear
from .model import Adapted, adapt, adapters_of, merge, unmerge
from .qlora import FrozenNF4Linear, dense_weight, write_weight
