"""Numbers that prose and remarks of the first chapters carry: each is computed here, and stands in its cell."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from importlib import import_module
from math import exp, log
from pathlib import Path
from statistics import NormalDist

import pytest
from transformers import GemmaConfig

from helpers.catalog import Adapter, ServeSetup, TrainSetup, device, model
from helpers.course import notebook as nb
from helpers.lesson import job
from helpers.memory import activations, budget, measure, work
from helpers.memory.fit.room import EXPANDABLE_PERCENT, HOLES_PERCENT
from tests.course import prose
from tests.house.tree import ROOT
from tests.memory.oom.oom_messages import REAL

CHAPTERS = [
    import_module(f"tests.course.{one.stem}") for one in sorted(Path(__file__).parent.glob("prose_numbers_*.py"))
]
GIB, GB = 2**30, 10**9
JOB = budget.train(job.SETUP)
QLORA = replace(job.SETUP, checkpointing="full", adapter=Adapter(targets="all-linear", base="nf4-dq"))
QLORA_GIB = budget.train(QLORA).peak_bytes / GIB
ADAPTERS = 4 * QLORA.adapter.parameters(QLORA.model) / GIB
COPIES = 2 * (8_030_261_248 - 128_256 * 4_096)  # all weights but the table of input words, in BF16


def gib(**changes) -> float:
    return budget.train(replace(job.SETUP, **changes)).peak_bytes / GIB


def of_a_layer(precision: str, adapter: Adapter | None = None) -> float:
    setup = replace(job.SETUP, precision=precision, adapter=adapter)
    return budget.bytes_saved_by(setup, setup.model.layers[0]) / 2**20


def more_under_autocast(kept_for: str) -> float:
    """MiB that a layer keeps more under autocast than in BF16, in the rows whose names hold these words."""
    rows = [
        activations.saved_by_layer(replace(job.SETUP, precision=precision), LAYER)
        for precision in ("autocast-bf16", "bf16")
    ]
    autocast, bf16 = (sum(size for name, size in row.items() if kept_for in name) for row in rows)
    return (autocast - bf16) / 2**20


def bytes_of_a_token(precision: str) -> tuple[int, int]:
    """What a further token adds to a layer, by channel: the least and the most of three models."""
    found = []
    for name in ("llama-2-7b", "llama-3.1-8b", "llama-3.2-1b"):
        setups = [TrainSetup(name, precision, "adamw-fused", sequence=length) for length in (2_048, 4_096)]
        less, more = (budget.bytes_saved_by(setup, setup.model.layers[0]) for setup in setups)
        found.append((more - less) / 2_048 / setups[0].model.hidden)
    return round(min(found)), round(max(found))


def loss_peak(**changes) -> float:
    answer = budget.train(replace(job.SETUP, **changes))
    return max(answer.at("end_of_forward").total, answer.at("loss").total) / GIB


def sequence() -> float:
    """What a sequence of 2,048 tokens adds at the first summit."""
    return (gib(micro_batch=16) - gib(micro_batch=8)) / 8


def fused_loss() -> float:
    """What Liger's loss, or TRL's, takes off sixteen sequences with every layer checkpointed."""
    full, *fused = (gib(micro_batch=16, checkpointing="full", loss=loss) for loss in ("full", "liger", "trl"))
    assert fused[0] == fused[1]
    return full - fused[0]


def advised() -> float:
    """What QLoRA needs as `training_memory` advises it: on two linear layers of each, peft's default."""
    return gib(checkpointing="full", adapter=Adapter(base="nf4-dq"))


@cache
def left_out() -> int:
    """Bytes of chapter 00's small step that its formula does not count."""
    small = TrainSetup("tiny-llama", precision="fp32", optimizer="adamw-fused", micro_batch=4, sequence=256)
    return measure.training_step(small, "cpu").tensor_bytes - budget.train(small).tensor_bytes


def longer_qlora() -> float:
    """What QLoRA needs with twice the tokens."""
    return budget.train(replace(QLORA, sequence=2 * QLORA.sequence)).peak_bytes / GIB


def copied(tokens: int) -> float:
    """The part of what the forward pass keeps that is copies of weights."""
    return COPIES / budget.train(replace(job.SETUP, sequence=tokens)).at("loss").parts["activations"]


