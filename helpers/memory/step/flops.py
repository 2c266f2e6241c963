"""FLOPs of a training step, and what checkpointing adds to them: counted where the tape runs its products. No torch.

They are counted as PyTorch's `torch.utils.flop_counter` counts: matrix products and attention, a multiply and an add
each, nothing taken off for a causal mask. A recomputation stops at the last tensor that the backward needs, so the
product that ends a segment is not run again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...catalog.policies import Segment
from ...catalog.train_setup import TrainSetup
from .decoders.families import decoder
from .decoders.linears import StepWidths
from .layer_run import AGAIN, LayerRun, run_layer
from .operators import Operators
from .refusals import require_page

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
    """FLOPs of one rank's step, all its micro-batches, without the optimizer's. The ranks share none of them.

    A frozen weight takes no product for its gradient. Routed experts are the `experts_per_token` of each token.

    Llama-2-7B, 2048 tokens, "full": 29.3 TFLOP forward, 22.8 of them again: a step costs 1.26 times as much, not 1.33.
    Mixtral-8x7B: 54.4 TFLOP forward; were each token in all of its experts, 193.
    """
    require_page(setup)
    recomputes = setup.checkpointing != "none"
    layers = [
        run_layer(setup, layer, "none", bool(at) or recomputes or not setup.adapter)
        for at, layer in enumerate(setup.model.layers)
    ]
    head = _head(setup)
    forward = head[0] + sum(layer.flops for layer in layers)
    backward = head[1] + sum(layer.backward_flops for layer in layers)
    recomputed = sum(_again(setup, segment, layers) for segment in setup.segments)
    passes = setup.micro_batches
    return StepFlops(passes * forward, passes * backward, passes * recomputed)


def _head(setup: TrainSetup) -> tuple[int, int]:
    """Of the forward and the backward outside of the layers: `lm_head`, and OPT's way to and from its embeddings."""
    tape, model = Operators(), setup.model
    loss = decoder(setup, tape).loss(tape.leaf(setup.tokens * model.hidden, StepWidths.of(setup).residual))
    forward = tape.flops
    assert loss.node
    tape.backward(loss.node, loss.values, loss.width)
    beside = sum(2 * setup.tokens * projection.weights for projection in model.projections)
    return forward + beside, tape.flops - forward + (1 if setup.adapter else 2) * beside


def _again(setup: TrainSetup, segment: Segment, layers: Sequence[LayerRun]) -> int:
    """A segment runs again up to its last layer's last saved tensor; one with parts, up to its last part's input."""
    if segment.parts:
        before = layers[segment.start : segment.parts[-1].start]
        return sum(layer.flops for layer in before) + sum(_again(setup, part, layers) for part in segment.parts)
    if segment.how in ("none", "offload"):
        return 0
    last = segment.stop - 1
    whole = segment.how in ("full", "offload:inputs")
    run = run_layer(setup, setup.model.layers[last], AGAIN if whole else segment.how)
    earlier = sum(layer.flops for layer in layers[segment.start : last])
    return earlier + (run.flops_until_last_kept if whole else run.flops_again)
