"""A U-Net's training step in closed form: what is saved at each resolution, and the peak."""

from __future__ import annotations

from dataclasses import dataclass

from ...catalog.errors import WorkbookError, require_whole
from ..step.tape import Tensor
from .layers import INT64, Layers, StepBytes

TIME_FACTOR = 4


@dataclass(frozen=True)
class UnetBlock:
    """A residual block, with attention behind it where it `attends`; level 0 is the full resolution."""

    level: int
    inputs: int
    outputs: int
    attends: bool
    last_of_level: bool


@dataclass(frozen=True)
class UNetShape:
    """`widths` are the channels of each level, from the full resolution down; each level halves height and width."""

    side: int = 32
    channels: int = 3
    widths: tuple[int, ...] = (32, 64, 128)
    blocks: int = 2
    heads: int = 4
    groups: int = 8
    attention_levels: tuple[int, ...] = (2,)

    def __post_init__(self) -> None:
        for name in ("side", "channels", "blocks", "heads", "groups"):
            require_whole(name, getattr(self, name))
        if not self.widths or self.side % 2 ** (len(self.widths) - 1):
            what, expected = f"side {self.side} for widths {self.widths}", "a side that each level but the last halves"
            raise WorkbookError(what, expected, "pass a power of 2, as side=32")
        for width in self.widths:
            require_whole("a width", width)
            if width % self.groups or width % self.heads or width % 2:
                what = f"a width of {width} for {self.groups} groups and {self.heads} heads"
                raise WorkbookError(what, "an even width that both divide", "pass widths such as (32, 64, 128)")

    @property
    def base(self) -> int:
        return self.widths[0]

    @property
    def time_width(self) -> int:
        return TIME_FACTOR * self.base

    @property
    def down(self) -> tuple[UnetBlock, ...]:
        """The stages in the order in which they run."""
        entries = (self.base, *self.widths[:-1])
        return tuple(
            UnetBlock(level, entry if block == 0 else width, width, self._attends(level), block == self.blocks - 1)
            for level, (entry, width) in enumerate(zip(entries, self.widths, strict=True))
            for block in range(self.blocks)
        )

    @property
    def up(self) -> tuple[UnetBlock, ...]:
        """From the lowest resolution back; each takes the output of its twin on the way down beside its input."""
        back = self.down[::-1]
        entries = (self.widths[-1], *(stage.outputs for stage in back))
        levels = (*(stage.level for stage in back[1:]), -1)
        return tuple(
            UnetBlock(twin.level, entry + twin.outputs, twin.outputs, twin.attends, after != twin.level)
            for twin, entry, after in zip(back, entries, levels, strict=False)
        )

    def _attends(self, level: int) -> bool:
        return level in self.attention_levels


def unet_step(shape: UNetShape, batch: int) -> StepBytes:
    """Forward and backward of a U-Net in FP32, the noise's gradient given. WorkbookError for a batch below 1.

    `by_part` is what is saved at each resolution, "32 x 32" first, and "time".
    """
    require_whole("batch", batch)
    return _UNet(shape, batch).step()


class _UNet(Layers):
    """The code of `techniques.diffusion.unet`, on a tape."""

    def __init__(self, shape: UNetShape, batch: int) -> None:
        super().__init__()
        self.shape, self.batch = shape, batch

    def forward(self) -> Tensor:
        shape, batch = self.shape, self.batch
        self.given(batch, INT64)
        time = self.linear(self.new(batch * shape.base, self.width), shape.base, shape.time_width)
        time = self.linear(self.activation(time), shape.time_width, shape.time_width)
        self.credit("time")
        pixels = batch * shape.side**2
        hidden = self.conv(self.given(pixels * shape.channels), shape.channels, shape.base, 3)
        skips: list[Tensor] = []
        for stage in shape.down:
            hidden = self.blocks_of(hidden, time, stage)
            skips.append(hidden)
            self.credit(self._resolution(stage.level))
            if stage.last_of_level and stage.level < len(shape.widths) - 1:
                hidden = self.conv(hidden, stage.outputs, stage.outputs, 3, stride=2)
        for _ in range(2):
            hidden = self.residual(hidden, time, shape.widths[-1], shape.widths[-1])
        for stage in shape.up:
            hidden = self.blocks_of(self.joined(hidden, skips.pop()), time, stage)
            self.credit(self._resolution(stage.level))
            if stage.last_of_level and stage.level:
                hidden = self.resized(hidden, 4 * hidden.values)
                hidden = self.conv(hidden, stage.outputs, stage.outputs, 3)
        hidden = self.activation(self.norm(hidden, batch * shape.groups, shape.base))
        hidden = self.conv(hidden, shape.base, shape.channels, 3)
        self.credit(self._resolution(0))
        return hidden

    def _resolution(self, level: int) -> str:
        side = self.shape.side // 2**level
        return f"{side} x {side}"

    def blocks_of(self, x: Tensor, time: Tensor, stage: UnetBlock) -> Tensor:
        hidden = self.residual(x, time, stage.inputs, stage.outputs)
        return self.pixel_attention(hidden, stage.outputs) if stage.attends else hidden

    def residual(self, x: Tensor, time: Tensor, inputs: int, outputs: int) -> Tensor:
        rows = self.batch * self.shape.groups
        hidden = self.conv(self.activation(self.norm(x, rows, inputs)), inputs, outputs, 3)
        hidden = self.add(hidden, self.linear(self.activation(time), self.shape.time_width, outputs))
        skip = self.conv(x, inputs, outputs, 1) if inputs != outputs else x
        return self.add(skip, self.conv(self.activation(self.norm(hidden, rows, outputs)), outputs, outputs, 3))

    def pixel_attention(self, x: Tensor, channels: int) -> Tensor:
        tokens = self.copy(self.norm(x, self.batch * self.shape.groups, channels))
        rows = self.shape.heads * x.values // channels
        mixed = self.self_attention(self.linear(tokens, channels, 3 * channels), rows)
        return self.add(x, self.reordered(self.linear(mixed, channels, channels)))
