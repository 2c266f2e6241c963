"""A diffusion transformer's training step in closed form, and what a cache over denoising steps holds."""

from __future__ import annotations

from dataclasses import dataclass

from ...catalog.errors import WorkbookError, require_whole
from ..breakdown import rounded
from ..step.tape import Tensor
from .layers import FP32, INT64, Layers, StepBytes


@dataclass(frozen=True)
class DiTShape:
    """Images of `side` in patches of `patch`; each patch is a token."""

    side: int = 16
    channels: int = 4
    patch: int = 2
    hidden: int = 128
    layers: int = 4
    heads: int = 4
    ffn_factor: int = 4

    def __post_init__(self) -> None:
        for name in ("side", "channels", "patch", "hidden", "layers", "heads", "ffn_factor"):
            require_whole(name, getattr(self, name))
        if self.side % self.patch or self.hidden % (2 * self.heads):
            what = f"side {self.side} in patches of {self.patch}, hidden {self.hidden} of {self.heads} heads"
            expected = "a patch that divides the side, heads of an even width that divide hidden"
            raise WorkbookError(what, expected, "pass side=16, patch=2, hidden=128, heads=4")

    @property
    def tokens(self) -> int:
        return (self.side // self.patch) ** 2

    @property
    def ffn(self) -> int:
        return self.ffn_factor * self.hidden


def step_cache_bytes(shape: DiTShape, batch: int, width: int = FP32) -> int:
    """What a cache of every layer's attention and MLP holds from one denoising step to the next.

    DiT-XL/2 at 512 x 512 (latents of 64, so 1,024 tokens of 1,152 in 28 layers), two images for guidance, BF16:

    >>> step_cache_bytes(DiTShape(64, 4, 2, 1152, 28, 16), batch=2, width=2) / 2**20
    252.0
    """
    require_whole("batch", batch)
    return 2 * shape.layers * rounded(batch * shape.tokens * shape.hidden * width)


def dit_step(shape: DiTShape, batch: int) -> StepBytes:
    """Forward and backward of a DiT in FP32, the noise's gradient given."""
    require_whole("batch", batch)
    return _DiT(shape, batch).step()


class _DiT(Layers):
    """The code of `techniques.diffusion.dit`, on a tape."""

    def __init__(self, shape: DiTShape, batch: int) -> None:
        super().__init__()
        self.shape, self.batch, self.rows = shape, batch, batch * shape.tokens

    def forward(self) -> Tensor:
        shape = self.shape
        pixels = shape.channels * shape.patch**2
        self.given(self.batch * shape.channels * shape.side**2)
        self.given(self.batch, INT64)
        hidden = self.linear(self.new(self.rows * pixels, self.width), pixels, shape.hidden)
        hidden = self.add(hidden, *self.weights((shape.tokens, shape.hidden)))
        condition = self.linear(self.new(self.batch * shape.hidden, self.width), shape.hidden, shape.hidden)
        condition = self.linear(self.activation(condition), shape.hidden, shape.hidden)
        self.credit("patches and time")
        for layer in range(shape.layers):
            hidden = self.block(hidden, condition)
            self.credit(f"layer {layer + 1}")
        return self.linear(self.norm(hidden, self.rows), shape.hidden, pixels)

    def block(self, x: Tensor, condition: Tensor) -> Tensor:
        shape, hidden = self.shape, self.shape.hidden
        steering = self.linear(self.activation(condition), hidden, 6 * hidden)
        mixed = self.linear(self.steered(x, steering), hidden, 3 * hidden)
        mixed = self.self_attention(mixed, self.rows * shape.heads)
        x = self.gated(x, self.linear(mixed, hidden, hidden), steering)
        wide = self.activation(self.linear(self.steered(x, steering), hidden, shape.ffn))
        return self.gated(x, self.linear(wide, shape.ffn, hidden), steering)

    def steered(self, x: Tensor, steering: Tensor) -> Tensor:
        """norm(x) * (1 + scale) + shift"""
        each = steering.values // 6
        scale = self.add(self.part(steering, each))
        shift = self.part(steering, each)
        return self.add(self.mul(self.norm(x, self.rows), scale), shift)

    def gated(self, x: Tensor, branch: Tensor, steering: Tensor) -> Tensor:
        return self.add(x, self.mul(self.part(steering, steering.values // 6), branch))