LAYER = job.SETUP.model.layers[0]
COPIES_OF_A_LAYER = 2 * (LAYER.attention.parameters + LAYER.mlp.parameters)
CACHE = budget.serve(ServeSetup("llama-3.1-8b", users=1, context=2048)).parts["kv_cache"]
MLP = 32 * LAYER.mlp.parameters / job.SETUP.model.parameters
FIRST = JOB.parts["parameters"] + JOB.parts["optimizer"]
WEIGHTS = JOB.parts["parameters"]
LAST_LOSS_PEAK = loss_peak(checkpointing="full", micro_batches=16)
FEW = budget.train(TrainSetup("tiny-llama", precision="fp32", optimizer="adamw-fused", sequence=32))
SPLIT = budget.train(TrainSetup("tiny-llama", precision="fp32", optimizer="adamw-fused", sequence=64, micro_batches=16))
LENGTHS = NormalDist(6.2, 0.8)  # of the logarithm of a sequence's length, as chapter 03 draws it
GEMM, SOFTMAX = work.matmul(8_192, 4_096, 4_096, "bf16"), work.softmax(8_192, 4_096, "bf16")
ROOF = work.Roof.of("rtx-4090", "bf16")
ALLOWED = job.CARD.capacity_bytes - 2**29  # what the job's card leaves to PyTorch beside a context


