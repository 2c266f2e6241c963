"""8-bit Adam without values: bitsandbytes calls its own C library, which fake tensors have no way into."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ..measure.steps import make_optimizer

SMALLEST, BLOCK, CODES = 4096, 256, 256  # Optimizer8bit.init_state in bitsandbytes/optim/optimizer.py


class AdamW8bit(torch.optim.Optimizer):
    """Makes in its first step what bitsandbytes' AdamW8bit makes; a step itself allocates nothing."""

    def __init__(self, parameters: Iterator[torch.nn.Parameter]) -> None:
        super().__init__(parameters, {})
        self.codes: tuple[torch.Tensor, ...] = ()

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and not self.state[parameter]:
                    self.state[parameter] = self._states(parameter)

    def _states(self, parameter: torch.Tensor) -> dict[str, torch.Tensor]:
        if parameter.numel() < SMALLEST:
            return {name: torch.zeros_like(parameter, dtype=torch.float32) for name in ("state1", "state2")}
        self.codes = self.codes or tuple(torch.empty(CODES) for _ in range(2))  # one pair for all parameters
        blocks = -(-parameter.numel() // BLOCK)
        states = {name: torch.zeros_like(parameter, dtype=torch.uint8) for name in ("state1", "state2")}
        states |= {name: torch.zeros(blocks) for name in ("absmax1", "absmax2")}
        return states | {"qmap1": self.codes[0], "qmap2": self.codes[1]}


def optimizer_without_values(name: str, parameters: Iterator[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """The catalogue's optimizer `name`, or its stand-in where the real one needs values."""
    return AdamW8bit(parameters) if name == "adamw-8bit" else make_optimizer(name, parameters)
