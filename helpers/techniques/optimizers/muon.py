"""Muon: momentum, made orthogonal before it moves a matrix. One state, 4 bytes a parameter, for hidden matrices only.

An update with all singular values near 1 moves a matrix in all directions alike, where Adam's moves it mostly in a few.
Embeddings, the output head and vectors stay with AdamW, so a model's states take between 4 and 8 bytes a parameter.

Keller Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks"; equal to torch.optim.Muon where
BF16 is fast.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from .base import TensorOptimizer, require_matrix

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # they bring singular values from 0.001 to between 0.7 and 1.2 in five turns


class Muon(TensorOptimizer):
    """Muon with Nesterov's momentum. WorkbookError for a weight that is no matrix."""

    def __init__(
        self, parameters: Iterable[Any], lr: float = 1e-3, momentum: float = 0.95, weight_decay: float = 0.1
    ) -> None:
        super().__init__(parameters, lr, momentum=momentum, weight_decay=weight_decay)
        for group in self.param_groups:
            for weight in group["params"]:
                require_matrix(weight, "Muon")

    def begin(self, weight: Tensor, group: dict[str, Any]) -> dict[str, Any]:
        return {"momentum": torch.zeros_like(weight)}

    def update(self, weight: Tensor, grad: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        lr, keep = group["lr"], group["momentum"]
        momentum = state["momentum"].lerp_(grad, 1 - keep)
        moved = orthogonal(grad.lerp(momentum, keep))
        rows, columns = weight.shape
        weight.mul_(1 - lr * group["weight_decay"])
        weight.add_(moved, alpha=-lr * max(1.0, rows / columns) ** 0.5)


def orthogonal(matrix: Tensor, turns: int = 5) -> Tensor:
    """`matrix` with its singular values between 0.7 and 1.2, in BF16: Newton and Schulz's iteration, no decomposition.

    Its products are square in the smaller side, so they and their BF16 copies are what a step adds at its peak. On a
    processor that has no fast products of BF16 they are of FP32.
    """
    a, b, c = COEFFICIENTS
    wide = matrix.shape[0] <= matrix.shape[1]
    x = matrix.to(product_format(matrix.device))
    x = x if wide else x.T
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(turns):
        square = x @ x.T
        x = torch.addmm(x, torch.addmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return x if wide else x.T


def product_format(device: torch.device) -> torch.dtype:
    """BF16; FP32 on a processor without AVX-512, where PyTorch multiplies BF16 in plain loops, fifty times slower."""
    slow = device.type == "cpu" and not torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return torch.float32 if slow else torch.bfloat16


def hidden_matrices(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """(the matrices between embedding and output head, all other weights) of what `model` trains."""
    ends = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    head = getattr(model, "get_output_embeddings", lambda: None)()
    ends |= {id(head.weight)} if head is not None else set()
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    hidden = [weight for weight in trained if weight.dim() == 2 and id(weight) not in ends]
    known = set(map(id, hidden))
    return hidden, [weight for weight in trained if id(weight) not in known]
