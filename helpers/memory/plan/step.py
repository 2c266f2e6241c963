"""How long a training step takes, part by part: products, links, the pipeline's bubble, the update. A roofline.

Products run at a share of the card's BF16 peak, in the stage with the most layers. Tensor, context and expert parallel
ranks wait for their links in every layer.
Gradients and weights travel while products run, at ZeRO stage 2 and 3 and in FSDP2 under all of them and else under the
last micro-batch; what does not fit under them is exposed. Left out: the data loader, checkpoints to disk, stragglers,
the hand-over between stages (one tensor of tokens x hidden for each).
"""

from __future__ import annotations

from dataclasses import dataclass

from ..step.ranks import megatron, zero
from ..step.ranks.fsdp2 import widths
from .machine import Cards
from .seconds import NOTHING, Efficiency, Seconds, added, at
from .training import Job, Layout, StepEngine, train_setup

BF16 = 2
# Passes of a layer's input over the tensor-parallel ranks: in the forward two gathers and two reduce-scatters, in the
# backward as many, and two gathers again for the weights' gradients (Korthikanti et al. 2022, section 4.2.2)
TENSOR_PASSES, AGAIN_PASSES = 10, 4
ALL_TO_ALLS = 4


@dataclass(frozen=True)
class StepSeconds:
    """Seconds of a step by what they go to; `total` is their sum, since only what is exposed is counted."""

    products: Seconds
    tensor_links: Seconds
    context_links: Seconds
    expert_links: Seconds
    bubble: Seconds
    data_links: Seconds
    update: Seconds
    host_link: Seconds

    @property
    def total(self) -> Seconds:
        return added(*self.parts.values())

    @property
    def parts(self) -> dict[str, Seconds]:
        """By the words that a reader sees."""
        return {
            "matrix products": self.products,
            "tensor-parallel links": self.tensor_links,
            "context-parallel links": self.context_links,
            "all-to-alls of experts": self.expert_links,
            "the pipeline's bubble": self.bubble,
            "exposed gradients and weights on the links": self.data_links,
            "the optimizer's update": self.update,
            "PCIe to the host": self.host_link,
        }

    @property
    def limit(self) -> str:
        """What takes most of the time."""
        return max(self.parts, key=lambda name: self.parts[name].middle)


def step_time(job: Job, layout: Layout, cards: Cards, rates: Efficiency) -> StepSeconds:
    """The interval of a step. Llama-3-8B, a batch of 4M tokens on 8 H100 with ZeRO-2: about a minute."""
    sequences = layout.micro_batch * layout.micro_batches  # that one rank sees
    flops = job.flops(layout)
    slowest = max(megatron.stage_layers(len(job.model.layers), layout.pipeline)) / len(job.model.layers)
    share = layout.tensor * layout.context / slowest
    peak = cards.device.flops_per_s("bf16")
    products = at(flops.total * sequences / share, peak, rates.training_flops)
    tensor = _tensor_links(job, layout, cards, rates)
    context = _context_links(job, layout, cards, rates)
    expert = _expert_links(job, layout, cards, rates)
    bubble = added(products, tensor, expert).times((layout.pipeline - 1) / layout.micro_batches)
    return StepSeconds(
        products,
        tensor,
        context,
        expert,
        bubble,
        _exposed(job, layout, cards, rates, products),
        _update(job, layout, cards, rates),
        _host_link(job, layout, cards, rates),
    )


def _tensor_links(job: Job, layout: Layout, cards: Cards, rates: Efficiency) -> Seconds:
    if layout.tensor == 1:
        return NOTHING
    return at(tensor_sent_bytes(job, layout), cards.link_bytes_per_s(layout.tensor), rates.link)


def tensor_sent_bytes(job: Job, layout: Layout) -> float:
    """What a rank sends in a step to those that share its layers: gathers and reduce-scatters, of BF16 tokens."""
    layers = len(job.model.layers) / layout.pipeline
    tokens = job.sequence // layout.context * layout.micro_batch * layout.micro_batches
    passes = TENSOR_PASSES + (AGAIN_PASSES if layout.checkpointing != "none" else 0)
    each = BF16 * tokens * job.model.hidden * (layout.tensor - 1) / layout.tensor
    return passes * layers * each


def _context_links(job: Job, layout: Layout, cards: Cards, rates: Efficiency) -> Seconds:
    """K and V of the other ranks pass by in every layer, forward, and with their gradients backward; half is hidden."""
    if layout.context == 1:
        return NOTHING
    attention, layers = job.model.layers[0].attention, len(job.model.layers) / layout.pipeline
    values = 2 * attention.kv_heads * attention.head_dim / layout.tensor * job.sequence
    moved = BF16 * values * (layout.context - 1) / layout.context * layers * layout.micro_batch * layout.micro_batches
    all_of_it = at(3 * moved, cards.link_bytes_per_s(layout.context, layout.tensor), rates.link)
    return Seconds(0.0, all_of_it.middle / 2, all_of_it.high)


