"""Checkpointing by hand, twice: as an autograd Function, and with hooks on saved tensors. Both run forward again.

    y = checkpoint_by_function(layer, x)     # instead of y = layer(x)
    y = checkpoint_by_hooks(layer, x)

The first is what PyTorch calls reentrant (its backward calls backward), the second is the idea of its non-reentrant
engine, `torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)`, which is the one to use at work.
Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016, arXiv:1604.06174.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from .surroundings import Surroundings


class Checkpoint(torch.autograd.Function):
    """Keeps the inputs of `run`, and nothing that it computes; backward runs it again, and only then has a graph."""

    @staticmethod
    def forward(ctx: Any, run: Callable, *inputs: Any) -> Any:
        ctx.run, ctx.surroundings = run, Surroundings.now()
        ctx.others = [None if isinstance(x, Tensor) else x for x in inputs]
        ctx.places = [place for place, x in enumerate(inputs) if isinstance(x, Tensor)]
        ctx.save_for_backward(*(inputs[place] for place in ctx.places))  # it notices later changes in place
        return run(*inputs)  # autograd is off inside a Function's forward: what `run` makes is freed as it goes

    @staticmethod
    def backward(ctx: Any, *output_grads: Tensor | None) -> tuple:
        inputs = list(ctx.others)
        for place, x in zip(ctx.places, ctx.saved_tensors, strict=True):
            inputs[place] = x.detach().requires_grad_(x.requires_grad)  # cut off: else backward would run on
        with ctx.surroundings.restored(), torch.enable_grad():
            outputs = ctx.run(*inputs)
        outputs = (outputs,) if isinstance(outputs, Tensor) else outputs
        pairs = [
            (y, grad)
            for y, grad in zip(outputs, output_grads, strict=True)
            if isinstance(y, Tensor) and y.requires_grad
        ]
        torch.autograd.backward(*zip(*pairs, strict=True))  # fills .grad of the parameters, and of `inputs`
        return None, *(x.grad if isinstance(x, Tensor) else None for x in inputs)


def checkpoint_by_function(run: Callable, *inputs: Any) -> Any:
    """`run(*inputs)`, a tensor or a tuple of them, with nothing but `inputs` kept for the backward pass.

    Gradients and random numbers are those of `run` itself. Two limits, both of `use_reentrant=True` as well: if no
    input requires a gradient the result requires none and the parameters in `run` silently learn nothing; and
    `torch.autograd.grad` finds no path to the parameters, which are no inputs.

    >>> x = torch.ones(2, 3, requires_grad=True)
    >>> checkpoint_by_function(torch.sin, x).sum().backward()
    >>> torch.equal(x.grad, x.cos())
    True
    """
    return Checkpoint.apply(run, *inputs)


class _Enough(Exception):  # noqa: N818 - nothing went wrong
    """Everything that was asked for has been computed again."""


class _Frame:
    """One checkpointed call: it hands out numbers in place of tensors, and runs again for the first number it gets."""

    def __init__(self, run: Callable, inputs: tuple, early_stop: bool) -> None:
        self.run, self.inputs, self.early_stop = run, inputs, early_stop
        self.surroundings = Surroundings.now()
        self.count = 0
        self.recomputed: dict[int, Tensor] = {}

    def pack(self, tensor: Tensor) -> int:
        self.count += 1
        return self.count - 1

    def unpack(self, number: int) -> Tensor:
        if number not in self.recomputed:
            self._again()
        return self.recomputed.pop(number)  # freed as soon as its operator has used it

    def _again(self) -> None:
        found: dict[int, Tensor] = {}

        def keep(tensor: Tensor) -> None:
            found[len(found)] = tensor.detach()
            if self.early_stop and len(found) == self.count:
                raise _Enough

        try:
            with self.surroundings.restored(), torch.enable_grad(), saved_tensors_hooks(keep, lambda _: None):
                self.run(*self.inputs)
        except _Enough:
            pass
        self.recomputed = found


def checkpoint_by_hooks(run: Callable, *inputs: Any, early_stop: bool = True) -> Any:
    """`run(*inputs)` with an ordinary graph that holds numbers; the first of them asked for runs `run` again.

    No input has to require a gradient, and `torch.autograd.grad` works. The second run ends with the last tensor that
    backward needs (`early_stop`): the product at the end of a layer is not computed twice. Nested calls give right
    gradients and save nothing more, because a frame holds its inputs itself; PyTorch's saves them as a tensor of the
    graph, which an outer checkpoint can drop.

    >>> layer = torch.nn.Linear(3, 1)
    >>> checkpoint_by_hooks(layer, torch.ones(2, 3)).sum().backward()
    >>> layer.weight.grad.tolist()
    [[2.0, 2.0, 2.0]]
    """
    frame = _Frame(run, inputs, early_stop)
    with saved_tensors_hooks(frame.pack, frame.unpack):
        return run(*inputs)
