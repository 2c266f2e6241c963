"""Activation checkpointing and offload: less is kept for backward, and made again. Imports torch when a name needs it.

    from helpers.techniques import checkpointing
    with checkpointing.checkpointed(model, "every:2"):
        train_step()

`function` is checkpointing by hand; `policies`, `patched` and `engines` put the field's into a model; `offload` moves
what is kept to the host; `chain` prices, `costs` and `flops` measure, `solver` finds the cheapest that fits.
`compiled` asks PyTorch's own solver. `policies`, `chain` and `solver` need no torch.
"""

from typing import TYPE_CHECKING

from ...catalog.lazy import lazy

if TYPE_CHECKING:
    from .chain import Choice, LayerCost, Price, price
    from .compiled import Compiled, memory_budget
    from .costs import layer_costs
    from .flops import Bill, bill, flop_counter, flops_of
    from .function import Checkpoint, checkpoint_by_function, checkpoint_by_hooks
    from .offload import NaiveOffload, Offload
    from .patched import Applied, apply, checkpointed, decoder_layers
    from .policies import POLICIES, Segment, layout
    from .solver import Plan, front, least_bytes, solve

__all__ = [
    "POLICIES",
    "Applied",
    "Bill",
    "Checkpoint",
    "Choice",
    "Compiled",
    "LayerCost",
    "NaiveOffload",
    "Offload",
    "Plan",
    "Price",
    "Segment",
    "apply",
    "bill",
    "checkpoint_by_function",
    "checkpoint_by_hooks",
    "checkpointed",
    "decoder_layers",
    "flop_counter",
    "flops_of",
    "front",
    "layer_costs",
    "layout",
    "least_bytes",
    "memory_budget",
    "price",
    "solve",
]

__getattr__ = lazy(__name__)
