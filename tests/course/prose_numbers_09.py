"""The numbers that prose and remarks of chapter 09 carry: chapter, cell, words, form, and what computes them.

Those of traces are in test_prose_traces_09.py.
"""

from __future__ import annotations

from dataclasses import replace

from helpers.catalog import Split, TrainSetup, device
from helpers.lesson import job
from helpers.memory import budget
from helpers.memory import zero as formula
from helpers.memory.fit import Room
from helpers.memory.step.ranks.zero import units

GIB, MIB = 2**30, 2**20
ONE = replace(job.SETUP, checkpointing="full")
ALONE = budget.train(ONE)
SHARDED = replace(ONE, split=Split(fsdp=8))
WEIGHTS = job.SETUP.model.parameters
ROOT = units(job.SETUP.model)[0]
GATHERS, GRADIENTS = 7 / 8 * 2 * (2 * (WEIGHTS - ROOT) + ROOT), 7 / 8 * 4 * WEIGHTS
LLAMA = {
    "model_type": "llama", "hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 6,
    "num_attention_heads": 6, "num_key_value_heads": 6, "vocab_size": 256, "tie_word_embeddings": False,
}  # fmt: skip
SMALL = TrainSetup(LLAMA, "fp32", "adamw-foreach", sequence=64, split=Split(4))


def gib(setup: TrainSetup, part: str = "", moment: str = "") -> float:
    step = budget.train(setup)
    parts = step.at(moment) if moment else step.parts
    return (parts[part] if part else parts.total) / GIB


def stage(number: int, ranks: int = 8, **changes) -> TrainSetup:
    return replace(ONE, split=Split(ranks, zero=number), **changes)


def fsdp(**changes) -> TrainSetup:
    return replace(SHARDED, **changes)


def ddp() -> float:
    """With its buckets: a second copy of all gradients."""
    return (ALONE.peak_bytes + ALONE.parts["gradients"]) / GIB


def in_buckets() -> float:
    """With gradients that live in buckets, which are there at every moment."""
    gradients = ALONE.parts["gradients"]
    return max(one.total - one.parts.get("gradients", 0) + gradients for one in ALONE.moments) / GIB


def copies() -> float:
    """Autocast's, of all matrices but the embedding."""
    layers = job.SETUP.model.parameters - 128_256 * 4_096
    return 2 * layers / GIB


def seconds(sequences: int) -> float:
    return sequences * budget.step_flops(ONE).total / job.CARD.flops_per_s("bf16")


def sending(link: str, card=job.CARD) -> float:
    return (GATHERS + GRADIENTS) / card.link_bytes_per_s(link)


def by_stage(*stages: int) -> list[float]:
    """GB of weights, gradients and averages of 7 billion weights on one of 16 ranks, in FP32."""
    sizes = ((28, 3), (28, 2), (56, 1))  # and the stage from which they are divided
    return [sum(size / 16 if one >= divided else size for size, divided in sizes) for one in stages]


def passes(number: int, micro_batches: int) -> int:
    """Of a step that is our own formula's, in whole passes: the root is not gathered as often."""
    found = formula.traffic(replace(SMALL, split=Split(4, zero=number)), micro_batches=micro_batches)
    return round(float(found.passes(4 * SMALL.model.parameters)))


def giant(ranks: int) -> float:
    """Peak of a rank of Llama-3.1-70B at stage 3, as Megatron keeps its numbers."""
    how = {"checkpointing": "full", "split": Split(ranks, zero=3)}
    return budget.train(TrainSetup("llama-3.1-70b", "megatron-bf16", "adamw-fused", **how), "h100").peak_bytes / GIB


def ring(ranks: int) -> float:
    """What FSDP2 sends from each of so many ranks: layers gathered twice in BF16, the root once; FP32 gradients."""
    return (ranks - 1) / ranks * (2 * (2 * (WEIGHTS - ROOT) + ROOT) + 4 * WEIGHTS)


def four_micro_batches() -> tuple[float, float]:
    """GB of a flat ring over 64 ranks, and what HSDP sends between nodes that all-reduces once, in %."""
    flat = 4 * ring(64)
    return flat / 1e9, 100 * 2 * 7 / 8 * 4 * WEIGHTS / flat