def _expert_links(job: Job, layout: Layout, cards: Cards, rates: Efficiency) -> Seconds:
    """Nothing hides the all-to-alls of experts; a router that keeps tokens within few machines sends less."""
    if layout.expert == 1:
        return NOTHING
    rate = cards.link_bytes_per_s(layout.expert, layout.tensor * layout.context)
    return at(expert_sent_bytes(job, layout), rate, rates.link)


def expert_sent_bytes(job: Job, layout: Layout) -> float:
    """What a rank sends in a step for its tokens' experts, BF16: each token goes to them and comes back, forward and
    backward, four all-to-alls in a layer, and two more where it is run again. Evenly routed."""
    tokens = job.sequence // layout.context * layout.micro_batch * layout.micro_batches / layout.tensor
    rows = sum(layer.mlp.experts_per_token for layer in job.model.layers) / layout.pipeline
    passes = ALL_TO_ALLS + (ALL_TO_ALLS // 2 if layout.checkpointing != "none" else 0)
    return passes * BF16 * tokens * rows * job.model.hidden * (layout.expert - 1) / layout.expert


def sent_bytes(job: Job, layout: Layout) -> tuple[float, float]:
    """Bytes that a rank sends for weights and gradients: once a step, and in every micro-batch. On a ring.

    Gradients in the recipe's width and weights in theirs, as `zero.traffic` counts them flat by flat; Llama-2-7B in
    BF16 on 8 ranks at stage 3: 35.4 GB in every micro-batch.
    """
    group = layout.data * layout.context
    passed = _passed(job, layout, group)
    weight, grad = megatron.BF16, megatron.FP32
    if layout.engine is StepEngine.FSDP2:  # the root, what is in no layer, is gathered once: it stays for the backward
        _, gathered, reduced = widths(layout.precision, layout.reduced)
        root, *_ = zero.units(job.model)
        return 0, passed * (2 * gathered + reduced) - root * gathered * (group - 1) / group
    if layout.engine is StepEngine.ZERO:
        recipe = train_setup(layout, job.model, 1).precision_recipe
        weight, grad = recipe.weight_bytes, recipe.grad_bytes
    if layout.zero == 3:
        return 0, passed * (2 * weight + grad)
    if layout.zero == 2:
        return passed * weight, passed * grad
    return passed * (2 * grad if layout.engine is StepEngine.ZERO and not layout.zero else weight + grad), 0


def _passed(job: Job, layout: Layout, group: int) -> float:
    """Values that a ring passes on for a rank's share of the model: experts go around those that have the same."""
    if layout.method != "full":
        return job.trained(layout) * (group - 1) / group
    dense, experts = job.shares(layout)
    same = group // layout.expert
    return dense * (group - 1) / group + experts * (same - 1) / same


def _exposed(job: Job, layout: Layout, cards: Cards, rates: Efficiency, products: Seconds) -> Seconds:
    once, each = sent_bytes(job, layout)
    rate = cards.link_bytes_per_s(layout.data * layout.context, layout.tensor)
    if not once and not each:
        return NOTHING
    sent = at(once, rate, rates.link)
    streamed = at(each * layout.micro_batches, rate, rates.link)
    under = products.middle / layout.micro_batches
    middle = max(0.0, sent.middle - under) + max(0.0, streamed.middle - products.middle)
    low = max(0.0, sent.low + streamed.low - products.low)
    return Seconds(low, max(low, middle), sent.high + streamed.high / 2)


def _update(job: Job, layout: Layout, cards: Cards, rates: Efficiency) -> Seconds:
    """Weights, gradients and states are read and written once; with offload by the host, which DRAM limits."""
    return at(2 * job.held_bytes(layout), cards.device.memory_bytes_per_s, rates.bandwidth)


def _host_link(job: Job, layout: Layout, cards: Cards, rates: Efficiency) -> Seconds:
    """Gradient shards go down, updated weights come up, and the host updates its share of the states in DRAM."""
    if not layout.offload:
        return NOTHING
    shard = job.trained(layout) / layout.data
    passes = layout.micro_batches if layout.zero >= 2 else 1
    link = at(shard * (4 * passes + 4), cards.device.link_bytes_per_s("pcie"), rates.link)
    return added(link, at(shard * 16 * 2 * min(cards.node, layout.data), HOST_BYTES_PER_S, rates.bandwidth))


HOST_BYTES_PER_S = 409.6e9  # DRAM of a DGX A100, helpers/catalog/data/tiers.json; a host's cards share it
