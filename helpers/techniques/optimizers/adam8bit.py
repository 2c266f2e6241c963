"""AdamW and Lion whose states lie in 8-bit blocks: 2.03 and 1.02 bytes a parameter, where FP32 takes 8 and 4.

A step decodes the states of one tensor to FP32, computes as always, and encodes them anew. So it rounds what it
remembers, never what it adds to the weight now. Tensors under `min_8bit_size` values, norms and biases, keep FP32
states: they would save next to nothing. Embeddings can keep them, too: put them in a group of their own,
`{"params": [...], "min_8bit_size": math.inf}`; bitsandbytes' StableEmbedding asks for that.

Dettmers et al. 2021, arXiv:2110.02861. With `rounding="table"` states and weights equal those of bitsandbytes 0.50 on
an x86 CPU, bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor

from ...catalog.errors import require_name
from ...catalog.optimizers import SMALLEST_8BIT_TENSOR
from .base import TensorOptimizer
from .blockwise import BLOCK, ROUNDINGS, dequantized, dynamic_map, quantized
from .lion import lion_


class BlockwiseOptimizer(TensorOptimizer):
    """An optimizer with 8-bit states. A subclass names them and has `move(weight, grad, values, step, group)`.

    `values` are the states in FP32; `move` changes them and the FP32 `weight` in place.
    """

    signed: ClassVar[dict[str, bool]]  # of each state, by name: whether it can be negative

    def __init__(self, parameters: Iterable[Any], lr: float, rounding: str = "nearest", **settings: Any) -> None:
        super().__init__(parameters, lr, **settings)
        self.rounding = require_name("rounding", rounding, ROUNDINGS)
        self.maps: dict[tuple[bool, torch.device], Tensor] = {}

    def begin(self, weight: Tensor, group: dict[str, Any]) -> dict[str, Any]:
        if weight.numel() < group["min_8bit_size"]:
            return {name: torch.zeros_like(weight, dtype=torch.float32) for name in self.signed}
        blocks, made = -(-weight.numel() // BLOCK), {}
        for name, signed in self.signed.items():
            made[name] = torch.zeros_like(weight, dtype=torch.uint8)
            made[f"{name}_absmax"] = torch.zeros(blocks, device=weight.device)
            key = signed, weight.device  # one table of 1,024 bytes for all tensors
            made[f"{name}_map"] = self.maps.setdefault(key, dynamic_map(signed).to(weight.device))
        return made

    def update(self, weight: Tensor, grad: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        values = {name: self.decoded(state, name) for name in self.signed}
        moved = weight.float()
        self.move(moved, grad.float(), values, state["step"], group)
        weight.copy_(moved)
        for name, value in values.items():
            if value is not state[name]:
                codes, absmax = quantized(value, state[f"{name}_map"], BLOCK, self.rounding)
                state[name].copy_(codes)
                state[f"{name}_absmax"].copy_(absmax)

    def decoded(self, state: dict[str, Any], name: str) -> Tensor:
        """A state in FP32: itself where it is small, else a copy decoded from its codes."""
        if state[name].dtype == torch.float32:
            return state[name]
        return dequantized(state[name], state[f"{name}_absmax"], state[f"{name}_map"])

    def move(self, weight: Tensor, grad: Tensor, values: dict[str, Tensor], step: int, group: dict[str, Any]) -> None:
        raise NotImplementedError


class AdamW8bit(BlockwiseOptimizer):
    """AdamW with both moments in 8 bits: 2 x (1 + 4/256) bytes a parameter of a large tensor, 8 of a small one."""

    signed: ClassVar = {"mean": True, "mean_square": False}

    def __init__(
        self,
        parameters: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        min_8bit_size: float = SMALLEST_8BIT_TENSOR,
        rounding: str = "nearest",
    ) -> None:
        settings = {"betas": betas, "eps": eps, "weight_decay": weight_decay, "min_8bit_size": min_8bit_size}
        super().__init__(parameters, lr, rounding, **settings)

    def move(self, weight: Tensor, grad: Tensor, values: dict[str, Tensor], step: int, group: dict[str, Any]) -> None:
        (first, second), lr, eps = group["betas"], group["lr"], group["eps"]
        mean = values["mean"].mul_(first).add_(grad, alpha=1 - first)
        mean_square = values["mean_square"].mul_(second).addcmul_(grad, grad, value=1 - second)
        correction1, correction2 = 1 - first**step, math.sqrt(1 - second**step)
        weight.mul_(1 - lr * group["weight_decay"])
        if weight.numel() < group["min_8bit_size"]:  # the same, in the order that bitsandbytes has for FP32 states
            deviation = mean_square.sqrt() + eps * correction2
            weight.add_(mean / deviation, alpha=-lr * correction2 / correction1)
        else:
            weight.addcdiv_(mean, (mean_square.sqrt() / correction2).add_(eps), value=-lr / correction1)


class Lion8bit(BlockwiseOptimizer):
    """Lion with its one moment in 8 bits: 1 + 4/256 bytes a parameter of a large tensor, 4 of a small one."""

    signed: ClassVar = {"mean": True}

    def __init__(
        self,
        parameters: Iterable[Any],
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        min_8bit_size: float = SMALLEST_8BIT_TENSOR,
        rounding: str = "nearest",
    ) -> None:
        settings = {"betas": betas, "weight_decay": weight_decay, "min_8bit_size": min_8bit_size}
        super().__init__(parameters, lr, rounding, **settings)

    def move(self, weight: Tensor, grad: Tensor, values: dict[str, Tensor], step: int, group: dict[str, Any]) -> None:
        lion_(weight, grad, values["mean"], group)
