"""The numbers that prose and remarks of chapter 06 carry: chapter, cell, words, form, and what computes them."""

from __future__ import annotations

from dataclasses import replace

from helpers.catalog import Adapter
from helpers.lesson import job
from helpers.memory import budget

GIB = 2**30
JOB = budget.train(job.SETUP)
BF16 = replace(job.SETUP, precision="bf16")
LORA = replace(BF16, adapter=Adapter(targets="all-linear"))
QLORA = replace(job.SETUP, adapter=Adapter(targets="all-linear", base="nf4-dq"))
LAYER = job.SETUP.model.layers[0]
TOKENS, WIDTH, KEYS, MIDDLE = 2_048, 4_096, 1_024, 14_336
LAYER_GFLOP = (2 * TOKENS * WIDTH * (2 * WIDTH + 2 * KEYS + 3 * MIDDLE) + 4 * TOKENS**2 * WIDTH) / 1e9


def peak(setup, how: str = "none") -> float:
    return budget.train(replace(setup, checkpointing=how)).peak_bytes / GIB


def activations(setup, how: str = "none") -> float:
    return budget.train(replace(setup, checkpointing=how)).parts["activations"] / GIB


def more(setup, how: str = "full") -> float:
    """FLOPs that a policy adds, in %."""
    return 100 * (budget.step_flops(replace(setup, checkpointing=how)).ratio - 1)


def product(wide: int) -> float:
    return 2 * TOKENS * WIDTH * wide / 1e9


def sequence() -> float:
    """What one more sequence adds to the loss peak in BF16."""
    return peak(replace(BF16, micro_batch=2)) - peak(BF16)


def head() -> float:
    """The head, of a forward pass, in %."""
    return 100 * product(128_256) / (budget.step_flops(BF16).forward / 1e9)


def step_of_forwards() -> float:
    """A step with LoRA in forward passes."""
    flops = budget.step_flops(LORA)
    return (flops.forward + flops.backward) / flops.forward


def again_of_forward() -> float:
    flops = budget.step_flops(replace(LORA, checkpointing="full"))
    return flops.recomputed / flops.forward


def of_1b(setup) -> str:
    """The largest share of its peak that checkpointing takes off Llama-3.2-1B."""
    batches = [replace(setup, model="llama-3.2-1b", micro_batch=count) for count in (1, 4, 16, 64)]
    most = max(1 - peak(one, "full") / peak(one) for one in batches)
    return "less than half" if most < 0.5 else f"{100 * most:.0f} %"


def products_put_out() -> float:
    """MiB in BF16 of the outputs of a layer's seven products."""
    return 2 * TOKENS * (3 * WIDTH + 2 * KEYS + 2 * MIDDLE) / 2**20


def kept_by_selective() -> float:
    """MiB of a layer: its input, the outputs of its products, and that of attention."""
    return products_put_out() + 2 * 2 * TOKENS * WIDTH / 2**20


