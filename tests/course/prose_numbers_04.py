"""The numbers that prose and remarks of chapter 04 carry: chapter, cell, words, form, and what computes them."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

import torch

from helpers.catalog import TrainSetup, device
from helpers.course import notebook as nb
from helpers.lesson import job
from helpers.memory import budget
from helpers.small_lm import language, load
from tests.house.tree import ROOT

GIB = 2**30
JOB = budget.train(job.SETUP)
BF16 = replace(job.SETUP, precision="bf16")
WEIGHTS = job.SETUP.model.parameters
COPIES = 2 * (WEIGHTS - 128_256 * 4_096)  # all weights but the table of input words, in BF16
H100 = device("h100")
BATCH = TrainSetup("llama-3.2-1b", "bf16", "adamw-fused", micro_batch=8, sequence=1024)


def gib(**changes) -> float:
    return budget.train(replace(job.SETUP, **changes)).peak_bytes / GIB


def of_layers(precision: str) -> float:
    """GiB that the forward pass keeps, without copies of weights."""
    kept = budget.train(replace(job.SETUP, precision=precision)).at("loss").parts["activations"]
    return (kept - (COPIES if precision == "autocast-bf16" else 0)) / GIB


def a_token(precision: str) -> float:
    """MiB that one token more adds at the loss peak."""
    setups = [replace(job.SETUP, precision=precision, sequence=length) for length in (2_048, 8_192)]
    less, more = (budget.train(setup).at("loss").total for setup in setups)
    return (more - less) / 6_144 / 2**20


def above_optimizer_peak() -> float:
    step = budget.train(BF16)
    return (step.peak_bytes - step.at("optimizer step").total) / GIB


@cache
def small() -> torch.Tensor:
    """The magnitudes of the small model's weights."""
    return torch.cat([weight.detach().flatten().abs() for weight in load().model.parameters()])


def below(size: float) -> float:
    return 100 * (small() < size).float().mean().item()


def drawn_that_move(rate: float) -> float:
    """% of weights with a deviation of 0.02 that a move by `rate` changes in BF16."""
    generator = torch.Generator().manual_seed(0)
    weights = (torch.randn(2**21, generator=generator) * 0.02).bfloat16()
    moves = torch.where(torch.rand(weights.shape, generator=generator) < 0.5, -rate, rate)
    return 100 * ((weights.float() + moves).bfloat16() != weights).float().mean().item()


def printed(pattern: str) -> float:
    """The perplexity that the chapter has printed behind these words."""
    (path,) = (ROOT / "notebooks").glob("04_*.ipynb")
    (outputs,) = [one.outputs for one in nb.read(path).cells if one.id == "cures"]
    return float(re.search(rf"{pattern}\s*([\d.]+)", nb.stream(outputs, "stdout"))[1])


def largest_gradient() -> float:
    """Of the weights, by the first text that the chapter trains on."""
    model, text = load().model, language.training_documents(1, 256, seed=1)[0]
    ids = torch.tensor([text.ids])
    model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    return max(weight.grad.abs().max().item() for weight in model.parameters())


def loud_tokens() -> float:
    """% of the held-out tokens with a number above 256 before the last norm."""
    model, found = load().model, []
    model.model.norm.register_forward_pre_hook(lambda norm, inputs: found.append(inputs[0].abs().amax(-1)))
    with torch.no_grad():
        model(input_ids=torch.tensor([text.ids for text in language.held_out_documents(2, 1152)]))
    return 100 * (found[0] > 256).float().mean().item()


def ones_in_fp16() -> int:
    total = torch.tensor(0.0, dtype=torch.float16)
    while (more := total + 1) != total:
        total = more
    return int(total)


def at_the_loss_in_fp32() -> float:
    return budget.train(replace(job.SETUP, precision="fp32")).at("loss").total / GIB


