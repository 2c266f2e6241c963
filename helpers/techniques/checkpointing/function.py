"""Checkpointing by hand, twice: as an autograd Function, and with hooks on saved tensors. Both run forward again.

    y = checkpoint_by_function(layer, x)     # instead of y = layer(x)
    y = checkpoint_by_hooks(layer, x)

The first is what PyTorch calls reentrant (its backward calls backward), the second is the idea of its non-reentrant
engine, `torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)`, which is the one to use at work.
Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016, arXiv:1604.06174.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks


class Checkpoint(torch.autograd.Function):
    """Keeps the inputs of `run`, and nothing that it computes; backward runs it again, and only then has a graph."""

    @staticmethod
    def forward(ctx: Any, run: Callable, *inputs: Any) -> Any:
        ctx.run, ctx.state = run, RngAndAutocast.now()
        ctx.others = [None if isinstance(x, Tensor) else x for x in inputs]
        ctx.places = [place for place, x in enumerate(inputs) if isinstance(x, Tensor)]
        ctx.save_for_backward(*(inputs[place] for place in ctx.places))  # it notices later changes in place
        return run(*inputs)  # autograd is off inside a Function's forward: what `run` makes is freed as it goes

    @staticmethod
    def backward(ctx: Any, *output_grads: Tensor | None) -> tuple:
        inputs = list(ctx.others)
        for place, x in zip(ctx.places, ctx.saved_tensors, strict=True):
            inputs[place] = x.detach().requires_grad_(x.requires_grad)  # cut off: else backward would run on
        with ctx.state.restored(), torch.enable_grad():
            outputs = ctx.run(*inputs)
        outputs = (outputs,) if isinstance(outputs, Tensor) else outputs
        pairs = [
            (y, grad)
            for y, grad in zip(outputs, output_grads, strict=True)
            if isinstance(y, Tensor) and y.requires_grad
        ]
        torch.autograd.backward([y for y, _ in pairs], [grad for _, grad in pairs])  # fills .grad, of `inputs` too
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


class _Recomputation:
    """One checkpointed call: it hands out numbers in place of tensors, and runs again for the first number it gets."""

    def __init__(self, run: Callable, inputs: tuple, early_stop: bool) -> None:
        self.run, self.inputs, self.early_stop = run, inputs, early_stop
        self.state = RngAndAutocast.now()
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

        def never(_: None) -> Tensor:
            raise AssertionError("the second graph is not used")

        hooks = saved_tensors_hooks(keep, never)
        with contextlib.suppress(_Enough), self.state.restored(), torch.enable_grad(), hooks:
            self.run(*self.inputs)
        self.recomputed = found


def checkpoint_by_hooks(run: Callable, *inputs: Any, early_stop: bool = True) -> Any:
    """`run(*inputs)` with an ordinary graph that holds numbers; the first of them asked for runs `run` again.

    No input has to require a gradient, and `torch.autograd.grad` works. The second run ends with the last tensor that
    backward needs (`early_stop`): the product at the end of a layer is not computed twice. Nested calls give right
    gradients and save nothing more, because each call holds its inputs itself; PyTorch's saves them as a tensor of the
    graph, which an outer checkpoint can drop.

    >>> layer = torch.nn.Linear(3, 1)
    >>> checkpoint_by_hooks(layer, torch.ones(2, 3)).sum().backward()
    >>> layer.weight.grad.tolist()
    [[2.0, 2.0, 2.0]]
    """
    call = _Recomputation(run, inputs, early_stop)
    with saved_tensors_hooks(call.pack, call.unpack):
        return run(*inputs)


@dataclass(frozen=True, eq=False)
class RngAndAutocast:
    """The random states, of the CPU and of every GPU, and autocast, as they are when `now()` is called.

    A second forward is the same as the first only if all of it is as it was. Dropout asks the random state which values
    to drop: without it the second run drops others, and the gradients are those of a function that never was.
    """

    cpu_rng: Tensor
    cuda_rng: list[Tensor]
    autocast: dict[str, torch.dtype | None]

    @classmethod
    def now(cls) -> RngAndAutocast:
        on_gpu = torch.cuda.is_initialized()
        kinds = ("cpu", "cuda") if on_gpu else ("cpu",)
        autocast = {kind: torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None for kind in kinds}
        return cls(torch.get_rng_state(), torch.cuda.get_rng_state_all() if on_gpu else [], autocast)

    @contextlib.contextmanager
    def restored(self) -> Iterator[None]:
        """As it was then; and afterwards as it was just now, so that the step's later dropouts are not repeats."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.random.fork_rng(devices=range(len(self.cuda_rng))))
            for kind, dtype in self.autocast.items():
                stack.enter_context(torch.autocast(kind, dtype=dtype, enabled=dtype is not None))
            torch.set_rng_state(self.cpu_rng)
            if self.cuda_rng:
                torch.cuda.set_rng_state_all(self.cuda_rng)
            yield
