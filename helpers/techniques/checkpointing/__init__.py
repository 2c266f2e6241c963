"""Activation checkpointing and offload: less is kept for backward, and made again. Imports torch when a name needs it.

    from helpers.techniques import checkpointing
    with checkpointing.checkpointed(model, "every:2"):
        train_step()

`function` is checkpointing by hand; `patched` puts a policy of `helpers.catalog.policies` into a model; `offload` moves
what is kept to the host; `chain` prices, `costs` measures, `solver` finds the cheapest that fits.
`compiled` asks PyTorch's own solver. `chain` and `solver` need no torch.
"""

from typing import TYPE_CHECKING

from ...catalog.lazy import lazy

if TYPE_CHECKING:
    from ...catalog.policies import POLICIES, PolicySegment, layout
    from .chain import ChainCost, LayerChoice, LayerCost, price
    from .compiled import CompiledStep, activation_memory_budget
    from .costs import flop_counter, flops_of, layer_costs
    from .function import Checkpoint, checkpoint_by_function, checkpoint_by_hooks
    from .offload import NaiveOffload, Offload
    from .patched import Applied, apply, checkpointed, decoder_layers
    from .solver import CheckpointPlan, least_bytes, pareto_plans, solve


__getattr__ = lazy(__name__)
