"""The catalogue's optimizers for the weights of a model, with those whose code is here."""

from __future__ import annotations

import torch
from torch import nn

from ...catalog.optimizers import LowRank, Optimizer
from ...catalog.optimizers import optimizer as rule_called
from ...memory.measure.optimizers import make_optimizer, rules_of
from .galore import Apollo, GaLore
from .lion import Lion


def make(name: str, weights: list[tuple[nn.Parameter, str]]) -> list[torch.optim.Optimizer]:
    """The optimizers of `name` for `weights` and their roles, as `measure.steps.trained_weights` gives them.

    Two of them where `name` is not made for every weight. To be passed to `measure.training_step` and `trace.train`.

    >>> weights = [(nn.Parameter(torch.ones(64, 32)), ""), (nn.Parameter(torch.ones(64)), "")]
    >>> [type(optimizer).__name__ for optimizer in make("galore:16", weights)]
    ['GaLore', 'AdamW']
    """
    parts = rules_of(rule_called(name), weights)
    return [_ours(rule, part) if rule.ours else make_optimizer(rule.name, iter(part)) for rule, part in parts.items()]


def _ours(rule: Optimizer, weights: list[nn.Parameter]) -> torch.optim.Optimizer:
    """A rank larger than a matrix's shorter side is that side there: there are no more directions."""
    if not isinstance(rule, LowRank):
        return Lion(weights)
    groups = [{"params": [weight], "rank": min(rule.rank, *weight.shape)} for weight in weights]
    if rule.projector:
        return GaLore(groups)
    return Apollo(groups, scale_by="tensor" if rule.rank == 1 else "channel")