NUMBERS = [
    ("00", "00-job", "29.9 GiB", "{:.1f}", lambda: JOB.parts["parameters"] / GIB),
    ("00", "00-job", "| 31.8 GiB", "{:.1f}", lambda: (JOB.parts["activations"] + JOB.parts["logits"]) / GIB),
    ("00", "00-sixteen", "make 119.7 GiB", "{:.1f}", lambda: JOB.at("optimizer step").total / GIB),
    ("00", "00-sixteen", "logits | 121.5", "{:.1f}", lambda: JOB.peak_bytes / GIB),
    ("00", "00-sixteen", "activations are 28.8 GiB", "{:.1f}", lambda: JOB.parts["activations"] / GIB),
    ("00", "00-sixteen", "Of these, 14 are copies", "{:.0f}", lambda: COPIES / GIB),
    ("00", "00-least-compared", "fall by 14 GiB", "{:.0f}", lambda: loss_peak() - loss_peak(checkpointing="full")),
    ("00", "00-least-compared", "to 107.", "{:.0f}.", lambda: loss_peak(checkpointing="full")),
    ("00", "00-fewer", "need 0.4 GiB less here", "{:.1f}", lambda: QLORA_GIB - advised()),
    ("00", "00-doors", "12.7 GiB with 2,048", "{:.1f}", lambda: budget.train(QLORA).peak_bytes / GIB),
    ("00", "00-doors", "8.7 do not depend", "{:.1f}", lambda: 2 * QLORA_GIB - longer_qlora()),
    ("00", "00-doors", "The other 4.0 grow", "{:.1f}", lambda: longer_qlora() - QLORA_GIB),
    ("00", "00-least-compared", "another 14,", "{:.0f}", lambda: COPIES / GIB),
    ("00", "00-when", "processes hold 1.18:", "{:.2f}", lambda: 23.65 - 1.66 - 20.81),
    ("00", "00-when", "process holds 3.88,", "{:.2f}", lambda: 20.81 - 12.09 - 4.84),
    ("00", "00-cost", "are of rank 16", "{}", lambda: QLORA.adapter.rank),
    ("00", "00-trial", "has 6.7 billion", "{:.1f}", lambda: model("llama-2-7b").parameters / 1e9),
    ("00", "00-trial", "Gemma-7B has 8.5", "{:.1f}", lambda: model(GemmaConfig()).parameters / 1e9),
    ("00", "00-off-told", "43 scalars", "{:.0f}", lambda: left_out() / 512),
    ("00", "00-off-told", "22,016 bytes", "{:,}", lambda: left_out()),
    ("01", "01-ridge-why", "An H100 has 295", "{:.0f}", lambda: 989e12 / device("h100").memory_bytes_per_s),
    ("01", "six-ask", "134 MB, more", "{:.0f}", lambda: 2 * 2 * 8_192 * 4_096 / 1e6),
    ("01", "six-ask", "1/1,600 of", "{:,.0f}", lambda: round(GEMM.flops / SOFTMAX.flops, -2)),
    ("01", "b14b06fe-told", "1,664 µs", "{:,.0f}", lambda: ROOF.seconds(GEMM) * 1e6),
    ("01", "b14b06fe-told", "133 for", "{:.0f}", lambda: ROOF.seconds(SOFTMAX) * 1e6),
    ("01", "2e5338ca", "31.5 after", "{:.1f}", lambda: device("rtx-4090").link_bytes_per_s("pcie") * 128 / 130 / 1e9),
    ("01", "550cedb8", "132 multiprocessors", "{:.0f}", lambda: device("h100").units.value),
    ("01", "550cedb8", "with 256 KiB", "{:.0f}", lambda: device("h100").levels()[1].size_bytes / 132 / 2**10),
    ("01", "388ce1fa", "0.27 GB at 2,048", "{:.2f}", lambda: CACHE / GB),
    ("02", "02-autocast", "keeps 888 MiB", "{:.0f}", lambda: of_a_layer("autocast-bf16")),
    ("02", "02-autocast", "counts | 392 |", "{:.0f}", lambda: of_a_layer("bf16")),
    ("02", "02-autocast", "218 million", "{:.0f}", lambda: COPIES_OF_A_LAYER / 2 / 1e6),
    ("02", "02-autocast", "weights | 416 |", "{:.0f}", lambda: COPIES_OF_A_LAYER / 2**20),
    ("02", "02-autocast", "formula has | 48 |", "{:.0f}", lambda: more_under_autocast("projections")),
    ("02", "02-autocast", "for each | 32 |", "{:.0f}", lambda: more_under_autocast("normalised")),
    ("02", "02-more", "kept 2.7 MiB", "{:.1f}", lambda: FEW.at("loss").parts["activations"] / 2**20),
    ("02", "02-more", "took 1.5 MiB", "{:.1f}", lambda: FEW.at("loss").parts["logits"] / 2**20),
    ("02", "ba5b957d", "takes 56 MiB", "{:.0f}", lambda: 2 * 2_048 * 14_336 / 2**20),
    ("02", "do-this-ask", "loss peak | 103.7", "{:.1f}", lambda: (FIRST + COPIES) / GIB),
    ("02", "do-this-ask", "17.8 for each", "{:.1f}", sequence),
    ("02", "do-this-ask", "checkpointed | 107.3", "{:.1f}", lambda: loss_peak(checkpointing="full")),
    ("02", "do-this-ask", "optimizer peak | 149.6", "{:.1f}", lambda: gib(optimizer="adamw-foreach")),
    ("02", "c8f35b68", "copies | 103.7", "{:.1f}", lambda: (FIRST + COPIES) / GIB),
    ("02", "c8f35b68", "tokens | 17.8 more", "{:.1f}", sequence),
    ("02", "c8f35b68", "tokens | 119.7", "{:.1f}", lambda: JOB.at("optimizer step").total / GIB),
    ("02", "do-this-why", "saves 34 GiB", "{:.0f}", fused_loss),
    ("02", "f50ab36e", "46 to 53 bytes", "{0[0]} to {0[1]}", lambda: bytes_of_a_token("bf16")),
    ("02", "f50ab36e", "autocast 56 to 63,", "{0[0]} to {0[1]}", lambda: bytes_of_a_token("autocast-bf16")),
    ("02", "02-accumulated-told", "make 88.7.", "{:.1f}", lambda: SPLIT.at("loss").total / 2**20),
    ("02", "02-accumulated-told", "is there, 4.0.", "{:.1f}.", lambda: 4 * 4_096 * 256 / 2**20),
    ("02", "do-this-why", "weights and states | 89.7", "{:.1f}", lambda: FIRST / GIB),
    ("02", "do-this-why", "that wait | 29.9", "{:.1f}", lambda: JOB.parts["parameters"] / GIB),
    ("02", "do-this-why", "copies of weights | 14.0", "{:.1f}", lambda: COPIES / GIB),
    ("02", "do-this-why", "for the tokens | 3.6", "{:.1f}", lambda: LAST_LOSS_PEAK - (FIRST + COPIES + WEIGHTS) / GIB),
    ("02", "do-this-why", "together | 137.2", "{:.1f}", lambda: LAST_LOSS_PEAK),
    ("02", "02-autocast", "are 14.0 GiB of that", "{:.1f}", lambda: COPIES / GIB),
    ("02", "02-autocast", "79 % at 512", "{:.0f} %", lambda: 100 * copied(512)),
    ("02", "02-autocast", "half here", "{}", lambda: "half" if 0.47 < copied(2_048) < 0.53 else copied(2_048)),
    ("02", "02-autocast", "19 % at 8,192", "{:.0f} %", lambda: 100 * copied(8_192)),
    ("deeper/02", "adapters", "41.9 million", "{:.1f}", lambda: QLORA.adapter.parameters(QLORA.model) / 1e6),
    ("deeper/02", "adapters", "together 0.6 GiB", "{:.1f}", lambda: 4 * ADAPTERS),
    ("deeper/02", "adapters", "keeps 392 MiB", "{:.0f}", lambda: of_a_layer("bf16")),
    ("deeper/02", "smi-qlora", "at most 38 % larger", "{}", lambda: HOLES_PERCENT),
    ("deeper/02", "smi-qlora", "and 5 % with", "{}", lambda: EXPANDABLE_PERCENT),
    ("deeper/02", "smi-told", "are 717 MiB", "{:.0f}", lambda: (14.56 - 13.86) * 1024),
    ("03", "33be4df1", "12.7 GiB with 2,048", "{:.1f}", lambda: budget.train(QLORA).peak_bytes / GIB),
    ("03", "33be4df1", "9.7 with 512", "{:.1f}", lambda: budget.train(replace(QLORA, sequence=512)).peak_bytes / GIB),
    ("03", "03-reserved-ask", "28.8 GiB of activations", "{:.1f}", lambda: JOB.parts["activations"] / GIB),
    ("03", "03-reserved-ask", "29.9 of gradients", "{:.1f}", lambda: JOB.parts["parameters"] / GIB),
    ("03", "03-reserved-why", "has the 1.96 GiB", "{:.2f}", lambda: 4 * 4_096 * 128_256 / GIB),
    ("03", "03-reserved-ask", "tensors of 224 MiB", "{:.0f}", lambda: 4 * 4_096 * 14_336 / 2**20),
    ("03", "03-reserved-ask", "70 % are the MLP's", "{:.0f} %", lambda: 100 * MLP),
    ("03", "33be4df1", "than 500 tokens", "{:.0f}", lambda: round(exp(LENGTHS.mean), -2)),
    ("03", "33be4df1", "one in 2,600", "{:,.0f}", lambda: round(1 / (1 - LENGTHS.cdf(log(7_292))), -2)),
    ("03", "03-longest-why", "10.5 of those 22.8", "{:.1f}", lambda: 12 * 7_292 * 128_256 / GIB),
    ("03", "03-do-this", "2 × 49 GiB", "{:.0f}", lambda: 4 * 200 * 512 * 128_256 / GIB),
    ("03", "03-do-this", "fraction(0.292)", "{:.3f}", lambda: ALLOWED / device("h100").capacity_bytes),
    ("03", "03-do-this", "23.1 of an", "{:.1f}", lambda: ALLOWED / GIB),
    ("03", "03-do-this", "H100's 79.2 GiB", "{:.1f}", lambda: device("h100").capacity_bytes / GIB),
    *(row for one in CHAPTERS for row in one.NUMBERS),
]  # fmt: skip