NUMBERS = [
    ("06", "06-inputs-why", "28.8 GiB", "{:.1f}", lambda: JOB.parts["activations"] / GIB),
    ("06", "06-inputs-why", "by 1.8 GiB", "{:.1f}", lambda: peak(job.SETUP) - peak(job.SETUP, "full")),
    ("06", "06-inputs-why", "119.7 GiB", "{:.1f}", lambda: JOB.at("optimizer step").total / GIB),
    ("06", "804cb76a", "keeps 392 MiB", "{:.0f}", lambda: budget.bytes_saved_by(BF16, LAYER) / 2**20),
    ("06", "804cb76a", "takes 16 MiB", "{:.0f}", lambda: 2 * TOKENS * WIDTH / 2**20),
    ("06", "e3344c65", "projections | 69 each", "{:.0f}", lambda: product(WIDTH)),
    ("06", "e3344c65", "projections | 17 each", "{:.0f}", lambda: product(KEYS)),
    ("06", "e3344c65", "attention | 69", "{:.0f}", lambda: 4 * TOKENS**2 * WIDTH / 1e9),
    ("06", "e3344c65", "projections | 241 each", "{:.0f}", lambda: product(MIDDLE)),
    ("06", "e3344c65", "together | 962", "{:.0f}", lambda: LAYER_GFLOP),
    ("06", "best-ask", "keeps 392 MiB", "{:.0f}", lambda: budget.bytes_saved_by(BF16, LAYER) / 2**20),
    ("02", "do-this-why", "23 % more computing", "{:.0f} %", lambda: more(job.SETUP)),
    ("06", "4921c995", "that 23 %", "{:.0f} %", lambda: more(BF16)),
    ("06", "4921c995", "head is 7 %", "{:.0f} %", head),
    ("06", "06-bill-told", "step of 2.1.", "{:.1f}.", step_of_forwards),
    ("06", "06-bill-told", "Right: 0.93 of", "{:.2f}", again_of_forward),
    ("06", "c66ce36a", "bill is 33 %", "{:.0f} %", lambda: more(replace(LORA, adapter=Adapter()))),
    ("06", "3f628917", "is 29.8 GiB", "{:.1f}", lambda: peak(QLORA)),
    ("06", "3f628917", "19.1 of them", "{:.1f}", lambda: activations(QLORA)),
    ("06", "06-qlora-told", "− 19.1 + 2.0.", "{:.1f}.", lambda: activations(QLORA, "full")),
    ("06", "06-do-this", "takes 1.8 GiB off", "{:.1f}", lambda: peak(job.SETUP) - peak(job.SETUP, "full")),
    ("06", "06-do-this", "and 17.1 off", "{:.1f}", lambda: peak(QLORA) - peak(QLORA, "full")),
    ("06", "06-do-this", "and 12.7 with", "{:.1f}", lambda: peak(QLORA, "full")),
    ("06", "279271f2", "peak is 44.9 GiB", "{:.1f}", lambda: peak(BF16) - sequence()),
    ("06", "279271f2", "and 15.3 more", "{:.1f}", sequence),
    ("06", "279271f2", "peak, 59.8 GiB", "{:.1f}", lambda: peak(BF16, "full")),
    ("06", "06-half-told", "most 90.8 GiB", "{:.1f}", lambda: 44.9 + 3 * 15.3),
    ("06", "06-half-told", "are 106 GiB", "{:.0f}", lambda: peak(replace(BF16, micro_batch=4))),
    ("06", "06-logits", "keeps 18.0 GiB", "{:.1f}", lambda: activations(LORA)),
    ("06", "06-logits", "takes off 17.5", "{:.1f}", lambda: activations(LORA) - activations(LORA, "full")),
    ("06", "06-logits", "less than half, even with 64", "{}", lambda: of_1b(BF16)),
    ("06", "06-logits", "it saves 52 %", "{}", lambda: of_1b(job.SETUP)),
    ("06", "06-logits", "168 of them", "{:.0f}", products_put_out),
    ("06", "06-lora-told", "are 16.8 GiB", "{:.1f}", lambda: activations(LORA, "selective")),
    ("06", "06-lora-told", "200 MiB and 2 × 168", "{:.0f} MiB", kept_by_selective),
    ("06", "b4e13334", "392 MiB", "{:.0f}", lambda: budget.bytes_saved_by(BF16, LAYER) / 2**20),
    ("06", "b4e13334", "16 MiB | 23 %; 44 %", "{0[0]:.0f} %; {0[1]:.0f} %", lambda: (more(BF16), more(LORA))),
    ("06", "06-recall", "are 5.0 GiB", "{:.1f}", lambda: 80 * 4_096 * 8_192 * 2 / GIB),
    ("06", "06-recall", "are 1,320 MiB", "{:,}", lambda: 18 * 60 + 2 * 120),
    ("06", "06-recall", "+ 120, 2,280", "{:,}", lambda: 36 * 60 + 120),
]  # fmt: skip
