"""The numbers that prose and remarks of chapter 05 carry: chapter, cell, words, form, and what computes them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import torch
from transformers import AutoModel, BertConfig, MobileBertConfig

from helpers.catalog import Adapter, ServeSetup, device, model, number_format
from helpers.catalog.gguf_header import of_types
from helpers.catalog.hardware import dequantized
from helpers.lesson import job
from helpers.memory import budget, measure, weights
from helpers.small_lm import load
from helpers.techniques import quantization as q
from tests.house.tree import ROOT

GIB = 2**30
NF4 = ServeSetup("llama-3.1-8b", weights="nf4")
PARTS = weights.weight_parts(NF4)
SERVED = ServeSetup("llama-3.1-8b", users=1, context=8192)
H100 = device("h100")
ADAPTERS = Adapter("lora", rank=16, targets="all-linear", prepared=False, adapter_dtype="bf16")
BASE = replace(job.SETUP, precision="bf16", adapter=ADAPTERS)
FILE = model(ROOT / "helpers/lesson/data/llama-3.1-8b-q4_k_m.gguf")
OF_TYPES = dict(of_types(FILE.stored))
GROUPS, FINE = q.Grid(4, 64, symmetric=True), q.Grid(4, 16)


def gib(kind: str, name: str = "llama-3.1-8b") -> float:
    return budget.weight_bytes(ServeSetup(name, weights=kind)) / GIB


def values_of(kind: str) -> int:
    return sum(tensor.values for tensor in FILE.stored if tensor.type == kind)


def with_ends_in_16_bits() -> float:
    """GiB of the GGUF file if embedding and head were in 16 bits, as the formats of linear layers leave them."""
    ends = [tensor for tensor in FILE.stored if tensor.name in ("token_embd.weight", "output.weight")]
    return (sum(OF_TYPES.values()) + sum(2 * tensor.values - tensor.size_bytes for tensor in ends)) / GIB


def unpacked_on(card: str) -> float:
    return budget.weight_bytes(dequantized(ServeSetup("deepseek-v3"), device(card))) / GIB


@cache
def weight() -> torch.Tensor:
    return load().model.model.layers[1].mlp.down_proj.weight.detach()


def error(values: torch.Tensor) -> float:
    return float((values - weight()).norm() / weight().norm())


def of_absmax(values: torch.Tensor) -> float:
    """The error over that of absmax with a scale for 64, in %."""
    return 100 * error(values) / error(GROUPS.round(weight()))


def nf4() -> torch.Tensor:
    return q.NF4Tensor.of(weight(), double_quant=False).dequantize()


def sixteen_even() -> torch.Tensor:
    groups = weight().view(-1, 64)
    step = groups.abs().amax(-1, keepdim=True) * 2 / 15
    return (((groups / step - 0.5).round() + 0.5) * step).view_as(weight())


def about(share: float) -> str:
    """A share in words, where it is within a tenth of one that has them."""
    words = {1 / 2: "half", 1 / 3: "a third", 1 / 4: "another quarter"}
    return next((said for value, said in words.items() if abs(share / value - 1) < 0.1), f"{share:.3f}")


PLAIN = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
BERTS = {"BERT-base": BertConfig(**PLAIN), "MobileBERT": MobileBertConfig(**PLAIN)}


@cache
def of_bert(name: str) -> tuple[int, int]:
    """Bytes of its weights, and of what a training step on 128 tokens keeps."""
    net, ids = AutoModel.from_config(BERTS[name]).train(), torch.zeros(1, 128, dtype=torch.long)
    step = measure.step(lambda: net(ids).last_hidden_state.square().mean().backward(), net, warmup=0)
    return sum(weight.nbytes for weight in net.parameters()), step.saved_bytes


def of_mobilebert(at: int) -> float:
    """Its weights (0) or activations (1) over BERT-base's, in %."""
    return 100 * of_bert("MobileBERT")[at] / of_bert("BERT-base")[at]


