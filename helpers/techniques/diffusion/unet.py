"""A small U-Net as diffusion models have it: residual blocks at falling resolutions, attention at some, and skips.

Every block's output on the way down is kept until its twin on the way up joins it, in the forward as well: that is what
tells a U-Net from a stack of layers, and why its memory does not fall when nothing is trained.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from ...memory.other_shapes.unet import UNetShape


class ResidualBlock(nn.Module):
    """Two convolutions; the time is added between them."""

    def __init__(self, inputs: int, outputs: int, time: int, groups: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(groups, inputs), nn.Conv2d(inputs, outputs, 3, padding=1)
        self.time = nn.Linear(time, outputs)
        self.norm2, self.conv2 = nn.GroupNorm(groups, outputs), nn.Conv2d(outputs, outputs, 3, padding=1)
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        hidden = self.conv1(functional.silu(self.norm1(x)))
        hidden = hidden + self.time(functional.silu(time))[:, :, None, None]
        return self.skip(x) + self.conv2(functional.silu(self.norm2(hidden)))


class PixelAttention(nn.Module):
    """Every pixel attends to every other."""

    def __init__(self, channels: int, heads: int, groups: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.qkv = nn.GroupNorm(groups, channels), nn.Linear(channels, 3 * channels)
        self.out = nn.Linear(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        batch, channels, height, width = x.shape
        tokens = self.norm(x).flatten(2).transpose(1, 2).contiguous()
        qkv = self.qkv(tokens).view(batch, height * width, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, -1, channels)
        return x + self.out(mixed).transpose(1, 2).reshape(x.shape)


class UNet(nn.Module):
    """Predicts the noise in `x` (batch, channels, side, side) at `steps` (batch,)."""

    def __init__(self, shape: UNetShape) -> None:
        super().__init__()
        self.shape, time, groups = shape, shape.time_width, shape.groups
        self.time = nn.Sequential(nn.Linear(shape.base, time), nn.SiLU(), nn.Linear(time, time))
        self.first = nn.Conv2d(shape.channels, shape.base, 3, padding=1)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        for one in shape.down:
            self.down.append(self._stage(one.inputs, one.outputs, one.attends))
        middle = shape.widths[-1]
        self.middle = nn.ModuleList([ResidualBlock(middle, middle, time, groups) for _ in range(2)])
        for one in shape.up:
            self.up.append(self._stage(one.inputs, one.outputs, one.attends))
        self.shrink = nn.ModuleList(nn.Conv2d(w, w, 3, stride=2, padding=1) for w in shape.widths[:-1])
        self.grow = nn.ModuleList(nn.Conv2d(w, w, 3, padding=1) for w in reversed(shape.widths[1:]))
        self.norm, self.last = nn.GroupNorm(groups, shape.base), nn.Conv2d(shape.base, shape.channels, 3, padding=1)

    def _stage(self, inputs: int, outputs: int, attends: bool) -> nn.ModuleList:
        shape = self.shape
        blocks: list[nn.Module] = [ResidualBlock(inputs, outputs, shape.time_width, shape.groups)]
        if attends:
            blocks.append(PixelAttention(outputs, shape.heads, shape.groups))
        return nn.ModuleList(blocks)

    def forward(self, x: Tensor, steps: Tensor) -> Tensor:
        time = self.time(sinusoids(steps, self.shape.base))
        hidden, skips = self.first(x), []
        for level, (stage, one) in enumerate(zip(self.down, self.shape.down, strict=True)):
            hidden = run_stage(stage, hidden, time)
            skips.append(hidden)
            if one.last_of_level and level < len(self.down) - 1:
                hidden = self.shrink[one.level](hidden)
        for block in self.middle:
            hidden = block(hidden, time)
        for stage, one in zip(self.up, self.shape.up, strict=True):
            hidden = run_stage(stage, torch.cat([hidden, skips.pop()], 1), time)
            if one.last_of_level and one.level:
                hidden = self.grow[len(self.grow) - one.level](functional.interpolate(hidden, scale_factor=2.0))
        return self.last(functional.silu(self.norm(hidden)))


def run_stage(stage: nn.Module, hidden: Tensor, time: Tensor) -> Tensor:
    for block in stage.children():
        hidden = block(hidden, time) if isinstance(block, ResidualBlock) else block(hidden)
    return hidden


def sinusoids(steps: Tensor, width: int) -> Tensor:
    """A denoising step's number as sines and cosines of `width` / 2 frequencies."""
    frequencies = torch.exp(torch.arange(width // 2) * (-math.log(10_000) / (width // 2)))
    angles = steps[:, None] * frequencies[None]
    return torch.cat([angles.sin(), angles.cos()], 1)
