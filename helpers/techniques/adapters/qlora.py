"""What QLoRA stands on: a frozen linear layer in NF4 that training can go through without a dense copy of its weight.

To pass gradients on to its input, a linear layer needs its weight again in the backward pass. Dequantize-then-multiply
would have autograd keep the dense weight of every layer until then: all the bytes that 4 bits have saved. So the
product here keeps the codes, and dequantizes a second time.

Dettmers et al. 2023, "QLoRA: Efficient Finetuning of Quantized LLMs", arXiv:2305.14314.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..quantization.linears import NF4Linear
from ..quantization.nf4 import NF4Tensor
from ..quantization.packing import Stored


class FrozenProduct(torch.autograd.Function):
    """x W^T for a weight that is stored in few bits; the dense one exists twice, each time for one product."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, stored: Stored) -> Tensor:
        ctx.stored = stored
        return F.linear(x, stored.dequantize(x.dtype))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return grad @ ctx.stored.dequantize(grad.dtype), None


class FrozenNF4Linear(NF4Linear):
    """NF4Linear for training: the same values, and nothing dense is saved for the backward pass."""

    def forward(self, x: Tensor) -> Tensor:
        result = FrozenProduct.apply(x, self.stored)
        return result if self.bias is None else result + self.bias.to(x.dtype)


Linear = nn.Linear | NF4Linear


def dense_weight(base: Linear) -> Tensor:
    """The weight [out, in] of a linear layer; where it is stored in NF4, a dequantized copy."""
    return base.stored.dequantize() if isinstance(base, NF4Linear) else base.weight.detach()


@torch.no_grad()
def write_weight(base: Linear, weight: Tensor) -> None:
    """Put a dense `weight` into a linear layer, in place; one in NF4 quantizes it anew, and so rounds it.

    A change smaller than half the distance to the next level is lost. What rounding costs is
    `dense_weight(base) - weight` afterwards.
    """
    if not isinstance(base, NF4Linear):
        base.weight.copy_(weight)
        return
    stored = base.stored
    assert isinstance(stored, NF4Tensor)
    again = NF4Tensor.of(weight.to(stored.dtype), stored.superscale is not None, stored.block)
    for name, tensor in again.tensors.items():
        base.get_buffer(name).copy_(tensor)
