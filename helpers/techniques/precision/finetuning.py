"""A short training run in which the precision of gradients or of weights decides what is learnt.

A model whose weights were rounded to four levels is worse than before, and some steps of training mend a part of it.
What arithmetic those steps are done in is the only difference between two runs on the same batches.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .loss_scaling import LossScaler

GROUP = 64


@torch.no_grad()
def rounded_to_2_bits(model: nn.Module) -> nn.Module:
    """A copy of `model` whose linear layers have four levels for each 64 weights: -3/4, -1/4, 1/4, 3/4 of the largest.

    No level is zero, so that no weight is: the spacing of BF16 grows with a number's size, and a zero moves at once.
    """
    made = copy.deepcopy(model)
    for layer in made.modules():
        if isinstance(layer, nn.Linear):
            groups = layer.weight.reshape(-1, GROUP)
            step = groups.abs().amax(-1, keepdim=True) / 2
            levels = (groups / step).floor().clamp(-2, 1) + 0.5
            layer.weight.copy_((levels * step).reshape(layer.weight.shape))
    return made


def finetune(
    model: nn.Module,
    batches: Iterable[Tensor],
    optimizer: Optimizer,
    scaler: LossScaler | None = None,
    autocast: torch.dtype | None = None,
    micro_batches: int = 1,
) -> float:
    """One step for each of `batches` (token ids [rows, words]); the share of weights without gradient in the last.

    The loss is that of one of `micro_batches` which are accumulated, and so is divided by their number. The others are
    left out: SGD with a learning rate that is as many times larger makes of the one what they would make together.
    """
    for ids in batches:
        optimizer.zero_grad()
        with torch.autocast(ids.device.type, autocast, enabled=autocast is not None):
            loss = model(input_ids=ids, labels=ids, use_cache=False).loss / micro_batches
        if scaler is None:
            loss.backward()
            optimizer.step()
        else:
            scaler.scaled(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    grads = [weight.grad for weight in model.parameters() if weight.grad is not None]
    return sum(int((grad == 0).sum()) for grad in grads) / sum(grad.numel() for grad in grads)


def moved(model: nn.Module, start: nn.Module) -> float:
    """The share of weights that differ from those of `start`, both as BF16 keeps them."""
    pairs = list(zip(model.parameters(), start.parameters(), strict=True))
    changed = sum(int((weight.bfloat16() != before.bfloat16()).sum()) for weight, before in pairs)
    return changed / sum(weight.numel() for weight, _ in pairs)
