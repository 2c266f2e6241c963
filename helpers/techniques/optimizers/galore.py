"""GaLore and APOLLO: Adam's moments in a space of `rank` directions, and what leads there.

The shorter side of the gradient of a matrix [n, m] is projected to `rank`, and the moments have that size: 2 x rank x
max(n, m) values in place of 2 x n x m. GaLore leads the update back through the same projection. It finds that by a
singular value decomposition, anew at every `every`-th step, and must keep it in between: rank x min(n, m) values more,
which are state, though galore-torch hides them in an object. APOLLO draws its projection at random from a seed, which
is all that it keeps, and takes from the small space only a factor for each row or column of the full gradient
(`scale_by="tensor"`: one factor for all, and with rank 1 that is APOLLO-mini).

Zhao et al. 2024, "GaLore", arXiv:2403.03507, as galore-torch 1.0; Zhu et al. 2024, "APOLLO", arXiv:2412.05270.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from ...catalog.errors import require_name, require_whole
from .base import TensorOptimizer, require_matrix

SCALES = ("channel", "tensor")
GROWTH = 1.01  # the most by which an update of APOLLO may grow from one step to the next


class _LowRank(TensorOptimizer):
    def __init__(self, parameters: Iterable[Any], lr: float, rank: int, every: int, **settings: Any) -> None:
        require_whole("rank", rank)
        require_whole("every", every)
        super().__init__(parameters, lr, rank=rank, every=every, **settings)
        for group in self.param_groups:
            for weight in group["params"]:
                most = min(require_matrix(weight, type(self).__name__).shape)
                require_whole("rank", group["rank"], 1, most, do=f"pass rank={most} or less, or leave the matrix out")

    def begin(self, weight: Tensor, group: dict[str, Any]) -> dict[str, Any]:
        rows, columns = weight.shape
        shape = (rows, group["rank"]) if rows >= columns else (group["rank"], columns)
        return {name: weight.new_zeros(shape) for name in ("mean", "mean_square")}

    def adam(self, small: Tensor, state: dict[str, Any], group: dict[str, Any]) -> tuple[Tensor, float]:
        """Adam's update in the small space without its bias correction, and the learning rate that contains it."""
        (first, second), step = group["betas"], state["step"]
        mean = state["mean"].mul_(first).add_(small, alpha=1 - first)
        mean_square = state["mean_square"].mul_(second).addcmul_(small, small, value=1 - second)
        rate = group["lr"] * math.sqrt(1 - second**step) / (1 - first**step)
        return mean / mean_square.sqrt().add_(group["eps"]), rate


class GaLore(_LowRank):
    """Adam on projected gradients. State: two moments of rank x max(n, m), and a projector of rank x min(n, m)."""

    def __init__(
        self,
        parameters: Iterable[Any],
        lr: float = 1e-3,
        rank: int = 128,
        every: int = 200,
        scale: float = 0.25,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(parameters, lr, rank, every, scale=scale, betas=betas, eps=eps, weight_decay=weight_decay)

    def update(self, weight: Tensor, grad: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        if (state["step"] - 1) % group["every"] == 0:
            state["projector"] = main_directions(grad, group["rank"])
        moved, rate = self.adam(projected(grad, state["projector"]), state, group)
        weight.add_(led_back(moved, state["projector"]) * group["scale"], alpha=-rate)
        weight.add_(weight, alpha=-group["lr"] * group["weight_decay"])


class Apollo(_LowRank):
    """Raw gradients, scaled as Adam would scale their random projection. State: two moments of rank x max(n, m)."""

    def __init__(
        self,
        parameters: Iterable[Any],
        lr: float = 1e-3,
        rank: int = 128,
        every: int = 200,
        scale: float = 1.0,
        scale_by: str = "channel",
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        seed: int = 0,
    ) -> None:
        require_name("scale_by", scale_by, SCALES)
        settings = {"scale": scale, "scale_by": scale_by, "seed": seed, "betas": betas, "eps": eps}
        super().__init__(parameters, lr, rank, every, weight_decay=weight_decay, **settings)

    def begin(self, weight: Tensor, group: dict[str, Any]) -> dict[str, Any]:
        number = len(self.state)  # 1 for the first tensor: no two are projected alike
        return super().begin(weight, group) | {"seed": group["seed"] + number, "norm": None}

    def update(self, weight: Tensor, grad: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        turn = (state["step"] - 1) // group["every"]
        small = projected(grad, random_directions(grad, group["rank"], state["seed"] + turn * 2**32))
        moved, rate = self.adam(small, state, group)
        along = None if group["scale_by"] == "tensor" else int(grad.shape[0] >= grad.shape[1])
        factor = moved.norm(dim=along, keepdim=True) / (small.norm(dim=along, keepdim=True) + 1e-8)
        scaled = limited(grad * factor, state)
        weight.add_(scaled * math.sqrt(group["scale"]), alpha=-rate)
        weight.add_(weight, alpha=-group["lr"] * group["weight_decay"])


def main_directions(grad: Tensor, rank: int) -> Tensor:
    """The `rank` main directions of the shorter side: [rank, m] of a tall matrix, [n, rank] of a wide one.

    Copied, for a slice would keep the whole factor of the decomposition alive, as galore-torch's does in FP32.
    """
    left, _, right = torch.linalg.svd(grad.float(), full_matrices=False)
    found = right[:rank] if grad.shape[0] >= grad.shape[1] else left[:, :rank]
    return found.to(grad.dtype, copy=True, memory_format=torch.contiguous_format)


def random_directions(grad: Tensor, rank: int, seed: int) -> Tensor:
    """As `main_directions` in shape, drawn from `seed`: nothing has to be kept to have it again."""
    rows, columns = grad.shape
    shape = (rank, columns) if rows >= columns else (rows, rank)
    generator = torch.Generator(grad.device).manual_seed(seed)
    return torch.randn(shape, generator=generator, device=grad.device).div_(math.sqrt(rank)).to(grad.dtype)


def projected(grad: Tensor, directions: Tensor) -> Tensor:
    """[n, rank] of a tall matrix [n, m], [rank, m] of a wide one."""
    return grad @ directions.T if grad.shape[0] >= grad.shape[1] else directions.T @ grad


def led_back(small: Tensor, directions: Tensor) -> Tensor:
    """The matrix [n, m] that an update of `projected`'s shape stands for."""
    return small @ directions if directions.shape[0] == small.shape[1] else directions @ small


def limited(scaled: Tensor, state: dict[str, Any]) -> Tensor:
    """`scaled`, no more than 1 % larger in norm than the step before: APOLLO's guard against sudden updates."""
    norm, before = torch.linalg.vector_norm(scaled, dtype=torch.float32), state["norm"]
    limit = 1.0 if before is None else (norm / (before + 1e-8)).clamp(min=GROWTH) / GROWTH
    state["norm"] = norm / limit
    return scaled / limit
