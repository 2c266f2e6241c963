"""What an optimizer keeps, as tensors."""

from __future__ import annotations

import torch
from torch import Tensor


def states_of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Its moments. The step counters, 4 bytes each, are left out: they are on the host by default."""
    kept = [value for state in optimizer.state.values() for name, value in state.items() if name != "step"]
    return [value for value in kept if isinstance(value, Tensor)]
