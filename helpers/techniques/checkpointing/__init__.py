"""Activation checkpointing and offload: less is kept for backward, and made again. Imports torch when a name needs it.

    from helpers.techniques import checkpointing
    with checkpointing.checkpointed(model, "every:2"):
        train_step()

`function` is checkpointing by hand; `policies`, `patched` and `engines` put the field's into a model; `offload` moves
what is kept to the host; `chain` prices, `costs` and `flops` measure, `solver` finds the cheapest that fits.
`compiled` asks PyTorch's own solver. `policies`, `chain` and `solver` need no torch.
"""

from importlib import import_module

_HOMES = {
    "patched": ("Applied", "apply", "checkpointed", "decoder_layers"),
    "chain": ("Choice", "LayerCost", "Price", "price"),
    "compiled": ("Compiled", "memory_budget"),
    "costs": ("layer_costs",),
    "flops": ("Bill", "bill", "flop_counter", "flops_of"),
    "function": ("Checkpoint", "checkpoint_by_function", "checkpoint_by_hooks"),
    "offload": ("NaiveOffload", "Offload"),
    "policies": ("POLICIES", "Segment", "layout"),
    "solver": ("Plan", "front", "least_bytes", "solve"),
}
__all__ = sorted(name for names in _HOMES.values() for name in names)


def __getattr__(name: str) -> object:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f".{home}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
