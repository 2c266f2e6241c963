"""Where gradients lie on the axis of powers of two, and what of them a format would lose. Hooks collect them.

A backward pass makes gradients of three kinds: of the logits, where it starts; of the activations between the layers,
which each layer hands to the one before; and of the weights, which are sums over all tokens. The loss is a mean over
tokens, so each token's share is small, and so are the first two.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn

from ...catalog.errors import WorkbookError
from ...catalog.floats import FloatFormat, float_format

LEAST = -149  # the power of two that is FP32's smallest number


def exponents(x: Tensor) -> dict[int, int]:
    """How many values lie from 2^e up to 2^(e + 1), by e in rising order; zeros, infinities and NaN in none.

    >>> exponents(torch.tensor([0.0, 1.0, -1.5, 0.25]))
    {-2: 1, 0: 2}
    """
    values = x.detach().float().flatten()
    powers = torch.frexp(values[values.isfinite() & (values != 0)]).exponent - 1  # frexp has mantissas from 1/2 to 1
    counts = torch.bincount(powers - LEAST).tolist()
    return {LEAST + place: count for place, count in enumerate(counts) if count}


@dataclass(frozen=True)
class Lost:
    """Shares, from 0 to 1, of a tensor's values other than zero: what a format makes zero, subnormal and infinite.

    A subnormal keeps fewer digits the smaller it is; `kept` have all that the format offers.
    """

    zero: float
    subnormal: float
    overflow: float

    @property
    def kept(self) -> float:
        return 1.0 - self.zero - self.subnormal - self.overflow

    def __str__(self) -> str:
        named = (("zero", self.zero), ("subnormal", self.subnormal), ("overflow", self.overflow))
        return ", ".join(f"{share:.1%} {name}".replace("%", " %") for name, share in named)


def lost(x: Tensor, fmt: FloatFormat | str, scale: float = 1.0) -> Lost:
    """What becomes in `fmt` of the values of `x` that are not zero, times `scale`.

    Up to half the smallest number they are rounded to zero; what is larger than the largest number overflows.

    >>> print(lost(torch.tensor([1.0, 1e-5, 1e-8, 1e6]), "fp16"))
    25.0 % zero, 25.0 % subnormal, 25.0 % overflow
    """
    fmt = float_format(fmt) if isinstance(fmt, str) else fmt
    sizes = x.detach().float().abs()
    sizes = sizes[sizes != 0] * scale
    if not sizes.numel():
        return Lost(0.0, 0.0, 0.0)
    zero, small, fits = sizes <= fmt.smallest_subnormal / 2, sizes < fmt.smallest_normal, sizes <= fmt.largest
    return Lost(*(share.float().mean().item() for share in (zero, small & ~zero, ~fits)))  # NaN does not fit either


@dataclass
class Gradients:
    """Gradients of one backward pass, flattened: of what each linear layer puts out, of the logits, of the weights."""

    activations: dict[str, Tensor] = field(default_factory=dict)
    logits: Tensor | None = None
    weights: dict[str, Tensor] = field(default_factory=dict)

    def all_activations(self) -> Tensor:
        return torch.cat(list(self.activations.values()))

    def all_weights(self) -> Tensor:
        return torch.cat(list(self.weights.values()))


@contextmanager
def collected(model: nn.Module) -> Iterator[Gradients]:
    """Collects the gradients that a backward pass inside the `with` makes. A second pass replaces those of the first.

        with collected(model) as found:
            model(ids, labels=ids).loss.backward()
        print(lost(found.all_activations(), "fp16"))

    The last linear layer's output are the logits. The weights' gradients are read from `grad` at the end.
    """
    found = Gradients()
    linears = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    if not linears:
        raise WorkbookError(
            f"{type(model).__name__} has no linear layer", "a model that has some", "pass another model"
        )
    last = list(linears)[-1]

    def keep(name: str, grad: Tensor) -> None:
        if name == last:
            found.logits = grad.detach().flatten()
        else:
            found.activations[name] = grad.detach().flatten()

    def watch(name: str, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if output.requires_grad:
            output.register_hook(partial(keep, name))

    handles = [module.register_forward_hook(partial(watch, name)) for name, module in linears.items()]
    try:
        yield found
        grads = {name: weight.grad for name, weight in model.named_parameters()}
        found.weights = {name: grad.detach().flatten() for name, grad in grads.items() if grad is not None}
    finally:
        for handle in handles:
            handle.remove()