@pytest.mark.parametrize(
    ("chapter", "cell", "said", "form", "compute"), NUMBERS, ids=[f"{row[0]}-{row[2]}" for row in NUMBERS]
)
def test_a_number_in_the_prose_is_the_one_that_helpers_compute(chapter, cell, said, form, compute):
    prose.require(chapter, cell, said, form, compute())


@pytest.mark.parametrize(
    ("run", "message", "reason"),
    [
        ("X", "2.5, a third cached", "full"),
        ("Y", "1.10, in pieces", "fragmented"),
        ("Z", "2.4, another process has what is missing", "outside"),
    ],
)
def test_the_messages_of_chapter_03_are_real_and_one_is_in_pieces(run, message, reason):
    (path,) = (ROOT / "notebooks").glob("03_*.ipynb")
    (table,) = [cell.source for cell in nb.read(path).cells if cell.id == "3d41954a"]
    row = [float(number) for number in re.search(rf"(?m)^\| {run} \| (.*) \|$", table)[1].split(" | ")]
    text, why, _ = REAL[message]
    sizes = [float(size) / {"G": 1, "M": 1024}[unit] for size, unit in re.findall(r"([\d.]+) ([GM])iB", text)]
    if " reserved in total" in text:  # before PyTorch 2: the sum, and not what is idle
        sizes.append(sizes[-1] - sizes[2])
    assert why == reason
    assert {round(size, 2) for size in sizes} >= {*row}
    assert (row[0] <= row[1] + row[2]) == (reason == "fragmented")
