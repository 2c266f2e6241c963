"""Weights in BF16 that keep learning: stochastic rounding, Kahan's compensation, or a master copy in FP32.

Neighbouring BF16 numbers are 1/128 to 1/256 of their size apart. A step of Adam with a learning rate of 3e-5 on a
weight of 0.05 is 1/1,600 of it: less than half the distance, so weight plus step rounds back to the same weight, at
every step again. Something must remember what rounding cuts off: chance, on average; 2 bytes a weight; or 4.

Kahan 1965, "Further remarks on reducing truncation errors"; Zamirai et al. 2020, "Revisiting BFloat16 Training",
arXiv:2010.06192, which compares the first two; Micikevicius et al. 2017, "Mixed Precision Training", arXiv:1710.03740.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ...catalog.errors import WorkbookError, require_name, require_number

KEEPS = ("nothing", "stochastic", "kahan", "master")


def stochastically_rounded(x: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """FP32 `x` in BF16, up or down with the probability that makes its mean `x`.

    BF16 is the upper half of an FP32. Adding a random number of 16 bits to the lower half carries into the upper one
    as often as the lower half is large.
    """
    bits = x.contiguous().view(torch.int32)
    drawn = torch.randint(0, 2**16, x.shape, generator=generator, device=x.device, dtype=torch.int32)
    upper = ((bits + drawn) & -(2**16)).view(torch.float32)
    return upper.where(x.isfinite(), x).bfloat16()  # the carry would make a zero of some NaN


@dataclass(frozen=True, eq=False)
class KahanSum:
    """A sum in BF16 that remembers, in BF16 too, what its rounding cut off, and adds that the next time.

    >>> total = KahanSum(torch.tensor([1.0]).bfloat16(), torch.tensor([0.0]).bfloat16())
    >>> for _ in range(1000):
    ...     total.add_(torch.tensor([0.001]))
    >>> total.total
    tensor([2.], dtype=torch.bfloat16)
    """

    total: Tensor
    lost: Tensor

    def add_(self, x: Tensor) -> None:
        """Changes `total` and `lost` in place; the arithmetic between is FP32."""
        before, wanted = self.total.float(), self.lost.float() + x
        self.total.copy_(before + wanted)
        self.lost.copy_(wanted - (self.total.float() - before))

    @property
    def value(self) -> Tensor:
        return self.total.float() + self.lost.float()


class BF16Adam(torch.optim.Optimizer):
    """Adam over BF16 weights; `keep` is what remembers what a rounded weight has lost.

    "nothing" (0 bytes a weight), "stochastic" (0, chance), "kahan" (2, a compensation) or "master" (4, FP32 weights).
    `moments` is the type of both moments. In BF16 they halve, but the second one stops following the gradients: its
    change of 1 - 0.999 is less than its own half distance. Scores are read from `values`, not from the weights.
    """

    def __init__(
        self,
        parameters: Iterable[Any],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        keep: str = "nothing",
        seed: int = 0,
        moments: torch.dtype = torch.float32,
    ) -> None:
        self.keep = require_name("keep", keep, KEEPS)
        require_number("lr", lr, expected="a learning rate above 0", do="pass lr=3e-5")
        super().__init__(parameters, {"lr": lr, "betas": betas, "eps": eps, "moments": moments})
        weights = [weight for group in self.param_groups for weight in group["params"]]
        for weight in weights:
            if weight.dtype != torch.bfloat16:
                do = "call model.bfloat16() first, or use torch.optim.Adam"
                raise WorkbookError(f"a weight of {weight.dtype}", "weights of torch.bfloat16", do)
        self.generator = torch.Generator(weights[0].device).manual_seed(seed)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One step over all weights that have a gradient. A closure is not called."""
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    state = self.state[weight] or self._begin(weight, group["moments"])
                    self._add(weight, state, adam_update(state, weight.grad.float(), group))

    def _begin(self, weight: Tensor, moments: torch.dtype) -> dict[str, Any]:
        state = self.state[weight]
        state |= {"step": 0} | {name: torch.zeros_like(weight, dtype=moments) for name in ("mean", "mean_square")}
        if self.keep == "kahan":
            state["lost"] = torch.zeros_like(weight)
        if self.keep == "master":
            state["master"] = weight.float()
        return state

    def _add(self, weight: Tensor, state: dict[str, Any], update: Tensor) -> None:
        if self.keep == "nothing":
            weight.copy_(weight.float() + update)
        elif self.keep == "stochastic":
            weight.copy_(stochastically_rounded(weight.float() + update, self.generator))
        elif self.keep == "kahan":
            KahanSum(weight, state["lost"]).add_(update)
        else:
            weight.copy_(state["master"].add_(update))

    @torch.no_grad()
    def values(self, weight: Tensor) -> Tensor:
        """What training has made of `weight`, in FP32: the master, or weight and compensation together."""
        state = self.state.get(weight, {})
        if "master" in state:
            return state["master"].clone()
        return KahanSum(weight, state["lost"]).value if "lost" in state else weight.float()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As any optimizer's, but the states keep their type: torch casts them to the weight's, the master too."""
        super().load_state_dict(state_dict)
        weights = (weight for group in self.param_groups for weight in group["params"])
        for number, weight in enumerate(weights):
            for name, saved in state_dict["state"].get(number, {}).items():
                if isinstance(saved, Tensor):
                    self.state[weight][name] = saved.to(weight.device, copy=True)


def adam_update(state: dict[str, Any], grad: Tensor, group: dict[str, Any]) -> Tensor:
    """What Adam adds to a weight, in FP32; the moments in `state` move on, whatever their type."""
    state["step"] += 1
    (first, second), step = group["betas"], state["step"]
    mean = state["mean"].float().lerp(grad, 1 - first)
    mean_square = state["mean_square"].float().mul(second).addcmul(grad, grad, value=1 - second)
    state["mean"].copy_(mean)
    state["mean_square"].copy_(mean_square)
    deviation = (mean_square / (1 - second**step)).sqrt() + group["eps"]
    return mean / deviation * (-group["lr"] / (1 - first**step))


@torch.no_grad()
def with_values(model: nn.Module, optimizer: BF16Adam) -> nn.Module:
    """A copy of `model` in FP32 that holds `optimizer.values`: what perplexity is computed with."""
    scored = copy.deepcopy(model).float()
    for into, weight in zip(scored.parameters(), model.parameters(), strict=True):
        into.copy_(optimizer.values(weight))
    return scored
