"""FLOPs of a training step in closed form: forward, backward, and what checkpointing runs again. No torch.

Counted as PyTorch's `torch.utils.flop_counter` counts: matrix products and attention, a multiply and an add each,
nothing taken off for a causal mask. A recomputation stops at the last tensor that the backward needs, so the product
that ends a segment is not run again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...catalog.layers import Layer, Linear
from ...catalog.policies import Segment
from ...catalog.setup import TrainSetup
from . import work
from .activations import require_closed_form
from .recompute import reads_last_product

# What the backward of fused attention multiplies for each product of its forward: it makes the scores again, 5 for 2.
FUSED_BACKWARD = 5 / 2


@dataclass(frozen=True)
class StepFlops:
    """FLOPs of one step; `recomputed` is the bill of the policy.

    >>> StepFlops(forward=100, backward=200, recomputed=99).ratio
    1.33
    """

    forward: int
    backward: int
    recomputed: int

    @property
    def total(self) -> int:
        return self.forward + self.backward + self.recomputed

    @property
    def ratio(self) -> float:
        """FLOPs of the step for each FLOP without the policy: 4/3 is the folklore's one extra forward."""
        return self.total / (self.forward + self.backward)


def step_flops(setup: TrainSetup) -> StepFlops:
    """FLOPs of one rank's step, without the optimizer's. Raises WorkbookError for a model without a closed form.

    Llama-2-7B, 2048 tokens, "full": 29.3 TFLOP forward, 22.8 of them again: a step costs 1.26 times as much, not 1.33.
    """
    require_closed_form(setup)
    each, tokens = {layer: LayerFlops.of(setup, layer) for layer in set(setup.model.layers)}, _tokens(setup)
    layers = [each[layer] for layer in setup.model.layers]
    head = work.matmul(tokens, setup.model.vocab, setup.model.embedding_width).flops
    head += sum(_product(tokens, projection) for projection in setup.model.projections)
    forward = head + sum(layer.forward for layer in layers)
    backward = 2 * head + sum(layer.backward for layer in layers)
    return StepFlops(forward, backward, sum(_again(segment, layers) for segment in setup.segments))


@dataclass(frozen=True)
class LayerFlops:
    """One decoder layer's forward by what a policy tells apart. `last` are the products that end attention and MLP."""

    attention_products: int
    attention_last: int
    kernel: int
    fused: bool
    mlp_products: int
    mlp_last: int
    runs_last: bool

    @classmethod
    def of(cls, setup: TrainSetup, layer: Layer) -> LayerFlops:
        tokens, attention = _tokens(setup), layer.attention
        kernel = work.attention(
            setup.sequence, setup.sequence, attention.heads, attention.head_dim, batch=setup.micro_batch
        )
        *reads, writes = (_product(tokens, linear) for linear in attention.linears)
        *wide, down = (_product(tokens, linear) for linear in layer.mlp.linears)
        return cls(
            sum(reads), writes, kernel.flops, setup.attention == "sdpa", sum(wide), down, reads_last_product(layer)
        )

    @property
    def products(self) -> int:
        return self.attention_products + self.attention_last + self.mlp_products + self.mlp_last

    @property
    def forward(self) -> int:
        return self.products + self.kernel

    @property
    def backward(self) -> int:
        """Two products for each: the gradient of the input and that of the weight, or of both operands."""
        return 2 * self.products + int(self.kernel * (FUSED_BACKWARD if self.fused else 2))

    def again(self, how: str) -> int:
        """FLOPs that run again in the backward of this layer alone under `how`."""
        fused, stop = self.kernel if self.fused else 0, 0 if self.runs_last else self.mlp_last
        return {
            "none": 0,
            "offload": 0,
            "full": self.forward - stop,
            "offload:inputs": self.forward - stop,
            "selective": 0,
            "selective:matmuls": fused,
            "selective:attention": self.forward - stop - fused,
            "module:attention": self.attention_products + self.kernel,
            "module:mlp": self.mlp_products,
        }[how]


def _tokens(setup: TrainSetup) -> int:
    return setup.micro_batch * setup.sequence


def _product(tokens: int, linear: Linear) -> int:
    return work.matmul(tokens, linear.outputs, linear.inputs).flops


def _again(segment: Segment, layers: Sequence[LayerFlops]) -> int:
    """A segment runs again up to its last layer's last saved tensor; one with parts, up to its last part's input."""
    if segment.parts:
        before = layers[segment.start : segment.parts[-1].start]
        return sum(layer.forward for layer in before) + sum(_again(part, layers) for part in segment.parts)
    *before, last = layers[segment.start : segment.stop]
    return sum(layer.forward for layer in before) + last.again(segment.how)
