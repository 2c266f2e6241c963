"""Adafactor: of a matrix's second moments it keeps the means of rows and columns, and multiplies them out again.

n x m values become n + m: 0.002 bytes a parameter for a layer of 4,096 x 4,096, where AdamW has 8. There is no first
moment, so a step follows the newest gradient. The product of means is exact where the matrix of squares has rank 1.

Shazeer and Stern 2018, "Adafactor: Adaptive Learning Rates with Sublinear Memory Cost", arXiv:1804.04235. Equal to
torch.optim.Adafactor, to the bit; Transformers' has FP32 states whatever the weights are, and other defaults.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from .base import TensorOptimizer


class Adafactor(TensorOptimizer):
    """Adafactor; `lr` is relative to a weight's own size, and `clip` the largest root mean square of an update."""

    def __init__(
        self,
        parameters: Iterable[Any],
        lr: float = 1e-2,
        decay: float = -0.8,
        eps: tuple[float | None, float] = (None, 1e-3),
        clip: float = 1.0,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(parameters, lr, decay=decay, eps=eps, clip=clip, weight_decay=weight_decay)

    def begin(self, weight: Tensor, group: dict[str, Any]) -> dict[str, Any]:
        if weight.dim() < 2:
            return {"mean_square": torch.zeros_like(weight)}
        return {
            "rows": weight.new_zeros(*weight.shape[:-1], 1),
            "columns": weight.new_zeros(*weight.shape[:-2], 1, weight.shape[-1]),
        }

    def update(self, weight: Tensor, grad: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        lr, step, (smallest, least_size) = group["lr"], state["step"], group["eps"]
        smallest = torch.finfo(weight.dtype).eps if smallest is None else smallest
        rate = max(least_size, root_mean_square(weight)) * min(lr, step**-0.5)
        weight.mul_(1 - lr * group["weight_decay"])
        new = step ** group["decay"]  # the share of the newest gradient: 1, then 0.57, 0.42 …
        if weight.dim() < 2:
            mean_square = state["mean_square"].lerp_(grad * grad, new).clone()
        else:
            mean_square = factored(grad, state["rows"], state["columns"], new, smallest)
        moved = mean_square.clamp_(min=smallest**2).rsqrt_().mul_(grad)
        weight.add_(moved, alpha=-rate / max(1.0, root_mean_square(moved) / group["clip"]))


def factored(grad: Tensor, rows: Tensor, columns: Tensor, new: float, smallest: float) -> Tensor:
    """The second moments of a matrix [n, m] out of `rows` [n, 1] and `columns` [1, m], which move on in place."""
    # The square of a norm is the sum of squares, without a matrix of squares in between
    rows.lerp_(grad.norm(dim=-1, keepdim=True).square_().div_(grad.shape[-1]), new)
    columns.lerp_(grad.norm(dim=-2, keepdim=True).square_().div_(grad.shape[-2]), new)
    return (rows @ columns).div_(rows.mean(dim=-2, keepdim=True).clamp_(min=smallest))


def root_mean_square(x: Tensor) -> float:
    return x.norm(2).item() / x.numel() ** 0.5
