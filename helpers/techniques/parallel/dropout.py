"""Dropout over several ranks: the same values are dropped as in one process, wherever they lie."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .operators import Group


class SplitDropout(nn.Module):
    """Dropout of a tensor that all ranks hold, or of which each rank holds a part along `dim`.

    Every rank draws the mask of the whole tensor, from a generator of its own with the same `seed`, and takes its part.
    So it drops what the unsplit layer drops (leave `group` out there), and what all ranks hold is the same on all of
    them afterwards. With `dim=1` a tensor of (2, 8, 16) on four ranks costs random numbers for (2, 32, 16). Megatron-LM
    draws for its part alone, from one of two generators: one has the same seed on every rank, the other does not.

    The trap is `nn.Dropout`, which draws from the process's generator. Where ranks hold parts, and all were seeded with
    one number, it drops the same places of every part. Where all ranks hold the same values, and each has a seed of its
    own, they disagree from there on. Neither raises an error.
    """

    def __init__(self, p: float, group: Group | None = None, dim: int | None = None, seed: int = 0) -> None:
        super().__init__()
        self.p, self.group, self.dim = p, group, dim
        self.numbers = torch.Generator().manual_seed(seed)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        kept = self.drawn(x.shape).to(x.device) >= self.p
        return x * kept / (1 - self.p)

    def drawn(self, shape: torch.Size) -> Tensor:
        """Numbers for a tensor of `shape`: this rank's part of those for the whole of it."""
        if self.group is None or self.dim is None:
            return torch.rand(shape, generator=self.numbers)
        ranks, whole = self.group.size(), list(shape)
        whole[self.dim] *= ranks
        return torch.rand(whole, generator=self.numbers).chunk(ranks, self.dim)[self.group.rank()]
