"""FLOPs of a training step, and what checkpointing adds to them: counted where the tape runs its products. No torch.

They are counted as PyTorch's `torch.utils.flop_counter` counts: matrix products and attention, a multiply and an add
each, nothing taken off for a causal mask. A recomputation stops at the last tensor that the backward needs, so the
product that ends a segment is not run again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from ...catalog.layers import Attention
from ...catalog.train_setup import TrainSetup
from .chain import Chain
from .decoders.attending import FUSED
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
    rows = setup.micro_batch if setup.adapter is None or setup.adapter.kind == "lora" else 1
    one = _of_one_pass(replace(setup, micro_batch=setup.micro_batch // rows, micro_batches=1))
    times = rows * setup.micro_batches
    return StepFlops(times * one.forward, times * one.backward, times * one.recomputed)


@lru_cache(256)
def _of_one_pass(setup: TrainSetup) -> StepFlops:
    """Of a micro-batch; rows of it take equally many, but for products of weights alone, as DoRA's norms have them."""
    chain = _Products(setup)
    beside = sum(2 * setup.tokens * projection.weights for projection in setup.model.projections)  # OPT's embeddings
    forward, backward = chain.flops + beside, chain.backward_flops + (1 if setup.adapter else 2) * beside
    return StepFlops(forward, backward, chain.flops_again)


class _Products(Chain):
    """A step of which FLOPs alone are asked, by the fused kernel's count on every card."""

    def _weights(self) -> None:
        """What is trained takes no FLOPs here."""

    def kernel_of(self, attention: Attention) -> str:
        return FUSED
