"""A whole model with adapters: the layers that are named get one, and all the rest is frozen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ...catalog.errors import WorkbookError, require_name, unknown_name
from ..quantization.linears import dense_linears
from .dora import DoRALinear
from .lora import LoRALinear, require_adapter
from .qlora import FrozenNF4Linear, Linear

KINDS = {"lora": LoRALinear, "dora": DoRALinear}
BASES = ("nf4", "nf4-dq")


@dataclass(frozen=True, eq=False)
class Adapted:
    """The model, changed in place, and the parameters that it trains from now on."""

    model: nn.Module
    trainable: list[nn.Parameter]

    @property
    def trained_values(self) -> int:
        return sum(parameter.numel() for parameter in self.trainable)


def adapt(
    model: nn.Module,
    rank: int,
    targets: tuple[str, ...] = ("q_proj", "v_proj"),
    kind: str = "lora",
    base: str | None = None,
    alpha: float | None = None,
    dropout: float = 0.0,
    dtype: torch.dtype = torch.float32,
) -> Adapted:
    """`model`, in place, with an adapter beside every linear layer whose name ends in one of `targets`; all is frozen.

    `kind` is "lora" or "dora". `base` is what all linear layers but the output head become, adapted or not: None leaves
    them, "nf4" takes 4.5 bits a value, and "nf4-dq", with double quantization, 4.127. That is QLoRA.

    >>> adapt(model, rank=8).trained_values         # the small model: 4 layers x 8 x (192 + 192 + 192 + 64)
    20480
    """
    require_name("kind of adapter", kind, KINDS)
    if base is not None:
        require_name("base", base, BASES)
    names, alpha = target_names(model, targets), rank if alpha is None else alpha
    for name in names:  # before anything is changed
        require_adapter(model.get_submodule(name), rank, alpha, dropout)
    model.requires_grad_(False)
    if base is not None:
        for name, linear in dense_linears(model).items():
            model.set_submodule(name, FrozenNF4Linear.of(linear, double_quant=base == "nf4-dq"))
    for name in names:
        under: Any = model.get_submodule(name)
        adapter = KINDS[kind](under, rank, alpha, dropout=dropout, dtype=dtype)
        model.set_submodule(name, adapter.train(model.training))
    return Adapted(model, [parameter for parameter in model.parameters() if parameter.requires_grad])


def target_names(model: nn.Module, targets: tuple[str, ...]) -> list[str]:
    """The full names of the linear layers whose name ends in one of `targets`. WorkbookError for a target without."""
    linears = [name for name, module in model.named_modules() if isinstance(module, Linear)]
    endings = sorted({name.rpartition(".")[2] for name in linears})
    if isinstance(targets, str) or not targets:
        expected = "a tuple of names of linear layers"
        raise WorkbookError(f"targets is {targets!r}", expected, 'pass targets=("q_proj", "v_proj")')
    for target in targets:
        if target not in endings:
            raise unknown_name("target", target, endings)
    return [name for name in linears if name.rpartition(".")[2] in targets]


def adapters_of(model: nn.Module) -> Iterator[LoRALinear]:
    return (module for module in model.modules() if isinstance(module, LoRALinear))


def merge(model: nn.Module) -> None:
    """Merge every adapter of `model` into its base, in place."""
    for adapter in adapters_of(model):
        adapter.merge()


def unmerge(model: nn.Module) -> None:
    """Take every merged adapter of `model` off its base again, in place; see `LoRALinear.unmerge` for what stays."""
    for adapter in adapters_of(model):
        adapter.unmerge()
