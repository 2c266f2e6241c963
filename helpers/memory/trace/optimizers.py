"""Optimizers in a trace: the real ones, and stand-ins for bitsandbytes', whose C library takes no fake tensors."""

from __future__ import annotations

import torch
from torch import nn

from ...catalog.optimizers import BLOCK_VALUES, SMALLEST_8BIT_TENSOR, SMALLEST_PAGED_TENSOR, Blockwise, Optimizer
from ...catalog.optimizers import optimizer as optimizer_rule
from ..measure.optimizers import Role, make_optimizers, rules_of

CODES = 256  # levels of a state of 8 bits, FP32; bitsandbytes keeps one table for each state, shared by all parameters


class WithoutValues(torch.optim.Optimizer):
    """Makes in its first step the states that bitsandbytes' optimizer of `rule` makes; a step itself allocates nothing.

    `init_state` and `get_state_buffer` in bitsandbytes/optim/optimizer.py. What pages says so in its `is_paged`.
    """

    def __init__(self, rule: Optimizer, parameters: list[nn.Parameter]) -> None:
        super().__init__(parameters, {})
        self.rule = rule
        self.codes: tuple[torch.Tensor, ...] = ()

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override] # no closure: nothing is computed
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and not self.state[parameter]:
                    self.state[parameter] = self._states(parameter)

    def _states(self, parameter: torch.Tensor) -> dict[str, torch.Tensor]:
        names = [str(number) for number in range(1, self.rule.states + 1)]
        if parameter.numel() < SMALLEST_8BIT_TENSOR or not isinstance(self.rule, Blockwise):
            return self._paged(parameter, {f"state{name}": torch.float32 for name in names})
        self.codes = self.codes or tuple(torch.empty(CODES) for _ in names)
        blocks = -(-parameter.numel() // BLOCK_VALUES)
        states = self._paged(parameter, {f"state{name}": torch.uint8 for name in names})
        states |= {f"absmax{name}": torch.zeros(blocks) for name in names}
        return states | {f"qmap{name}": code for name, code in zip(names, self.codes, strict=True)}

    def _paged(self, parameter: torch.Tensor, types: dict[str, torch.dtype]) -> dict[str, torch.Tensor]:
        """States of the parameter's shape, which say whether they page: `get_state_buffer`."""
        states = {name: torch.zeros_like(parameter, dtype=dtype) for name, dtype in types.items()}
        for state in states.values():
            state.is_paged = self.rule.paged and parameter.numel() >= SMALLEST_PAGED_TENSOR  # type: ignore[attr-defined]
        return states


def optimizers_without_values(name: str, weights: list[tuple[nn.Parameter, Role]]) -> list[torch.optim.Optimizer]:
    """As `make_optimizers`, with stand-ins where the real ones need values."""
    made: list[torch.optim.Optimizer] = []
    for rule, part in rules_of(optimizer_rule(name), weights).items():
        named = [(weight, "") for weight in part]
        made += [WithoutValues(rule, part)] if needs_values(rule) else make_optimizers(rule.name, named)
    return made


def needs_values(rule: Optimizer) -> bool:
    """Whether bitsandbytes runs it."""
    return isinstance(rule, Blockwise) or bool(rule.state_width)
