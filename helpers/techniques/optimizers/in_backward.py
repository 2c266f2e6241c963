"""The optimizer's step inside the backward pass: each gradient is used and freed as soon as it is whole.

Gradients then never exist all at once, and the peak falls by almost all of their bytes, unless activations own it:
they are largest before the first gradient is made. The price is that a step follows every backward pass, so
micro-batches cannot be accumulated, and that there is no moment at which all gradients are there, to have their norm
clipped or, in FP16, to be checked for overflow.

Lv et al. 2023, "Full Parameter Fine-tuning for LLMs with Limited Resources" (LOMO), arXiv:2306.09782.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ...catalog.errors import WorkbookError

Make = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


@dataclass(frozen=True, eq=False)
class InBackward:
    """The optimizers, one for each weight, and the hooks that call them; a learning rate is set in each of them."""

    optimizers: list[torch.optim.Optimizer]
    hooks: list[Any]

    def remove(self) -> None:
        """From now on gradients stay, and nobody steps."""
        for hook in self.hooks:
            hook.remove()


def step_in_backward(model: nn.Module, make: Make) -> InBackward:
    """Have every `backward()` through `model` update its weights and leave no gradient.

    `make([weight])` builds the optimizer of one weight. A weight that is used in several places (a tied embedding) has
    one gradient, and autograd calls its hook once, when all parts are added. Weights end up bit for bit as after an
    ordinary step with the same optimizer. Reentrant checkpointing of a weight used in several segments would call the
    hook for each: use `use_reentrant=False`.

    >>> layer = nn.Linear(2, 1)
    >>> handle = step_in_backward(layer, lambda weights: torch.optim.SGD(weights, lr=0.1))
    >>> layer(torch.ones(1, 2)).sum().backward()
    >>> layer.weight.grad is None
    True
    """
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    _require_own_storages(weights)
    made = {weight: make([weight]) for weight in weights}

    def step(weight: torch.Tensor) -> None:
        made[weight].step()  # type: ignore[index]
        weight.grad = None

    return InBackward(list(made.values()), [weight.register_post_accumulate_grad_hook(step) for weight in weights])


def _require_own_storages(weights: list[nn.Parameter]) -> None:
    if not weights:
        raise WorkbookError("a model that trains nothing", "weights with requires_grad", "unfreeze some")
    if len({weight.untyped_storage()._cdata for weight in weights}) < len(weights):
        what, expected = "two weights that show the same storage", "one Parameter, used in both places"
        raise WorkbookError(what, expected, "tie them: head.weight = embedding.weight")
