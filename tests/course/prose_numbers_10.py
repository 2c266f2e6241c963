"""The numbers that prose and remarks of chapter 10 carry: chapter, cell, words, form, and what computes them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from helpers.catalog import Split, model
from helpers.lesson import job
from helpers.memory import budget
from helpers.memory.plan import Cards, Efficiency, Layout
from helpers.memory.plan.step import StepSeconds, sent_bytes, step_time, tensor_sent_bytes
from helpers.memory.plan.training import Job, StepEngine
from helpers.memory.step.activations import layer_operators
from helpers.memory.step.ranks import megatron
from helpers.memory.step.ranks.megatron_layer import RankLayer
from helpers.memory.step.ranks.tensor_parts import of_rank
from helpers.techniques.parallel import formula, pipeline

GIB, MIB, GB = 2**30, 2**20, 10**9
MODEL, LAYER = job.SETUP.model, job.SETUP.model.layers[0]
JOB, SEQUENCES = Job(MODEL, job.SETUP.sequence), 64
FULL = replace(job.SETUP, checkpointing="full")
IN_BF16 = replace(job.SETUP, precision="bf16")
PCIE = 0.65 * 32e9
TOKEN = formula.tensor_traffic(MODEL, 1, 8, value_bytes=2).step.sent_bytes


def layout(tensor: int = 1, stages: int = 1, checkpointing: str = "none", sequences: int = 64, each: int = 1) -> Layout:
    data = 8 // (tensor * stages)
    how = {"checkpointing": checkpointing, "micro_batch": each, "micro_batches": sequences // data // each}
    if data == 8:
        return Layout(StepEngine.FSDP2, data, precision="autocast-bf16", **how)
    return Layout(StepEngine.MEGATRON, data, tensor, stages, **how)


MIXED, DEEP = layout(4, 2), layout(2, 4, "full")
FSDP, ONE_EACH = layout(checkpointing="full"), layout(checkpointing="full", sequences=8)


@cache
def seconds(one: Layout, card: str = "rtx-4090") -> StepSeconds:
    return step_time(JOB, one, Cards(card, 8), Efficiency())


def weights(one: Layout) -> float:
    once, each = sent_bytes(JOB, one)
    return once + each * one.micro_batches


def of_70b(tensor: int, stages: int, data: int, **how) -> StepSeconds:
    """A step of 256 sequences of 8,192 tokens on 64 H100."""
    how = {"engine": StepEngine.MEGATRON, "micro_batches": 256 // data, **how}
    split = Layout(tensor=tensor, pipeline=stages, data=data, **how)
    return step_time(Job(model("llama-3.1-70b"), 8_192), split, Cards("h100", 64), Efficiency())


def rank(micro_batches: int = 1, **changes) -> budget.TrainBudget:
    return budget.train(replace(FULL, micro_batches=micro_batches, **changes))


@cache
def stage(rank: int) -> float:
    """GiB that one of eight stages needs."""
    return budget.train(replace(FULL, split=Split(pipeline=8), micro_batches=8), rank=rank).peak_bytes / GIB


def kept(ranks: int) -> float:
    setup = of_rank(IN_BF16, ranks) if ranks > 1 else IN_BF16
    return budget.bytes_saved_by(setup, setup.model.layers[0]) / MIB


def kept_by(name: str) -> float:
    return sum(one.total for one in layer_operators(IN_BF16, LAYER) if one.name == name) / MIB


def with_averages() -> float:
    """GiB of the embedding with gradient and averages: weights, gradients, two averages in FP32."""
    return 16 * MODEL.vocab * MODEL.hidden / GIB


def beside_the_fourth(part: str, rank: int) -> float:
    """GiB of a part that this one of eight stages has more than the fourth."""
    end, fourth = (budget.train(replace(FULL, split=Split(pipeline=8), micro_batches=8), rank=one) for one in (rank, 3))
    return (end.parts[part] - fourth.parts.get(part, 0)) / GIB


def whole_gradient() -> float:
    """Bytes of gradients that TP 8 has beside an eighth of all."""
    found = rank(split=Split(tensor=8)).parts
    return found["gradients"] - found["parameters"]


def head_on_last(one: Layout, most: int, last: int) -> float:
    """Seconds of a step over PCIe with so many layers in the largest stage and in the last, which has the head, too."""
    flops, layers = JOB.flops(one), len(MODEL.layers)
    head = 3 * 2 * JOB.sequence * MODEL.vocab * MODEL.hidden / flops.total  # of the products, forward and backward
    share = max(most * (1 - head) / layers, last * (1 - head) / layers + head) * one.pipeline
    found = seconds(one)
    work = found.products.middle * share + found.tensor_links.middle * most * one.pipeline / layers
    return work * (1 + (one.pipeline - 1) / one.micro_batches)


def uneven() -> list[float]:
    """GiB of four stages of 7, 9, 9 and 7 layers, TP 2: each as it is in a model of as many in every stage."""
    peaks = []
    for stage, layers in enumerate((7, 9, 9, 7)):
        shape = model({**MODEL.config, "num_hidden_layers": 4 * layers})
        setup = megatron.MegatronSetup(shape, tensor_parallel=2, pipeline=4, micro_batches=64, sequence=JOB.sequence)
        peaks.append(megatron.train(setup, job.CARD).stage_peaks_bytes[stage] / GIB)
    return peaks


TWO = budget.train(replace(FULL, split=Split(fsdp=8), micro_batch=2, micro_batches=4))
SHARDED = replace(FULL, split=Split(fsdp=8))
ROOM = Cards("rtx-4090", 8).room_of(8).for_tensors_bytes / GIB
ZERO_3 = {"engine": StepEngine.ZERO, "zero": 3, "checkpointing": "full"}
ZERO_70B = of_70b(1, 1, 64, **ZERO_3).total.middle
BEST_70B, FOUR = of_70b(4, 8, 2).total.middle, pipeline.one_f_one_b(4, 8)
FEW = pipeline.one_f_one_b(4, 27)
NUMBERS = [
    ("10", "10-sent-ask", "sends 54.4 GB", "{:.1f}", lambda: weights(ONE_EACH) / GB),
    ("10", "10-sent-ask", "65 %, that is 20.8", "{:.1f}", lambda: PCIE / GB),
    ("10", "10-sent-ask", "65 %, that is", "{:.0f} %", lambda: 100 * Efficiency().link.usual),
    ("10", "10-sent-ask", "at 45 % of", "{:.0f} %", lambda: 100 * Efficiency().training_flops.usual),
    ("10", "10-sent-ask", "card 1.6 seconds", "{:.1f}", lambda: seconds(ONE_EACH).products.middle),
    ("10", "10-sent-told", "Right: 2.6 s", "{:.1f}", lambda: weights(ONE_EACH) / PCIE),
    ("10", "10-ways", "eight ranks 1,792 of", "{:,}", lambda: LAYER.mlp.ffn // 8),
    ("10", "10-zero-ask", "1.86 MB for a token", "{:.2f}", lambda: TOKEN / 1e6),
    ("10", "10-zero-ask", "sends 54.4 GB", "{:.1f}", lambda: weights(ONE_EACH) / GB),
    ("10", "10-zero-told", "16,384 tokens", "{:,}", lambda: 8 * job.SETUP.tokens),
    (
        *("10", "10-zero-told", "about half of what", {0.6: "half", 0.5: "half"}),
        lambda: round(8 * job.SETUP.tokens * TOKEN / weights(ONE_EACH), 1),
    ),
    ("10", "10-kept-ask", "keeps 392 MiB", "{:.0f}", lambda: kept(1)),
    ("10", "10-kept-ask", "Of these, 96 belong", "{:.0f}", lambda: kept_by("norm")),
    ("10", "10-kept-told", "of the other 264", "{:.0f}", lambda: kept(1) - 128),
    ("10", "10-kept-told", "Right: 128 MiB are", "{:.0f}", lambda: (8 * kept(8) - kept(1)) / 7),
    ("10", "sequence-why", "keep 272 MiB", "{:.0f}", lambda: RankLayer(LAYER, MODEL.hidden, 2_048, 1).kept / MIB),
    ("10", "sequence-why", "little: 16 MiB each", "{:.0f}", lambda: 2 * 2_048 * MODEL.hidden / MIB),
    ("10", "10-most-told", "take 7.8 GiB each", "{:.1f}", with_averages),
    ("10", "10-most-told", "and 2 to 3 of", "{:.0f}", lambda: beside_the_fourth("workspace", 0)),
    ("10", "10-most-told", "2 to 3 of workspace", "{:.0f} of", lambda: beside_the_fourth("workspace", 7)),
    ("10", "10-most-told", "head has 0.5 of", "{:.1f}", lambda: beside_the_fourth("logits", 7)),
    ("10", "10-mesh-ask", "six have 5 GiB", "{:.0f} GiB", lambda: ROOM - stage(1)),
    ("10", "10-quick-told", "435 GB take", "{:.0f}", lambda: weights(FSDP) / GB),
    ("10", "10-quick-told", "take 21 s", "{:.0f}", lambda: weights(FSDP) / PCIE),
    ("10", "10-quick-told", "and 12.7 s of products", "{:.1f}", lambda: seconds(FSDP).products.middle),
    ("10", "10-quick-told", "14 s of sums", "{:.0f}", lambda: tensor_sent_bytes(JOB, layout(8)) / PCIE),
    (
        *("10", "10-mesh-ask", "a quarter more than section 1", {1.25: "a quarter more"}),
        lambda: round(tensor_sent_bytes(JOB, layout(8)) / (64 * 2_048 * TOKEN * 64 / 65), 2),
    ),
    (
        *("10", "10-quick-told", "Less than half of TP 8's sums", {True: "Less than half"}),
        lambda: 0.4 < tensor_sent_bytes(JOB, MIXED) / tensor_sent_bytes(JOB, layout(8)) < 0.5,
    ),
    (
        *("10", "10-quick-told", "it is 2 % slower", "{:.0f} %"),
        lambda: 100 * (seconds(layout(2, 4, "full")).total.middle / seconds(MIXED).total.middle - 1),
    ),
    ("10", "10-quick-told", "19.4 s against", "{:.1f}", lambda: head_on_last(DEEP, 8, 8)),
    ("10", "10-quick-told", "against 17.5, 11", "{:.1f}", lambda: head_on_last(MIXED, 16, 16)),
    (
        *("10", "10-quick-told", "against 17.5, 11 %", "{:.0f} %"),
        lambda: 100 * (head_on_last(DEEP, 8, 8) / head_on_last(MIXED, 16, 16) - 1),
    ),
    ("10", "mesh-rule", "of the 23.0 that", "{:.1f}", lambda: ROOM),
    (
        *("10", "10-two-told", "7, 9, 9 and 7 layers, without", {True: "7, 9, 9 and 7"}),
        lambda: max(uneven()) < ROOM,
    ),
    ("10", "10-two-told", "finds: 14.2 s", "{:.1f}", lambda: head_on_last(layout(2, 4), 9, 7)),
    ("10", "mesh-rule", "halve the 435 GB", "{:.0f}", lambda: weights(FSDP) / GB),
    ("10", "mesh-rule", "takes 24.3 GiB", "{:.1f}", lambda: TWO.peak_bytes / GIB),
    ("10", "mesh-rule", "which 5.9 are logits", "{:.1f}", lambda: TWO.parts["logits"] / GIB),
    ("10", "mesh-rule", "moment takes 21.6", "{:.1f}", lambda: max(one.total for one in TWO.moments[3:]) / GIB),
    (
        *("10", "10-two-told", "weights take 10.5 s", "{:.1f}"),
        lambda: weights(layout(checkpointing="full", each=2)) / PCIE,
    ),
    ("10", "10-do-this", "(20.8 above", "{:.1f}", lambda: JOB.need(FSDP, job.CARD).total / GIB),
    ("10", "10-do-this", "is 15.0 of that", "{:.1f}", lambda: 16 * MODEL.parameters / 8 / GIB),
    (
        *("10", "10-both-told", "half of the 5.4.", "{:.1f}"),
        lambda: (budget.train(SHARDED).peak_bytes - 2 * MODEL.parameters) / GIB,
    ),
    ("10", "10-both-told", "keeps 1.7 GiB", "{:.1f}", lambda: whole_gradient() / GIB),
    ("10", "10-do-table", "logits, 0.22 MB", "{:.2f}", lambda: 2 * MODEL.vocab * 2 * 7 / 8 / 2e6),
    ("10", "10-do-this", "at 20.4 GiB", "{:.1f}", lambda: budget.train(SHARDED, job.CARD).peak_bytes / GIB),
    ("10", "10-do-table", "TP 8: 16.9", "{:.1f}", lambda: rank(split=Split(tensor=8)).peak_bytes / GIB),
    ("10", "10-do-table", "TP 2: 17.8 GiB", "{:.1f}", lambda: rank(split=Split(fsdp=4, tensor=2)).peak_bytes / GIB),
    (
        *("10", "10-do-table", "PP 8: 28.8", "{:.1f}"),
        lambda: stage(7),
    ),
    (
        *("10", "10-do-table", "PP 2: 17.4", "{:.1f}"),
        lambda: JOB.need(layout(4, 2, "full"), Cards("rtx-4090", 8).device).total / GIB,
    ),
    (
        *("10", "10-do-table", "17.4; not checkpointed 19.1", "{:.1f}"),
        lambda: JOB.need(layout(4, 2), Cards("rtx-4090", 8).device).total / GIB,
    ),
    ("deeper/10", "auto-ask", "BF16, 131 GiB", "{:.0f}", lambda: 2 * model("llama-3.1-70b").parameters / GIB),
    ("deeper/10", "auto-host", "takes 45 s", "{:.0f}", lambda: of_70b(8, 4, 2).total.middle),
    ("deeper/10", "auto-host", "which 10 are sums", "{:.0f}", lambda: of_70b(8, 4, 2).tensor_links.middle),
    ("deeper/10", "auto-host", "and 40 s with", "{:.0f}", lambda: of_70b(4, 8, 2).total.middle),
    (
        *("deeper/10", "mesh-rule", "within 12 % of", "{:.0f} %"),
        lambda: 100 * (of_70b(8, 8, 1).total.middle / BEST_70B - 1),
    ),
    ("deeper/10", "10d-fits-told", "Quickest by 4 %", "{:.0f} %", lambda: 100 * (ZERO_70B / BEST_70B - 1)),
    ("deeper/10", "pipe-ask", "waits 9, 27 %", "{:.0f} %", lambda: 100 * float(pipeline.bubble(FOUR))),
    ("deeper/10", "trace-told", "layers of 64 MiB", "{:.0f} MiB", lambda: 2 * 4_096 * 8_192 / MIB),
    ("10", "few-micro", "Right: 3 of 30", "{:.0f} of 30", lambda: 30 * float(pipeline.bubble(FEW))),
]  # fmt: skip