NUMBERS = [
    ("05", "a5d2ee87", "is 8.03 billion", "{:.2f}", lambda: NF4.model.parameters / 1e9),
    ("05", "a5d2ee87", "in FP32, 29.9 GiB", "{:.1f}", lambda: budget.train(job.SETUP).parts["parameters"] / GIB),
    ("05", "05-nf4-ask", "| 6,979,321,856 |", "{:,}", lambda: 2 * PARTS["quantized"]),
    ("05", "05-nf4-ask", "| 1,050,939,392 |", "{:,}", lambda: PARTS["kept"] // 2),
    ("05", "05-nf4-told", "take 3.25 GiB", "{:.2f}", lambda: PARTS["quantized"] / GIB),
    ("05", "05-nf4-told", "scales 0.41,", "{:.2f}", lambda: PARTS["scales"] / GIB),
    ("05", "05-nf4-told", "head 1.96.", "{:.2f}", lambda: PARTS["kept"] / GIB),
    ("05", "6cb13157", "is 38 % of", "{:.0f} %", lambda: 100 * gib("nf4") / gib("bf16")),
    ("05", "6cb13157", "the 15.0 GiB", "{:.1f}", lambda: gib("bf16")),
    ("05", "6cb13157", "takes 4.127 bits", "{:.3f}", lambda: number_format("nf4-dq").bits_per_value),
    ("05", "6cb13157", "the model 5.3 GiB", "{:.1f}", lambda: gib("nf4-dq")),
    ("05", "05-cache-ask", "takes 1.0 GiB", "{:.1f}", lambda: budget.serve(SERVED).parts["kv_cache"] / GIB),
    ("05", "05-cache-ask", "GiB to 5.3.", "{:.1f}.", lambda: gib("w4a16-g128")),
    ("05", "05-cache-told", "15.3 of 25.0", "{:.1f} of", lambda: gib("w4a16-g128") + 10),
    ("05", "05-cache-told", "by 9.6 GiB", "{:.1f}", lambda: gib("bf16") - gib("w4a16-g128")),
    ("05", "05-outlier-told", "step is 0.29", "{:.2f}", lambda: 2 / 7),
    ("05", "9d49bb00", "leave half of", "{}", lambda: about(error(GROUPS.round(weight()))
        / error(q.Grid(4, "tensor", symmetric=True).round(weight())))),
    ("05", "9d49bb00", "by another quarter", "{}", lambda: about(
        1 - error(FINE.round(weight())) / error(q.Grid(4, 64).round(weight())))),
    ("05", "9d49bb00", "leaves 79 %", "{:.0f} %", lambda: of_absmax(nf4())),
    ("05", "05-nf4-idea-told", "takes off 7 %", "{:.0f} %", lambda: 100 - of_absmax(sixteen_even())),
    ("05", "05-nf4-idea-told", "another 14.", "{:.0f}.", lambda: of_absmax(sixteen_even()) - of_absmax(nf4())),
    ("05", "family-files", "1,531,969,536 weights", "{:,}", lambda: values_of("q6_k")),
    ("05", "family-files", "and 6,498,025,472", "{:,}", lambda: values_of("q4_k")),
    ("05", "05-gguf-told", "Right: 3.40 GiB", "{:.2f}", lambda: OF_TYPES["q4_k"] / GIB),
    ("05", "05-gguf-told", "and 1.17 in", "{:.2f}", lambda: OF_TYPES["q6_k"] / GIB),
    ("05", "05-gguf-why", "4.58 GiB are", "{:.2f}", lambda: sum(OF_TYPES.values()) / GIB),
    ("05", "05-gguf-why", "NF4's 5.6,", "{:.1f}", lambda: gib("nf4")),
    ("05", "05-gguf-why", "takes 4.9 bits", "{:.1f}", lambda: 8 * sum(OF_TYPES.values()) / FILE.parameters),
    ("05", "05-gguf-why", "file 5.9 GiB", "{:.1f}", with_ends_in_16_bits),
    ("05", "d2107327", "| INT8 | 8.5 |", "{:.1f}", lambda: gib("w8a8")),
    ("05", "05-not-help-rest", "1.6 million", "{:.1f}", lambda: sum(
        each.weight.numel() for each in q.dense_linears(load().model).values()) / 1e6),
    ("05", "05-do-this", "peaks at 29.4 GiB", "{:.1f}", lambda: budget.train(BASE).peak_bytes / GIB),
    ("05", "05-do-this", "15.0 of them", "{:.1f}", lambda: budget.train(BASE).parts["parameters"] / GIB),
    ("05", "05-rung-told", "29.4 less 9.6", "{:.1f}", lambda: gib("bf16") - gib("nf4-dq")),
    ("05", "d2107327", "| FP8 | 8.5 |", "{:.1f}", lambda: gib("fp8-e4m3")),
    ("05", "d2107327", "| GPTQ | 5.3 |", "{:.1f}", lambda: gib("w4a16-g128")),
    ("05", "d2107327", "| GGUF | 4.6 |", "{:.1f}", lambda: sum(OF_TYPES.values()) / GIB),
    ("05", "f86daa78", "3.35 TB/s", "{:.2f}", lambda: H100.memory_bytes_per_s / 1e12),
    ("05", "f86daa78", "989 TFLOP/s", "{:.0f}", lambda: H100.flops_per_s("bf16") / 1e12),
    ("05", "05-not-help-rest", "1,250 GiB", "{:,.0f}", lambda: unpacked_on("a100-80gb")),
    ("05", "05-not-help-rest", "place of 627.", "{:.0f}.", lambda: unpacked_on("h100")),
    ("deeper/05", "05d-berts-ask", "keeps 73 MiB", "{:.0f}", lambda: of_bert("BERT-base")[1] / 2**20),
    ("deeper/05", "05d-berts-why", "takes 23 % of", "{:.0f} %", lambda: of_mobilebert(0)),
    ("deeper/05", "05d-berts-why", "and 85 % of", "{:.0f} %", lambda: of_mobilebert(1)),
    ("05", "868b9d13", "BF16 | 15.0", "{:.1f}", lambda: gib("bf16")),
    ("05", "868b9d13", "8 bits | 8.5", "{:.1f}", lambda: gib("fp8-e4m3")),
    ("05", "868b9d13", "4.2 to 5.6", "to {:.1f}", lambda: gib("nf4")),
]  # fmt: skip
