"""A small diffusion transformer (DiT): patches as tokens, and layers whose norms are steered by the denoising step."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from ...memory.other_shapes.dit import DiTShape
from .step_cache import StepCache
from .unet import sinusoids


class DiTBlock(nn.Module):
    """Attention and an MLP; shift, scale and gate of each come from the condition (adaLN)."""

    def __init__(self, hidden: int, heads: int, ffn: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = (nn.LayerNorm(hidden, elementwise_affine=False) for _ in range(2))
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, ffn), nn.Linear(ffn, hidden)
        self.steer = nn.Linear(hidden, 6 * hidden)

    def forward(self, x: Tensor, condition: Tensor, cache: StepCache | None = None, layer: int = 0) -> Tensor:
        steering = self.steer(functional.silu(condition)).unsqueeze(1).chunk(6, dim=-1)
        shift1, scale1, gate1, shift2, scale2, gate2 = steering
        kept = cache or StepCache.off()
        x = x + gate1 * kept(layer, "attention", lambda: self.attention(self.norm1(x) * (1 + scale1) + shift1))
        return x + gate2 * kept(layer, "mlp", lambda: self.mlp(self.norm2(x) * (1 + scale2) + shift2))

    def attention(self, x: Tensor) -> Tensor:
        batch, tokens, hidden = x.shape
        q, k, v = self.qkv(x).view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(q, k, v)
        return self.out(mixed.transpose(1, 2).reshape(batch, tokens, hidden))

    def mlp(self, x: Tensor) -> Tensor:
        return self.down(functional.gelu(self.up(x), approximate="tanh"))


class DiT(nn.Module):
    """Predicts the noise in `x` (batch, channels, side, side) at `steps` (batch,)."""

    def __init__(self, shape: DiTShape) -> None:
        super().__init__()
        self.shape = shape
        hidden, pixels = shape.hidden, shape.channels * shape.patch**2
        self.patch = nn.Linear(pixels, hidden)
        self.positions = nn.Parameter(torch.zeros(1, shape.tokens, hidden))
        self.time = nn.Sequential(nn.Linear(hidden, hidden), nn.SiLU(), nn.Linear(hidden, hidden))
        self.blocks = nn.ModuleList(DiTBlock(hidden, shape.heads, shape.ffn) for _ in range(shape.layers))
        self.norm, self.last = nn.LayerNorm(hidden, elementwise_affine=False), nn.Linear(hidden, pixels)

    def forward(self, x: Tensor, steps: Tensor, cache: StepCache | None = None) -> Tensor:
        """The noise, as patches (batch, tokens, pixels). `cache` keeps what layers computed for later steps."""
        side, patch = self.shape.side // self.shape.patch, self.shape.patch
        patches = x.unflatten(3, (side, patch)).unflatten(2, (side, patch)).permute(0, 2, 4, 1, 3, 5).flatten(3)
        hidden = self.patch(patches.reshape(len(x), side * side, -1)) + self.positions
        condition = self.time(sinusoids(steps, self.shape.hidden))
        for layer, block in enumerate(self.blocks):
            hidden = block(hidden, condition, cache, layer)
        return self.last(self.norm(hidden))
