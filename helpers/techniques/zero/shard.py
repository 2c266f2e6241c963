"""One rank's part of a flat, as its optimizer sees it: perhaps in FP32, perhaps in host memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .collectives import all_reduce


class Shard:
    """`weights`, the part of the model that this rank updates, and the `parameter` that its optimizer works on.

    They are the same memory, unless `master` asks for a copy of higher precision, or `host` for one in host memory:
    then gradients go down to it and updated weights come up, both in the model's dtype, and are counted.
    """

    def __init__(self, weights: Tensor, master: torch.dtype | None = None, host: bool = False) -> None:
        self.weights, self.host = weights.detach(), host
        self.down_bytes = self.up_bytes = 0
        dtype = master or weights.dtype
        self.apart = host or dtype != weights.dtype
        kept = self.weights.to("cpu" if host else weights.device, dtype, copy=True) if self.apart else self.weights
        self.parameter = nn.Parameter(kept.pin_memory() if host and torch.cuda.is_available() else kept)

    def receive(self, gradient: Tensor) -> None:
        """Add an averaged gradient of the shard's length."""
        if self.host:
            self.down_bytes += gradient.nbytes
            gradient = gradient.to("cpu", copy=True)
        gradient = gradient.to(self.parameter.dtype)
        self.parameter.grad = gradient if self.parameter.grad is None else self.parameter.grad.add_(gradient)

    def publish(self) -> None:
        """Bring the updated values back to `weights`."""
        if self.apart:
            self.weights.copy_(self.parameter.detach())
        self.up_bytes += self.host * self.weights.nbytes


def clip_shards(shards: Sequence[Shard], limit: float) -> Tensor:
    """Scale the gradients so that their norm over all ranks is at most `limit`; return the norm as it was.

    Nobody has the whole gradient, and nobody needs it: one number from each rank is enough.
    """
    gradients = [shard.parameter.grad for shard in shards if shard.parameter.grad is not None]
    squares = sum((gradient.float().square().sum() for gradient in gradients), torch.zeros(()))
    squares = squares.to(shards[0].weights.device)
    all_reduce(squares)
    norm = squares.sqrt()
    scale = (limit / (norm + 1e-6)).clamp(max=1.0)  # no `if norm > limit`: a GPU would have to wait for the answer
    for gradient in gradients:
        gradient.mul_(scale.to(gradient.device))
    return norm
