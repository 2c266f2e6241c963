"""LoRA: beside a frozen weight W [out, in], two thin matrices that are trained, W + scale * B A.

A [rank, in] begins random, B [out, rank] with zeros, so that training starts from the model as it was. Trained are
rank x (in + out) values where the weight has in x out. Gradients and optimizer states shrink with them. Activations do
not: A needs the layer's input in the backward pass, which a frozen W alone would not.

Hu et al. 2021, "LoRA: Low-Rank Adaptation of Large Language Models", arXiv:2106.09685. Equal to peft's layer.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...catalog.errors import WorkbookError, require_number, require_whole
from .qlora import Linear, dense_weight, write_weight


class LoRALinear(nn.Module):
    """A linear layer, frozen, with a trained path of `rank` beside it; `alpha` / rank scales what the path adds.

    The path is FP32 unless `dtype` says otherwise, whatever the base is in: peft's default. So it casts the input, and
    saves that cast for the backward pass.
    """

    def __init__(
        self,
        base: Linear,
        rank: int,
        alpha: float | None = None,
        dropout: float = 0.0,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        alpha = rank if alpha is None else alpha
        require_adapter(base, rank, alpha, dropout)
        self.base: Linear = base.requires_grad_(False)
        where: Any = {"dtype": dtype, "device": [*base.parameters(), *base.buffers()][0].device}
        self.lora_a = nn.Parameter(torch.empty(rank, base.in_features, **where))
        self.lora_b = nn.Parameter(torch.zeros(base.out_features, rank, **where))
        nn.init.kaiming_uniform_(self.lora_a, a=math.sqrt(5))
        self.scale, self.dropout, self.merged = alpha / rank, dropout, False

    def forward(self, x: Tensor) -> Tensor:
        result = self.base(x)
        return result if self.merged else (result + self.added(x, result)).to(result.dtype)

    def added(self, x: Tensor, result: Tensor) -> Tensor:
        """What the adapter adds to the base's `result`, in the adapter's type."""
        x = F.dropout(x.to(self.lora_a.dtype), self.dropout, self.training)
        return F.linear(F.linear(x, self.lora_a), self.lora_b) * self.scale

    def delta(self) -> Tensor:
        """scale * B A: what the adapter adds to the weight [out, in], dense."""
        return self.lora_b @ self.lora_a * self.scale

    @torch.no_grad()
    def merge(self) -> None:
        """Add the adapter to the base's weight, which rounds to its type; from then on forward costs the base alone."""
        if not self.merged:
            write_weight(self.base, self.with_adapter(self.base_weight()))
            self.merged = True

    @torch.no_grad()
    def unmerge(self) -> None:
        """Take it off again. The base is what it was but for rounding: keep a copy if it must be exact."""
        if self.merged:
            write_weight(self.base, self.without_adapter(self.base_weight()))
            self.merged = False

    def with_adapter(self, weight: Tensor) -> Tensor:
        return weight + self.delta()

    def without_adapter(self, weight: Tensor) -> Tensor:
        return weight - self.delta()

    def base_weight(self) -> Tensor:
        """The base's weight, dense, in the adapter's type: rounding comes last."""
        return dense_weight(self.base).to(self.lora_a.dtype)

    def extra_repr(self) -> str:
        return f"rank={self.lora_a.shape[0]}, scale={self.scale:g}, {'merged' if self.merged else 'beside the base'}"


def require_adapter(base: object, rank: int, alpha: float, dropout: float) -> None:
    """WorkbookError where `base` is no linear layer, or has no room for an adapter of these settings."""
    if not isinstance(base, Linear):
        expected = "a torch.nn.Linear, or an NF4Linear"
        raise WorkbookError(f"an adapter for a {type(base).__name__}", expected, "choose other targets")
    if isinstance(base, nn.Linear) and not is_plain(base.weight):
        what = f"{type(base).__name__}, whose weight an engine has packed"
        do = "pass base='nf4-dq', or use engines.peft"
        raise WorkbookError(what, "a dense weight, or an NF4Linear", do)
    require_whole("rank", rank, 1, min(base.out_features, base.in_features))
    require_number("alpha", alpha, expected="a number above 0", do="pass alpha=16")
    if isinstance(dropout, bool) or not 0 <= dropout < 1:
        raise WorkbookError(f"dropout is {dropout!r}", "a share from 0 up, below 1", "pass dropout=0.0")


def is_plain(weight: Tensor) -> bool:
    """Whether a weight's numbers are what it holds: not codes, as in bitsandbytes, nor wrapped, as in torchao."""
    return weight.is_floating_point() and not hasattr(weight, "__tensor_flatten__")
