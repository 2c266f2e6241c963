"""The numbers that prose and remarks of chapter 07 carry: chapter, cell, words, form, and what computes them."""

from __future__ import annotations

from dataclasses import replace

from helpers.catalog import Adapter, TrainSetup, number_format
from helpers.catalog.preference import GrpoSetup
from helpers.lesson import job
from helpers.memory import budget, preference

GIB = 2**30


def gib(**changes) -> float:
    return budget.train(replace(job.SETUP, **changes)).peak_bytes / GIB


def of_a_layer(precision: str, adapter: Adapter | None = None) -> float:
    setup = replace(job.SETUP, precision=precision, adapter=adapter)
    return budget.bytes_saved_by(setup, setup.model.layers[0]) / 2**20


def loss_peak(**changes) -> float:
    answer = budget.train(replace(job.SETUP, **changes))
    return max(answer.at("end_of_forward").total, answer.at("loss").total) / GIB


def qlora_gib(checkpointing: str = "full", loss: str = "full", **adapter) -> float:
    how = {"checkpointing": checkpointing, "loss": loss}
    return budget.train(replace(QLORA, adapter=replace(QLORA.adapter, **adapter), **how)).peak_bytes / GIB


def lora_gib() -> float:
    return gib(checkpointing="full", precision="bf16", adapter=LORA)


def more_with_lora(tokens: int, **adapter) -> float:
    """GiB that LoRA of the BF16 job needs more than training all of it, with nothing checkpointed."""
    how = {"precision": "bf16", "sequence": tokens}
    return gib(**how, adapter=replace(LORA, **adapter)) - gib(**how)


def not_cached() -> float:
    """GiB at the highest moment of the step in backward behind the forward pass, whose end drops autocast's copies."""
    return max(one.total for one in budget.train(replace(job.SETUP, **SHORT)).moments[1:]) / GIB


def too_low(tokens: int) -> float:
    """How far the count by hand is below the peak of QLoRA on so many tokens."""
    exact = budget.train(replace(QLORA, sequence=tokens)).peak_bytes
    fixed = QLORA_PARAMETERS + 2 * 4 * 41_943_040 + 2 * 128_256 * 4_096
    return 1 - (fixed + tokens * (12 * 128_256 + 32 * 4_096 * 4)) / exact


def trainers_words() -> float:
    """What `Trainer` adds to 8-bit states, by leaving the embedding's in 32 bits."""
    return gib(checkpointing="full", optimizer="adamw-8bit-trainer") - EIGHT_BITS.peak_bytes / GIB


def grpo_gib() -> float:
    """Eight completions of 512 tokens behind 512, by a BF16 base with adapters, on the job's card."""
    on_base = TrainSetup("llama-3.1-8b", "autocast-bf16-on-bf16", "adamw-fused", 8, 1024, "full", adapter=LORA)
    return preference.grpo(GrpoSetup(on_base, prompt=512), "rtx-4090").peak_bytes / GIB


JOB = budget.train(job.SETUP)
LORA, FOUR_BITS = Adapter(targets="all-linear"), Adapter(targets="all-linear", base="nf4-dq")
QLORA = replace(job.SETUP, checkpointing="full", adapter=FOUR_BITS)
QLORA_GIB = budget.train(QLORA).peak_bytes / GIB
BIG = budget.train(replace(QLORA, model="llama-3.1-70b", adapter=replace(FOUR_BITS, rank=64)))
ADAPTERS = 4 * FOUR_BITS.parameters(QLORA.model) / GIB
ALLOWED = job.CARD.capacity_bytes - 2**29  # what the job's card leaves to PyTorch beside a context
LAYER = job.SETUP.model.layers[0]
INPUTS_GIB = 32 * 2_048 * 4_096 * 4 / GIB
LINEARS = len(job.SETUP.model.layers) * (LAYER.attention.parameters + LAYER.mlp.parameters)
QLORA_PARAMETERS, WORDS_FP32 = budget.train(QLORA).parts["parameters"], 2 * 4 * 128_256 * 4_096 / GIB
EIGHT_BITS = budget.train(replace(job.SETUP, checkpointing="full", optimizer="adamw-8bit"))
NOT_PREPARED = budget.train(replace(QLORA, checkpointing="none", adapter=replace(QLORA.adapter, prepared=False)))
SHORT = {"checkpointing": "full", "optimizer": "adamw-8bit", "in_backward": True}
INTO_LOSS = EIGHT_BITS.parts["parameters"] + EIGHT_BITS.parts["optimizer"]
IN_BF16 = budget.train(replace(job.SETUP, precision="bf16", **SHORT))
ADDED_MIB = (more_with_lora(16_384) - more_with_lora(8_192)) / 8