NUMBERS = [
    ("09", "0b509c5f", "at 119.7 GiB", "{:.1f}", lambda: ALONE.peak_bytes / GIB),
    ("09", "0b509c5f", "weights 29.9", "{:.1f}", lambda: ALONE.parts["parameters"] / GIB),
    ("09", "0b509c5f", "gradients 29.9", "{:.1f}", lambda: ALONE.parts["gradients"] / GIB),
    ("09", "0b509c5f", "averages 59.8", "{:.1f}", lambda: ALONE.parts["optimizer"] / GIB),
    ("09", "zero1-ask", "of 10.5 MiB", "{:.1f}", lambda: 4 * SMALL.model.parameters / MIB),
    ("09", "zero1-ask", "sends 15.8 MiB", "{:.1f}", lambda: formula.traffic(SMALL).sent_bytes / MIB),
    ("09", "zero2-told", "gradients 3.7", "{:.1f}", lambda: 4 * WEIGHTS / 8 / GIB),
    ("09", "zero2-told", "averages 7.5", "{:.1f}", lambda: 8 * WEIGHTS / 8 / GIB),
    ("09", "09-cache-ask", "leaves 32.7 GiB", "{:.1f}", lambda: gib(stage(3))),
    ("09", "09-cache-ask", "parts are 11.2", "{:.1f}", lambda: (4 + 8) * WEIGHTS / 8 / GIB),
    ("09", "09-cache-told", "ends: 14.0 GiB", "{:.1f}", copies),
    ("09", "09-cache-told", "bytes, 1.0 GiB", "{:.1f}", lambda: 32 * 2_048 * 4_096 * 4 / GIB),
    ("09", "09-cache-told", "2.4 GiB when", "{:.1f}", lambda: gib(stage(3), "logits")),
    ("09", "f0f0cb1f", "everything is 15 GiB", "{:.0f}", lambda: formula.held(stage(3)).device.total / GIB),
    ("09", "09-ladder-why", "whole, 15.0 GiB", "{:.1f}", lambda: 2 * WEIGHTS / GIB),
    ("09", "09-ladder-why", "parts, 3.7", "{:.1f}", lambda: gib(fsdp(), "parameters")),
    ("09", "09-ladder-why", "averages, 7.5", "{:.1f}", lambda: gib(fsdp(), "optimizer")),
    ("09", "09-ladder-why", "layers, 0.5", "{:.1f}", lambda: budget.train(SHARDED).kept_bytes / GIB),
    ("09", "09-ladder-why", "logits, 2.9", "{:.1f}", lambda: 12 * 2_048 * 128_256 / GIB),
    ("09", "09-second-told", "7.5 GiB are new", "{:.1f}", lambda: 8 * WEIGHTS / 8 / GIB),
    ("09", "09-symptoms", "FP32 29.9 GiB", "{:.1f}", lambda: 4 * WEIGHTS / GIB),
    ("09", "ac1ca40c", "149.6 → 137.2", "{0[0]:.1f} → {0[1]:.1f}", lambda: (ddp(), in_buckets())),
    ("09", "81d2fafe", "it: 137.2 GiB", "{:.1f}", in_buckets),
    ("09", "fc2a6de3", "else 2m | 149.6 |", "{:.1f}", ddp),
    ("09", "09-ladder-why", "23.0 GiB for tensors", "{:.1f}", lambda: Room(job.CARD, ranks=8).for_tensors_bytes / GIB),
    ("09", "ac1ca40c", '"shard"))` | 34.8', "{:.1f}", lambda: gib(replace(ONE, split=Split(fsdp=4)))),
    ("09", "ac1ca40c", "JSON below | 24.2", "{:.1f}", lambda: gib(stage(3, precision="megatron-bf16"))),
    ("09", "f300d021", "activations, 12.3 GiB", "{:.1f}", lambda: gib(fsdp(checkpointing="none"), "activations")),
    ("09", "09-links-ask", "takes 127.5 GiB", "{:.1f}", lambda: gib(stage(3, 1))),
    ("09", "09-links-ask", "sends 24.5 GiB", "{:.1f}", lambda: GATHERS / GIB),
    ("09", "09-links-ask", "26.2 GiB of gradients", "{:.1f}", lambda: GRADIENTS / GIB),
    ("09", "09-links-ask", "takes 32 GB/s", "{:.0f}", lambda: job.CARD.link_bytes_per_s("pcie") / 1e9),
    ("09", "09-links-ask", "is 0.74 s", "{:.2f}", lambda: seconds(1)),
    ("09", "09-links-told", "are 1.49 s", "{:.2f}", lambda: seconds(2)),
    ("09", "09-links-told", "GB/s are 1.70", "{:.2f}", lambda: sending("pcie")),
    ("09", "09-links-told", "some 51 GiB at", "{:.0f}", lambda: (GATHERS + GRADIENTS) / GIB),
    ("09", "09-links-told", "logits are 8.8 GiB", "{:.1f}", lambda: gib(fsdp(micro_batch=3), "logits")),
    ("09", "links-said", "in 0.12 s", "{:.2f}", lambda: sending("nvlink", device("h100"))),
    ("09", "09-calculator", "needs 89.2 GiB", "{:.1f}", lambda: giant(16)),
    ("09", "09-calculator", "needs 52.4: 36.7", "{0[0]:.1f}: {0[1]:.1f}", lambda: (giant(32), giant(16) - giant(32))),
    ("09", "09-recall", "59.5, 33.25 and 7.0 GB", "{0[0]:.1f}, {0[1]:.2f} and {0[2]:.1f}", lambda: by_stage(1, 2, 3)),
    ("09", "09-recall", "2, 9 and 24.", "{0[0]}, {0[1]} and {0[2]}.", lambda: [passes(one, 8) for one in (1, 2, 3)]),
    ("09", "fc2a6de3", "| 2 | 69.3 |", "{:.1f}", lambda: gib(stage(1))),
    ("09", "fc2a6de3", "m + 1 | 54.9", "{:.1f}", lambda: gib(stage(2))),
    ("09", "fc2a6de3", "3m | 32.7", "{:.1f}", lambda: gib(stage(3))),
    ("deeper/09", "09d-zeropp", "sends 28.1 GB", "{:.1f}", lambda: 2 * 7 / 8 * 2 * WEIGHTS / 1e9),
    ("deeper/09", "09d-zeropp", "place of 45.4.", "{:.1f}.", lambda: (ring(64) - 63 / 64 * 2 * WEIGHTS) / 1e9),
    ("deeper/09", "09d-zeropp", "step: 56 GB", "{:.0f}", lambda: 2 * 7 / 8 * 4 * WEIGHTS / 1e9),
    ("deeper/09", "09d-zeropp", "place of 245, 23 %", "{0[0]:.0f}, {0[1]:.0f} %", lambda: four_micro_batches()),
    ("deeper/09", "09d-zeropp", "20.3 GiB in place", "{:.1f}", lambda: gib(replace(ONE, split=Split(fsdp=8)))),
    ("deeper/09", "09d-zeropp", "place of 7.7.", "{:.1f}.", lambda: gib(replace(ONE, split=Split(fsdp=64)))),
]  # fmt: skip
