"""A backward in two parts: the gradient of a linear layer's input now, those of its weight and bias later.

Both need the gradient of the output, and neither needs the other. A pipeline waits only for the first.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ....catalog.errors import WorkbookError

Later = list[Callable[[], None]]


class InputGradient(torch.autograd.Function):
    """A linear layer whose backward puts the work for its weight and bias on the list `later`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: nn.Parameter, bias: nn.Parameter | None, later: Later) -> Tensor:
        ctx.save_for_backward(x)
        ctx.parameters, ctx.later = (weight, bias), later
        return nn.functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (x,), (weight, bias) = ctx.saved_tensors, ctx.parameters
        ctx.later.append(partial(add_gradients, weight, bias, x.detach(), grad))  # x itself would keep the whole graph
        return grad @ weight if ctx.needs_input_grad[0] else None, None, None, None


@torch.no_grad()
def add_gradients(weight: nn.Parameter, bias: nn.Parameter | None, x: Tensor, grad: Tensor) -> None:
    """What backward would have added to the gradients of a linear layer's weight and bias."""
    rows, of_rows = x.flatten(0, -2), grad.flatten(0, -2)
    if weight.requires_grad:
        weight.grad = torch.zeros_like(weight) if weight.grad is None else weight.grad
        weight.grad.addmm_(of_rows.T, rows)
    if bias is not None and bias.requires_grad:
        bias.grad = torch.zeros_like(bias) if bias.grad is None else bias.grad
        bias.grad.add_(of_rows.sum(0))


def defer_weights(module: nn.Module) -> Later:
    """Have all linear layers of a module, in place, put that work on the list which is returned.

    Norms and embeddings keep their backward in one piece: their gradients take little time. WorkbookError for a module
    that puts it on another list already: whoever holds that one would wait for it in vain.
    """
    later: Later = []
    for layer in module.modules():
        if type(layer) is nn.Linear:
            if "forward" in vars(layer):
                what, do = "a linear layer whose forward was replaced before", "divide the backward of a module once"
                raise WorkbookError(what, "layers as nn.Linear made them", do)
            layer.forward = partial(_forward, layer, later)  # type: ignore[method-assign]
    return later


def _forward(layer: nn.Linear, later: Later, x: Tensor) -> Tensor:
    return InputGradient.apply(x, layer.weight, layer.bias, later)
