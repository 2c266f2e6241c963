"""What a technique does for a setup, by what the setup asks for: found where it is needed, so nobody passes it along.

registered("checkpointing")(model, "selective")     # puts the policy into the model
registered("optimizer")("lion", weights)            # builds what no library has
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from .errors import require_name

FUNCTIONS = {
    "checkpointing": ("techniques.checkpointing", "apply"),  # (model, policy)
    "optimizer": ("techniques.optimizers", "make"),  # (name, weights with their roles) -> optimizers
}
PACKAGE = __name__.partition(".")[0]


def registered(kind: str) -> Callable[..., Any]:
    """The function of `kind`; its module, which imports torch, is imported by now."""
    module, name = FUNCTIONS[require_name("technique", kind, FUNCTIONS)]
    return getattr(import_module(f"{PACKAGE}.{module}"), name)