NUMBERS = [
    ("04", "04-fp32-told", "from 14.8 GiB", "{:.1f}", lambda: of_layers("autocast-bf16")),
    ("04", "04-fp32-told", "to 22.6", "{:.1f}", lambda: of_layers("fp32")),
    ("04", "04-fp32-told", "but 14.0 GiB of copies", "{:.1f}", lambda: COPIES / GIB),
    ("04", "04-fp32-told", "go: 115.3 there", "{:.1f}", at_the_loss_in_fp32),
    ("04", "04-fp32-told", "by 1.8 GiB", "{:.1f}", lambda: gib() - gib(precision="fp32")),
    ("04", "s4", "It is 0.3 GiB above", "{:.1f}", above_optimizer_peak),
    ("04", "04-bf16-told", "weights, are 59.8 GiB", "{:.1f}", lambda: 8 * WEIGHTS / GIB),
    ("04", "s2", "has 1.7 million", "{:.1f}", lambda: small().numel() / 1e6),
    ("04", "s2", "| 1 % | 2 % | 5 % |", "| {0[0]:.0f} % | {0[1]:.0f} % | {0[2]:.0f} % |",
     lambda: [*map(below, (2**-9, 2**-8, 2**-7))]),
    ("04", "s2", "| 10 % | 19 % | 58 % |", "| {0[0]:.0f} % | {0[1]:.0f} % | {0[2]:.0f} % |",
     lambda: [*map(below, (2**-6, 2**-5, 2**-3))]),
    ("04", "s2-share", "30 % move at 3e-5", "{:.0f} %", lambda: drawn_that_move(3e-5)),
    ("04", "s2-share", "16 % at 1e-5", "{:.0f} %", lambda: drawn_that_move(1e-5)),
    ("04", "s2-share", "to 3.63", "{:.2f}", lambda: printed("3e-05: FP32")),
    ("04", "cures-told", '"3.89"', '"{:.2f}"', lambda: printed("3e-05: FP32 [0-9.]+, BF16")),
    ("04", "s2-cures-named", "| 2 | 15.0 GiB", "{:.1f}", lambda: 2 * WEIGHTS / GIB),
    ("04", "s2-cures-named", "| 4 | 29.9 GiB", "{:.1f}", lambda: 4 * WEIGHTS / GIB),
    ("04", "vanish-told", "one of 416 words", "{}", lambda: load().model.config.vocab_size),
    ("04", "04-skipped-ask", "batch is 0.09", "{:.2f}", largest_gradient),
    ("04", "scaler-told", "2²⁰ is 94,000", "{:,.0f}", lambda: round(0.09 * 2**20, -3)),
    ("04", "scaler-told", "2¹⁹ is 47,000", "{:,.0f}", lambda: round(0.09 * 2**19, -3)),
    ("04", "04-norm-why", "nearly half", "{}", lambda: "nearly half" if 45 < loud_tokens() < 50 else loud_tokens()),
    ("04", "04-do-table", "`bf16=True` | 121.5", "{:.1f}", gib),
    ("04", "04-do-table", "or not | 60.1", "{:.1f}", lambda: gib(precision="bf16")),
    ("04", "04-do-table", "| 45.4 |", "{:.1f}", lambda: gib(precision="bf16", optimizer="adamw-8bit")),
    ("04", "04-do-table", "| 149.9 |", "{:.1f}", lambda: gib(precision="megatron-bf16")),
    ("04", "04-do-table", "torch.compile` | 60.1", "{:.1f}", lambda: gib(precision="torchao-fp8")),
    ("04", "04-do-table", "| 119.7; 59.8 |", "| {0[0]:.1f}; {0[1]:.1f} |",
     lambda: [gib(precision=one, checkpointing="full", loss="trl") for one in ("autocast-bf16", "bf16")]),
    ("04", "not-help", "adds 14.0 GiB", "{:.1f}", lambda: COPIES / GIB),
    ("04", "not-help", "keeps 12.77 MiB", "{:.2f}", lambda: a_token("fp32")),
    ("04", "not-help", "and 8.89 under", "{:.2f}", lambda: a_token("autocast-bf16")),
    ("04", "break-even-told", "saves 3.88 MiB", "{:.2f}", lambda: a_token("fp32") - a_token("autocast-bf16")),
    ("04", "not-help-rest", "at most 0.1 % a step", "{:.1f} %", lambda: 100 * (1 - 0.999)),
    ("04", "not-help-rest", "BF16 is 0.2 %", "{:.1f} %", lambda: 100 / 512),
    ("04", "not-help-rest", "stop at 2,048", "{:,}", ones_in_fp16),
    ("deeper/04", "04d-part-why", "autocast 43.8", "{:.1f}",
     lambda: budget.train(replace(BATCH, precision="autocast-bf16"), H100).peak_bytes / GIB),
    ("deeper/04", "04d-part-why", "the scores, 16.0 GiB", "{:.1f}", lambda: 8 * 32 * 1024**2 * 4 * 16 / GIB),
    ("deeper/04", "s5-saves", "BF16, 32.1 GiB", "{:.1f}", lambda: budget.train(BATCH, H100).peak_bytes / GIB),
    ("deeper/04", "s4-control", "are 11.7 GiB", "{:.1f}", lambda: budget.train(BATCH).at("loss").parts["logits"] / GIB),
    ("deeper/04", "04d-break-told", "are 6.9 GiB", "{:.1f}", lambda: 6 * BATCH.model.parameters / GIB),
]  # fmt: skip