NUMBERS = [
    ("07", "07-frozen", "6,979,321,856", "{:,}", lambda: LINEARS),
    ("07", "07-frozen", "1,050,939,392", "{:,}", lambda: 8_030_261_248 - LINEARS),
    ("07", "07-frozen", "4.127 bits", "{:.3f}", lambda: number_format("nf4-dq").bits_per_value),
    ("07", "07-frozen", "41,943,040", "{:,}", lambda: QLORA.adapter.parameters(QLORA.model)),
    ("07", "07-weights-told", "Right: 3.4 of", "{:.1f}", lambda: QLORA_PARAMETERS / GIB - WORDS_FP32 - ADAPTERS),
    ("07", "07-weights-told", "3.9 of embedding", "{:.1f}", lambda: WORDS_FP32),
    ("07", "s5-why", "same 56 MiB", "{:.0f}", lambda: 2 * 2_048 * (14_336 + 8) / 2**20),
    ("07", "s5-why", "kept 392 MiB", "{:.0f}", lambda: of_a_layer("bf16")),
    ("07", "s5-why", "keeps 577 MiB", "{:.0f}", lambda: of_a_layer("bf16", LORA)),
    ("07", "s6", "kept 579 MiB", "{:.0f}", lambda: of_a_layer("autocast-bf16", QLORA.adapter)),
    ("07", "s6", "needed 29.8 GiB", "{:.1f}", lambda: qlora_gib(checkpointing="none")),
    ("07", "s6", "in 4 bits, 5.3 GiB", "{:.1f}", lambda: NOT_PREPARED.parts["parameters"] / GIB - ADAPTERS),
    ("07", "s6", "makes 7.3 of them", "{:.1f}", lambda: QLORA_PARAMETERS / GIB - ADAPTERS),
    ("07", "s6", "keeps 363 MiB", "{:.0f}", lambda: of_a_layer("autocast-bf16", replace(FOUR_BITS, prepared=False))),
    ("07", "s6", "takes 20.1 GiB", "{:.1f}", lambda: NOT_PREPARED.peak_bytes / GIB),
    ("07", "s6", "the weights, 7.4,", "{:.1f}", lambda: QLORA_PARAMETERS / GIB),
    ("07", "s6", "averages, 0.3,", "{:.1f}", lambda: 2 * ADAPTERS),
    ("07", "s6", "the logits, 2.9,", "{:.1f}", lambda: 12 * 2_048 * 128_256 / GIB),
    ("07", "s6", "the head, 1.0,", "{:.1f}", lambda: WORDS_FP32 / 4),
    ("07", "s6", "the 12.7 GiB of", "{:.1f}", lambda: QLORA_GIB),
    ("07", "s6", "32 layers, 1.0.", "{:.1f}", lambda: INPUTS_GIB),
    ("07", "qlora-full-told", "logits to 5.9 GiB", "{:.1f}", lambda: 2 * 12 * 2_048 * 128_256 / GIB),
    ("07", "qlora-full-told", "inputs to 2.0.", "{:.1f}", lambda: 2 * INPUTS_GIB),
    ("07", "07-alone-told", "it is 9.2 GiB", "{:.1f}", lambda: qlora_gib(prepared=False)),
    ("07", "07-typed-text", "10 GiB to spare", "{:.0f}", lambda: ALLOWED / GIB - QLORA_GIB),
    ("07", "07-lora-why", "another 6.2 GiB", "{:.1f}", lambda: lora_gib() - QLORA_GIB),
    ("07", "07-8bit", "59.8 of 119.7", "{:.1f}", lambda: JOB.parts["optimizer"] / GIB),
    ("07", "states-told", "averages now 15.2", "{:.1f}", lambda: EIGHT_BITS.parts["optimizer"] / GIB),
    ("07", "07-in-backward-ask", "are 17.5 GiB", "{:.1f}", lambda: loss_peak(**SHORT) - INTO_LOSS / GIB),
    ("07", "07-bf16-ask", "peak is 50.1 GiB", "{:.1f}", not_cached),
    ("07", "07-bf16-ask", "are 0.6 GiB", "{:.1f}", lambda: IN_BF16.parts["activations"] / GIB),
    ("07", "07-ladder-why", "0.5 % as many", "{:.1f}", lambda: 100 * 41_943_040 / 8_030_261_248),
    ("07", "07-do-table", "119.7 → 13.0", "{:.1f}", lambda: qlora_gib(base="nf4")),
    ("07", "07-do-table", "13.0 → 12.7", "→ {:.1f}", lambda: QLORA_GIB),
    ("07", "07-do-table", "12.7 → 9.2", "→ {:.1f}", lambda: qlora_gib(prepared=False)),
    ("07", "07-do-table", "9.2 → 9.0", "→ {:.1f}", lambda: qlora_gib(prepared=False, adapter_dtype="bf16")),
    ("07", "07-do-table", "12.7 → 9.9", "→ {:.1f}", lambda: qlora_gib(loss="liger")),
    ("07", "07-do-table", "29.8 → 12.7", "{:.1f} →", lambda: qlora_gib(checkpointing="none")),
    ("07", "07-do-table", "12.7 → 12.3", "→ {:.1f}", lambda: qlora_gib(targets=("q_proj", "v_proj"))),
    ("07", "07-do-table", "119.7 → 18.9", "{:.1f}", lora_gib),
    ("07", "07-do-table", "119.7 → 78.0", "{:.1f}", lambda: gib(checkpointing="full", optimizer="adamw-8bit-trainer")),
    ("07", "07-do-table", "2.9 GiB more", "{:.1f}", trainers_words),
    ("07", "07-do-table", "75.1 → 62.6", "{:.1f} →", lambda: EIGHT_BITS.peak_bytes / GIB),
    ("07", "07-do-table", "75.1 → 62.6", "→ {:.1f}", lambda: gib(**SHORT)),
    ("07", "07-do-table", "20.1, at 8", "{:.1f}, at", grpo_gib),
    ("07", "07-longest-why", "is 0.5 % low", "{:.1f}", lambda: 100 * too_low(7_089)),
    ("07", "not-help", "29.4 GiB less", "{:.1f}", lambda: -more_with_lora(2**14) + 2**14 * ADDED_MIB / 1024),
    ("07", "not-help", "add 2.86 MiB", "{:.2f}", lambda: ADDED_MIB),
    ("07", "not-help-rest", "by 63 GiB", "{:.0f}", lambda: -more_with_lora(65_536, adapter_dtype="bf16")),
    ("deeper/07", "s10-torchao", "but 0.3 of", "{:.1f}", lambda: 2 * ADAPTERS),
    ("deeper/07", "s10-torchao", "of 12.7 GiB", "{:.1f}", lambda: QLORA_GIB),
    ("deeper/07", "s10-torchao", "move 6.2 GiB", "{:.1f}", lambda: BIG.parts["optimizer"] / GIB),
    ("deeper/07", "s10-torchao", "of 61.", "{:.0f}", lambda: BIG.peak_bytes / GIB),
    ("07", "tokens-told", "are 30,106 MiB", "{:,.0f}", lambda: 29.4 * 1024),
]  # fmt: skip
