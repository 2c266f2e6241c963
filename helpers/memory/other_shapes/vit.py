"""A vision transformer's training step in closed form, as Transformers runs it (ViTForImageClassification)."""

from __future__ import annotations

from dataclasses import dataclass

from ...catalog.errors import WorkbookError, require_whole
from ..step.tape import Tensor
from .layers import Layers, StepBytes


@dataclass(frozen=True)
class ViTShape:
    """Images of `side` in patches of `patch`, and a token for the class. The defaults are ViT-B/16."""

    side: int = 224
    patch: int = 16
    channels: int = 3
    hidden: int = 768
    layers: int = 12
    heads: int = 12
    ffn: int = 3072
    classes: int = 1000

    def __post_init__(self) -> None:
        for name in ("side", "patch", "channels", "hidden", "layers", "heads", "ffn", "classes"):
            require_whole(name, getattr(self, name))
        if self.side % self.patch or self.hidden % self.heads:
            what = f"side {self.side} in patches of {self.patch}, hidden {self.hidden} of {self.heads} heads"
            raise WorkbookError(what, "a patch that divides the side, heads that divide hidden", "pass patch=16")

    @property
    def tokens(self) -> int:
        return (self.side // self.patch) ** 2 + 1


def vit_step(shape: ViTShape, batch: int) -> StepBytes:
    """Forward and backward in FP32, the logits' gradient given; dropout is off."""
    require_whole("batch", batch)
    return _ViT(shape, batch).step()


class _ViT(Layers):
    def __init__(self, shape: ViTShape, batch: int) -> None:
        super().__init__()
        self.shape, self.batch, self.rows = shape, batch, batch * shape.tokens

    def forward(self) -> Tensor:
        shape, hidden = self.shape, self.shape.hidden
        pixels = self.batch * shape.side**2 * shape.channels
        patches = self.new((self.rows - self.batch) * hidden, self.width)
        weights = self.weights((hidden, shape.channels, shape.patch, shape.patch), (hidden,))
        patches = self.fused(patches, self.given(pixels), weights, ())
        first, positions = self.weights((1, 1, hidden), (1, shape.tokens, hidden))
        x = self.joined(Tensor(self.batch * hidden, self.width, None, first.node), patches)
        x = self.add(x, positions)
        del patches
        self.credit("patches")
        for layer in range(shape.layers):
            x = self.layer(x)
            self.credit(f"layer {layer + 1}")
        x = self.norm(x, self.rows, hidden)
        return self.linear(self.part(x, self.batch * hidden), hidden, shape.classes)

    def layer(self, x: Tensor) -> Tensor:
        hidden, rows = self.shape.hidden, self.rows * self.shape.heads
        normed = self.norm(x, self.rows, hidden)
        q, k, v = (self.linear(normed, hidden, hidden) for _ in range(3))
        del normed
        mixed = self.linear(self.attention(q, k, v, rows, ()), hidden, hidden)
        del q, k, v
        x = self.add(mixed, x)
        del mixed
        wide = self.activation(self.linear(self.norm(x, self.rows, hidden), hidden, self.shape.ffn))
        return self.add(self.linear(wide, self.shape.ffn, hidden), x)
