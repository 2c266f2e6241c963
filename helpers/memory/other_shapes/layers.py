"""Layers with weights of their own, on a tape: what vision and diffusion models are made of, forward and backward.

Sizes are those of tensors, FP32 unless a width is given; what a GPU's convolution takes as workspace is not in them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..breakdown import rounded
from ..step.operators import Operators
from ..step.tape import Tensor

FP32, INT64 = 4, 8


@dataclass(frozen=True)
class StepBytes:
    """A training step without an optimizer: weights, what is saved at the end of forward, and the peak of it all.

    The batch, and the gradient that the backward begins with, are among what is saved. `by_part` divides what the
    forward saves as the model is divided: a U-Net's by resolution, a transformer's by layer.
    """

    parameter_bytes: int
    saved_bytes: int
    peak_bytes: int
    by_part: dict[str, int]


class Layers(Operators):
    """Operators with weights, whose bytes add up in `parameter_bytes`; a model is a subclass with its `forward`."""

    def __init__(self, width: int = FP32) -> None:
        super().__init__()
        self.width, self.parameter_bytes = width, 0
        self.saved: dict[str, int] = {}
        self._inputs: list[Tensor] = []

    def given(self, values: int, width: int = FP32) -> Tensor:
        """What the step is given: an image, the number of a denoising step. The caller holds it until the end."""
        self._inputs.append(self.new(values, width))
        return self._inputs[-1]

    def forward(self) -> Tensor:
        """The model's own: returns what the backward begins with."""
        raise NotImplementedError

    def step(self) -> StepBytes:
        """Forward, then backward from a gradient as large as its result, which the caller holds until the end."""
        out = self.forward()
        node = out.node
        assert node is not None
        gradient = self.new(out.values, self.width)
        saved, forward_peak = self.live, self.highest.total
        self.backward(node, out.values, self.width, gradient)
        peak = max(forward_peak, self.highest.total)
        return StepBytes(self.parameter_bytes, saved, self.parameter_bytes + peak, self.saved)

    def credit(self, name: str) -> None:
        """What is alive, and was not at the last call, is saved by `name`."""
        self.saved[name] = self.saved.get(name, 0) + self.live - sum(self.saved.values())

    def weights(self, *shapes: Sequence[int]) -> list[Tensor]:
        made = [self.weight(shape, self.width) for shape in shapes]
        self.parameter_bytes += sum(rounded(one.values * one.width) for one in made)
        return made

    def fused(self, out: Tensor, x: Tensor, weights: Sequence[Tensor], kept: Sequence[Tensor]) -> Tensor:
        """One kernel with weights: its backward makes the gradients of all that want one, together."""
        inputs = (x, *weights)
        forms = [(one.values, one.width) if one.node else None for one in inputs]
        return self.record(out, inputs, kept, lambda gradient: [self.new(*form) if form else None for form in forms])

    def linear(self, x: Tensor, inputs: int, outputs: int) -> Tensor:
        out = self.new(x.values // inputs * outputs, self.width)
        return self.fused(out, x, self.weights((outputs, inputs), (outputs,)), (x,))

    def conv(self, x: Tensor, inputs: int, outputs: int, kernel: int, stride: int = 1) -> Tensor:
        """A convolution that keeps height and width, or divides both by `stride`."""
        out = self.new(x.values // inputs * outputs // stride**2, self.width)
        return self.fused(out, x, self.weights((outputs, inputs, kernel, kernel), (outputs,)), (x,))

    def norm(self, x: Tensor, rows: int, channels: int = 0) -> Tensor:
        """Layer or group norm, of `rows` groups of values; `channels` have a weight and a bias each, if any do."""
        out, mean, rstd = self.new(x.values, x.width), self.new(rows, FP32), self.new(rows, FP32)
        return self.fused(out, x, self.weights((channels,), (channels,)) if channels else (), (x, mean, rstd))

    def activation(self, x: Tensor) -> Tensor:
        return self.elementwise(x, kept=(x,))

    def self_attention(self, qkv: Tensor, rows: int) -> Tensor:
        """The fused kernel on views of one product; `rows` is heads times tokens. Their gradients are put in one."""
        views = self.shaped(Tensor(qkv.values, qkv.width, qkv.block), qkv)
        out, log_sum_exp = self.new(qkv.values // 3, qkv.width), self.new(rows, FP32)
        form = qkv.values, qkv.width
        return self.record(out, (views,), (views, out, log_sum_exp), lambda gradient: [self.new(*form)])

    def resized(self, x: Tensor, values: int) -> Tensor:
        """Nearest neighbours: keeps nothing, for it reads nothing in its backward."""
        return self.shaped(self.new(values, x.width), x)

    def reordered(self, x: Tensor) -> Tensor:
        """A view whose gradient comes in an order that the next product has to copy."""
        return self.shaped(Tensor(x.values, x.width, x.block), x)
