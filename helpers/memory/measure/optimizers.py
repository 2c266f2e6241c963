"""Optimizers of PyTorch, bitsandbytes and Transformers by the catalogue's names, for the weights of a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from ...catalog.errors import WorkbookError, require_package
from ...catalog.optimizers import Optimizer
from ...catalog.optimizers import optimizer as optimizer_rule
from ...catalog.registered import registered

Role = str


def make_optimizers(name: str, weights: list[tuple[nn.Parameter, Role]]) -> list[torch.optim.Optimizer]:
    """The catalogue's optimizer `name` for weights of these roles: two where a rule leaves some to another's."""
    if optimizer_rule(name).ours:
        return registered("optimizer")(name, weights)
    return [make_optimizer(rule.name, iter(part)) for rule, part in rules_of(optimizer_rule(name), weights).items()]


def rules_of(rule: Optimizer, weights: list[tuple[nn.Parameter, Role]]) -> dict[Optimizer, list[nn.Parameter]]:
    """Which of the `weights` each rule updates: all of them `rule`, or some of them the one that it leaves them to."""
    parts: dict[Optimizer, list[nn.Parameter]] = {}
    for weight, role in weights:
        parts.setdefault(rule.rule_of(tuple(weight.shape), role), []).append(weight)
    return parts


def make_optimizer(name: str, parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
    """One optimizer for all `parameters`, its memory behaviour asked for by name and not left to a default."""
    makers: dict[str, Callable[[], torch.optim.Optimizer]] = {
        "sgd": lambda: torch.optim.SGD(parameters, lr=1e-3, foreach=True),
        "sgd-momentum": lambda: torch.optim.SGD(parameters, lr=1e-3, momentum=0.9, foreach=True),
        "adamw-foreach": lambda: torch.optim.AdamW(parameters, lr=1e-4, foreach=True),
        "adamw-fused": lambda: torch.optim.AdamW(parameters, lr=1e-4, fused=True),
        "adafactor": lambda: torch.optim.Adafactor(parameters, lr=1e-3),
        "adafactor-transformers": lambda: _transformers_adafactor(parameters),
        "muon": lambda: torch.optim.Muon(parameters, lr=1e-3),
        "lion-8bit": lambda: _bitsandbytes().Lion8bit(parameters, lr=1e-4),
        "adamw-32bit": lambda: _bitsandbytes().AdamW(parameters, lr=1e-4),
        "adamw-32bit-paged": lambda: _bitsandbytes().PagedAdamW(parameters, lr=1e-4),
        "adamw-8bit-paged-trainer": lambda: _bitsandbytes().PagedAdamW8bit(parameters, lr=1e-4),
        "adamw-8bit": lambda: _bitsandbytes().AdamW8bit(parameters, lr=1e-4),
        "adamw-8bit-trainer": lambda: _bitsandbytes().AdamW8bit(parameters, lr=1e-4),
        "adamw-8bit-paged": lambda: _bitsandbytes().PagedAdamW8bit(parameters, lr=1e-4),
    }
    if name not in makers:
        do = f"call make_optimizers({name!r}, weights), which knows helpers.techniques.optimizers"
        raise WorkbookError(f"{name} is of no library", "an optimizer of torch, bitsandbytes or Transformers", do)
    return makers[name]()


def _bitsandbytes() -> Any:
    do = "pip install --no-deps bitsandbytes, or choose optimizer='adamw-fused'"
    return require_package("bitsandbytes", "optimizers of 8 bits", do).optim


def _transformers_adafactor(parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
    from transformers.optimization import Adafactor

    return Adafactor(parameters, lr=1e-3, relative_step=False, scale_parameter=False)  # which would look at values
