"""Lion: the sign of a running mean. One state, 4 bytes a parameter where AdamW has 8.

Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms", arXiv:2302.06675. Every weight moves by exactly the
learning rate, so it wants one that is three to ten times smaller than Adam's, and a weight decay that much larger.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from .base import TensorOptimizer


class Lion(TensorOptimizer):
    """Lion, with its mean in the type of the weight."""

    def __init__(
        self,
        parameters: Iterable[Any],
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(parameters, lr, betas=betas, weight_decay=weight_decay)

    def begin(self, weight: Tensor, group: dict[str, Any]) -> dict[str, Any]:
        return {"mean": torch.zeros_like(weight)}

    def update(self, weight: Tensor, grad: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        lion_(weight, grad, state["mean"], group)


def lion_(weight: Tensor, grad: Tensor, mean: Tensor, group: dict[str, Any]) -> None:
    """One step of Lion, in place: every weight moves by the same lr, in the direction of the sign."""
    (first, second), lr = group["betas"], group["lr"]
    weight.mul_(1 - lr * group["weight_decay"])
    weight.add_((mean * first + grad * (1 - first)).sign(), alpha=-lr)
    mean.mul_(second).add_(grad, alpha=1 - second)
