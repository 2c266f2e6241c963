"""What a checkpointing policy keeps to the end of forward, what is there again when a layer's backward begins, and the
FLOPs that this takes. No torch.

A policy is segments (`setup.segments`). A segment that the backward has not reached holds what it stored; the one at
work has been run again, and inside it the same holds for its parts.

FLOPs are counted as PyTorch's `torch.utils.flop_counter` counts: matrix products and attention, a multiply and an add
each, nothing taken off for a causal mask. A recomputation stops at the last tensor that the backward needs, so the
product that ends a segment is not run again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...catalog.errors import WorkbookError
from ...catalog.layers import Layer, Linear
from ...catalog.policies import Segment
from ...catalog.setup import TrainSetup
from . import work

KEEPS_MATMULS = ("selective", "selective:matmuls")
EVERY_SECOND = "selective:every-second"
KEEPS_ATTENTION = ("selective", "selective:attention", EVERY_SECOND)
# What the backward of fused attention multiplies for each product of its forward: it makes the scores again, 5 for 2.
FUSED_BACKWARD = 5 / 2


def runs_products_again(setup: TrainSetup) -> bool:
    """Whether the backward runs some linear layer of the forward again."""
    return setup.checkpointing not in ("none", "offload", "selective", "selective:matmuls")


def reads_last_product(setup: TrainSetup, layer: Layer) -> bool:
    """Whether a recomputation runs a layer's last product too.

    Gemma-2 norms the output of its MLP, and saves it for that. A product in FP8 saves its operands when it is done.
    """
    return layer.norms == 4 or bool(setup.precision_recipe.linear_format)


def require_recomputing(setup: TrainSetup) -> None:
    """Refuse the policy whose peak has no closed form here: what an offload brings back depends on who asks when."""
    if setup.checkpointing == "offload":
        expected = "a policy that recomputes, or offload:inputs"
        do = "trace it with helpers.techniques.checkpointing.apply: helpers.memory.trace.train(setup, apply=apply)"
        raise WorkbookError("checkpointing is 'offload', whose peak has no closed form", expected, do)


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
    """FLOPs of one rank's step, all its micro-batches, without the optimizer's.

    Raises WorkbookError for routed experts and latent attention.

    Llama-2-7B, 2048 tokens, "full": 29.3 TFLOP forward, 22.8 of them again: a step costs 1.26 times as much, not 1.33.
    """
    if not setup.model.is_dense_decoder:
        what = f"{setup.model.name}'s FLOPs have no closed form here"
        do = "count them: helpers.techniques.checkpointing.flops_of"
        raise WorkbookError(what, "a dense decoder: routed experts and latent attention are not counted here", do)
    if setup.adapter:
        expected = "a step that trains all: a frozen weight needs no gradient, which is not counted here"
        raise WorkbookError(f"the FLOPs of {setup.adapter}", expected, "pass replace(setup, adapter=None)")
    each = {layer: LayerFlops.of(setup, layer) for layer in set(setup.model.layers)}
    tokens, passes = setup.tokens, setup.micro_batches
    layers = [each[layer] for layer in setup.model.layers]
    head = work.matmul(tokens, setup.model.vocab, setup.model.embedding_width).flops
    head += sum(_product(tokens, projection) for projection in setup.model.projections)
    forward = head + sum(layer.forward for layer in layers)
    backward = 2 * head + sum(layer.backward for layer in layers)
    recomputed = sum(_again(segment, layers) for segment in setup.segments)
    return StepFlops(passes * forward, passes * backward, passes * recomputed)


@dataclass(frozen=True)
class LayerFlops:
    """One decoder layer's forward by what a policy tells apart. `last` are the products that end attention and MLP.

    `second` are the linear layers at even places that a recomputation comes to: torchtitan's policy keeps the others.
    """

    attention_products: int
    attention_last: int
    kernel: int
    fused: bool
    mlp_products: int
    mlp_last: int
    second: int
    runs_last: bool

    @classmethod
    def of(cls, setup: TrainSetup, layer: Layer) -> LayerFlops:
        tokens, attention = setup.tokens, layer.attention
        kernel = work.attention(
            setup.sequence, setup.sequence, attention.heads, attention.head_dim, batch=setup.micro_batch
        )
        *reads, writes = (_product(tokens, linear) for linear in attention.linears)
        *wide, down = (_product(tokens, linear) for linear in layer.mlp.linears)
        runs_last = reads_last_product(setup, layer)
        return cls(
            sum(reads),
            writes,
            kernel.flops,
            setup.attention == "sdpa",
            sum(wide),
            down,
            sum([*reads, writes, *wide, *([down] if runs_last else [])][1::2]),
            runs_last,
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
            EVERY_SECOND: self.second + self.kernel - fused,
            "module:attention": self.attention_products + self.kernel,
            "module:mlp": self.mlp_products,
        }[how]


def _product(tokens: int, linear: Linear) -> int:
    return work.matmul(tokens, linear.outputs, linear.inputs).flops


def _again(segment: Segment, layers: Sequence[LayerFlops]) -> int:
    """A segment runs again up to its last layer's last saved tensor; one with parts, up to its last part's input."""
    if segment.parts:
        before = layers[segment.start : segment.parts[-1].start]
        return sum(layer.forward for layer in before) + sum(_again(part, layers) for part in segment.parts)
    *before, last = layers[segment.start : segment.stop]
    return sum(layer.forward for layer in before) + last.again(segment.how)
