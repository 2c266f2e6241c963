"""Every layout worth trying for a training goal: the search enumerates, and leaves the clever part to arithmetic.

Degrees are small: tensor parallel ranks stay within a machine and divide the KV heads, stages divide the layers or are
a power of two, ranks of experts divide those that share data, micro-batches are powers of two. What the closed forms
refuse is not proposed: a mixture of experts has Megatron's alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..step.ranks import megatron
from .goal import TrainGoal
from .machine import Cards
from .training import TORCHTITAN, Layout, StepEngine

MICRO_BATCHES = (1, 2, 4, 8, 16)
CHECKPOINTINGS = ("none", "full")  # what every engine's configuration can say
MOST_STAGES = 32
MOST_MISSING = 3  # layers of the first and last stage together, where layers do not divide: embedding and head weigh
LEAST_OF_CONTEXT = 4096  # tokens of a context-parallel rank, as in Llama 3's and NVIDIA's recipes (8,192 over two)
MOST_OVER = 1.125  # a batch may be so much larger than what was asked for, where ranks do not divide it


def training_layouts(goal: TrainGoal, cards: Cards) -> Iterator[Layout]:
    """Layouts on up to `cards.count` cards, with the micro-batches that make up the goal's batch."""
    for layout in _undivided(goal, cards):
        yield from with_batches(goal, layout)


def _undivided(goal: TrainGoal, cards: Cards) -> Iterator[Layout]:
    if "full" in goal.methods:
        yield from _zero(goal, cards)
        yield from _fsdp2(goal, cards)
        if "megatron-bf16" in goal.precisions and "adamw-fused" in goal.optimizers and megatron.is_known(goal.model):
            yield from _megatron(goal, cards)
    for method in goal.methods:
        if method != "full":
            for ranks in counts(cards.count):
                yield Layout(StepEngine.ZERO, data=ranks, precision="bf16", optimizer="adamw-fused", method=method)


def _zero(goal: TrainGoal, cards: Cards) -> Iterator[Layout]:
    """Stages 0 to 3; from stage 2 on, where gradients are shards, with the optimizer on the host as well.

    Stage 3 of FP32 weights with a fused AdamW is left to FSDP2, which keeps the same shards and less beside them.
    """
    has_host = "pcie" in cards.device.links
    for ranks in counts(cards.count):
        for precision in goal.precisions:
            for optimizer in goal.optimizers:
                plain = Layout(StepEngine.ZERO, ranks, precision=precision, optimizer=optimizer)
                for stage in (0, 1, 2, 3) if ranks > 1 else (0,):
                    if stage < 3 or (precision, optimizer) != ("autocast-bf16", "adamw-fused"):
                        yield replace(plain, zero=stage)
                if has_host and optimizer == "adamw-fused":
                    yield from (replace(plain, zero=stage, offload=True) for stage in (2, 3))


def _fsdp2(goal: TrainGoal, cards: Cards) -> Iterator[Layout]:
    """FP32 shards with the engines that configure them: torchtitan reduces in FP32, for the models it has, accelerate
    in BF16."""
    if "autocast-bf16" not in goal.precisions or "adamw-fused" not in goal.optimizers:
        return
    for ranks in counts(cards.count)[1:]:
        for reduced in ("fp32", "bf16") if goal.model.name in TORCHTITAN else ("bf16",):
            yield Layout(StepEngine.FSDP2, ranks, precision="autocast-bf16", reduced=reduced)


def _megatron(goal: TrainGoal, cards: Cards) -> Iterator[Layout]:
    model = goal.model
    heads, ffn, experts = model.layers[0].attention.kv_heads, model.layers[-1].mlp.ffn, megatron.most_experts(model)
    for tensor in (1, 2, 4, 8):
        if tensor > min(cards.node, cards.count) or heads % tensor or ffn % tensor:
            continue
        for pipeline in stages(len(model.layers)):
            for context in (1, 2, 4, 8):
                if goal.sequence % (context * tensor) or (goal.sequence // context < LEAST_OF_CONTEXT and context > 1):
                    continue
                group = tensor * pipeline * context
                for data in counts(cards.count // group):
                    for expert in expert_ranks(experts, data * context):
                        yield Layout(StepEngine.MEGATRON, data, tensor, pipeline, context, expert)


def with_batches(goal: TrainGoal, layout: Layout) -> Iterator[Layout]:
    """The layout with each checkpointing and micro-batch, and as many micro-batches as the goal's batch takes."""
    for micro_batch in MICRO_BATCHES:
        at_once = layout.data * micro_batch
        micro_batches = max(1, -(-goal.sequences // at_once))
        if at_once * micro_batches > MOST_OVER * goal.sequences:
            continue
        for checkpointing in CHECKPOINTINGS:
            yield replace(layout, checkpointing=checkpointing, micro_batch=micro_batch, micro_batches=micro_batches)


def counts(most: int) -> list[int]:
    """Powers of two up to `most`, and `most` itself.

    >>> counts(12)
    [1, 2, 4, 8, 12]
    """
    return sorted({2**power for power in range(most.bit_length()) if 2**power <= most} | ({most} if most else set()))


def stages(layers: int) -> list[int]:
    """Numbers of stages with equally many layers; and powers of two, if only the first and the last have fewer.

    >>> stages(80), stages(61)
    ([1, 2, 4, 5, 8, 10, 16, 20], [1, 2, 4, 8, 16])
    """
    return [count for count in range(1, min(layers, MOST_STAGES) + 1) if layers % count == 0 or _nearly(layers, count)]


def _nearly(layers: int, count: int) -> bool:
    missing = -layers % count
    return count.bit_count() == 1 and missing <= min(MOST_MISSING, 2 * (layers // count))


def expert_ranks(experts: int, group: int) -> list[int]:
    """Powers of two that divide the experts and the ranks that share data.

    >>> expert_ranks(8, 32), expert_ranks(0, 32)
    ([1, 2, 4, 8], [1])
    """
    most = min(experts, group)
    return [1] + [2**power for power in range(1, most.bit_length()) if not (experts % 2**power or group % 2**power)]
