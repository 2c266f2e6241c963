"""DoRA: LoRA moves only the *direction* of each row of W; how long the row is, is trained apart.

W' = m * (W + scale * B A) / |W + scale * B A|, where m [out] begins as the lengths of the rows of W. That is `out`
values more to train. What it costs is the length: W + scale * B A is made densely in every forward pass.

Liu et al. 2024, "DoRA: Weight-Decomposed Low-Rank Adaptation", arXiv:2402.09353. Equal to peft's layer. As there,
and in the paper's section 4.3, the length is a constant in the backward pass, so that nothing dense is saved for it.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .lora import LoRALinear
from .qlora import Linear


class DoRALinear(LoRALinear):
    """LoRALinear with a trained length for each row of the weight. Arguments as there."""

    def __init__(self, base: Linear, rank: int, alpha: float | None = None, **how: Any) -> None:
        super().__init__(base, rank, alpha, **how)
        self.magnitude = nn.Parameter(self.base_weight().norm(dim=1))
        self.merged_factor: Tensor | None = None

    def added(self, x: Tensor, result: Tensor) -> Tensor:
        weight = self.base_weight()
        factor = self.factor(weight)
        if self.dropout and self.training:  # then both products see the input without what is dropped
            x = F.dropout(x.to(self.lora_a.dtype), self.dropout)
            straight = F.linear(x, weight)
        else:
            x = x.to(self.lora_a.dtype)
            straight = result if self.base.bias is None else result - self.base.bias
        turned = F.linear(F.linear(x, self.lora_a), self.lora_b) * self.scale
        return (factor - 1) * straight + factor * turned

    def factor(self, weight: Tensor) -> Tensor:
        """By what the rows of W + scale * B A are multiplied, [out]: their trained lengths over those they have."""
        with torch.no_grad():
            lengths = (weight + self.delta()).norm(dim=1)
        return self.magnitude / lengths

    def with_adapter(self, weight: Tensor) -> Tensor:
        self.merged_factor = self.factor(weight)  # the merged weight no longer tells
        return (weight + self.delta()) * self.merged_factor[:, None]

    def without_adapter(self, weight: Tensor) -> Tensor:
        assert self.merged_factor is not None
        return weight / self.merged_factor[:, None] - self.delta()
