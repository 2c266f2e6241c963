"""The numbers that prose and remarks of chapter 11 carry: chapter, cell, words, form, and what computes them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import torch
from torch.nn.functional import normalize

from helpers.catalog import ServeSetup, model
from helpers.lesson import job, service
from helpers.lesson.calculators.attention import attention_answer
from helpers.memory import budget
from helpers.memory.layer_work import weights_met
from helpers.memory.serve.delta import DeltaForward, widest_bytes
from helpers.techniques.attention import Causal, Window, counts

GIB, MIB, KIB = 2**30, 2**20, 2**10
PROMPT = counts.Call(32_768, heads=8, kv_heads=1)
HEADS, WIDTH, LAYERS = 8, 128, 80
FLOPS, RATE = service.CARD.flops_per_s("bf16"), service.CARD.memory_bytes_per_s
LINEAR = 2 * weights_met(service.SETUP.model.layers[0]) / service.CARDS  # FLOPs of a token in a layer
PASS_S = service.launch().weight_bytes / RATE
NEXT, V32 = "Qwen/Qwen3-Next-80B-A3B", "deepseek-ai/DeepSeek-V3.2"
CHOSEN = 128 * 2 * (576 + 512) * 2_048
INDEX = 64 * 2 * 128


def matrix_s(tokens: int) -> float:
    return 4 * HEADS * tokens**2 * 2 / RATE


def linear_s(tokens: int) -> float:
    return max(tokens * LINEAR / FLOPS, LINEAR / RATE)


def tiled_s(tokens: int) -> float:
    return 4 * HEADS * WIDTH * tokens**2 / 2 / FLOPS


@cache
def crosses(way, share: float = 1.0) -> int:
    return next(tokens for tokens in range(512, 10**6) if way(tokens) > share * linear_s(tokens))


def tiles(mask) -> int:
    return len(list(mask.tiles(4_096, 4_096)))


def pairs(mask) -> int:
    every = torch.arange(4_096)
    return int(mask.allowed(every, every).sum())


def alike() -> float:
    """The mean cosine of two of the keys that have something in common."""
    keys = normalize(torch.randn(2_048, 128, generator=torch.Generator().manual_seed(0)) + 0.6, dim=-1)
    return (((keys @ keys.T).sum() - len(keys)) / (len(keys) * (len(keys) - 1))).item()


def profile_gib(**changes) -> float:
    return service.launch(replace(service.SETUP, **changes)).profile_bytes / GIB


def opens(**changes):
    return attention_answer("h100", sequence=32_768, heads=64, kv_heads=8, **changes).breaks


def on_a_t4() -> int:
    return attention_answer("t4", sequence=32_768, heads=64, kv_heads=8, number_format="fp16").breaks["naive"][0]


def cache_bytes(model: str, tokens: int) -> int:
    return ServeSetup(model, context=tokens).cache_bytes()


def sums_s() -> float:
    """Two sums a layer over the eight cards, each of the prompt's hidden states in BF16, on a ring of NVLink."""
    sent = 2 * 7 / 8 * 32_768 * service.SETUP.model.hidden * 2
    return LAYERS * 2 * sent / service.CARD.link_bytes_per_s("nvlink")


def eager_keeps() -> float:
    """Of matrices in BF16, what a layer of the job keeps more with eager attention."""
    saved = [
        budget.bytes_saved_by(replace(job.SETUP, sequence=8_192, attention=way), job.SETUP.model.layers[0])
        for way in ("eager", "sdpa")
    ]
    return (saved[0] - saved[1]) / counts.Call(8_192).matrix_bytes


def peak_gib(way: str) -> float:
    return budget.train(replace(job.SETUP, attention=way)).peak_bytes / GIB


def piece_gib() -> float:
    return 2 * counts.Call(8_192, keys=32_768, heads=8, kv_heads=1).matrix_bytes / GIB


NUMBERS = [
    ("11", "11-prompt-told", "are 2 GiB", "{:.0f}", lambda: PROMPT.matrix_bytes / 8 / GIB),
    ("11", "11-prompt-told", "make 128 GiB", "{:.0f}", lambda: 8 * PROMPT.matrix_bytes / GIB),
    ("11", "11-pieces", "adds 32 GiB", "{:.0f}", lambda: 2 * PROMPT.matrix_bytes / GIB),
    ("11", "11-pieces", "of 8,192 tokens", "{:,}", lambda: service.launch().batch_tokens),
    ("11", "11-small-pieces", "take 32 MiB", "{:.0f}", lambda: PROMPT.matrix_bytes * 64 / 32_768 / MIB),
    ("11", "11-small-pieces", "weights 512 times", "{:.0f}", lambda: 32_768 / 64),
    ("11", "11-small-pieces", "5.3 ms each", "{:.1f}", lambda: 1e3 * PASS_S),
    ("11", "11-small-pieces", ": 2.7 seconds", "{:.1f}", lambda: 512 * PASS_S),
    ("11", "11-tiled-ask", "takes 512 KiB", "{:.0f}", lambda: HEADS * 128 * 128 * 4 / KIB),
    ("11", "11-tiled-ask", "needs 256 MiB", "{:.0f}", lambda: 2 * HEADS * 2_048**2 * 4 / MIB),
    ("11", "s3-why", "needs 65 MiB", "{:.0f}", lambda: PROMPT.peak_bytes / MIB),
    ("11", "s3-why", "not 32 GiB", "{:.0f}", lambda: PROMPT.naive_peak_bytes // GIB - 1),  # and the mask's
    ("11", "s5", "moves 3.35 TB/s", "{:.2f}", lambda: RATE / 1e12),
    ("11", "11-wait-told", "× 17.2 GB.", "{:.1f}", lambda: PROMPT.matrix_bytes / 1e9),
    ("11", "11-wait-told", "are 5.5 TB", "{:.1f}", lambda: LAYERS * 4 * PROMPT.matrix_bytes / 1e12),
    ("11", "s5-why", "do 295 FLOPs", "{:.0f}", lambda: FLOPS / RATE),
    ("11", "s5-why", ": 64 FLOPs a byte", "{:.0f}", lambda: 4 * WIDTH / 8),
    ("11", "s5-why", "= 4.6.**", "{:.1f}", lambda: FLOPS / RATE / 64),
    ("11", "s5-why", "makes it 9.2", "{:.1f}", lambda: matrix_s(32_768) / tiled_s(32_768)),
    ("11", "s5-why", "another 0.33 s", "{:.2f}", sums_s),
    ("11", "recap", "three matrices a layer", "{}", lambda: {3: "three"}.get(round(eager_keeps()))),
    ("11", "11-lines", "of four people", "{}", lambda: {4: "four"}.get(32_768 // service.SETUP.context)),
    ("11", "11-lines", "FLASHINFER` names another than FlashAttention | 8 GiB", "{:.0f} GiB", piece_gib),
    ("11", "s5-why", "take 0.57 s", "{:.2f}", lambda: LAYERS * linear_s(32_768)),
    ("11", "11-cross-told", "× 0.57 ÷ 1.64", "{:.2f}", lambda: LAYERS * matrix_s(32_768)),
    ("11", "s4", "to 104,000 tokens", "{:,}", lambda: round(crosses(tiled_s), -3)),
    ("11", "s6", "costs it 25 GiB", "{:.0f}", lambda: peak_gib("eager") - peak_gib("sdpa")),
    ("11", "s6", "528 of 1,024", "{}", lambda: tiles(Causal())),
    ("11", "s6", "leaves 23.4 %", "{:.1f}", lambda: 100 * pairs(Window(512)) / pairs(Causal())),
    ("11", "11-window-told", "over 639 keys", "{}", lambda: 128 + 512 - 1),
    ("11", "11-window-told", "150 of 528", "{}", lambda: tiles(Window(512))),
    ("11", "s6-tensor", "1 GiB of flags", "{:.0f}", lambda: PROMPT.mask_bytes / GIB),
    ("11", "11-forgets", "cosine of 0.26", "{:.2f}", alike),
    ("11", "11-state-told", "are 512 KiB", "{:.0f}", lambda: HEADS * 128 * 128 * 4 / KIB),
    ("11", "11-state-ask", "caches 512 bytes", "{}", lambda: 2 * PROMPT.key_bytes // 32_768),
    ("11", "11-lines", "96 MiB of", "{:.0f}", lambda: 1024 * (profile_gib() - profile_gib(prefill_tokens=2_048))),
    ("11", "11-lines", "of 2.39 GiB", "{:.2f}", profile_gib),
    ("11", "11-lines", "4 GiB, all heads", "{:.0f}", lambda: 64 * 512 * 32_768 * 4 / GIB),  # llama.cpp's n_ubatch, FP32
    ("11", "decode-told", "heads: 64 bytes", "{}", lambda: 4 * HEADS * 2),
    ("11", "11-short", "Below 1,132 tokens", "{:,}", lambda: crosses(matrix_s, 0.1)),
    ("11", "11-short", "to 10,445 tokens", "{:,}", lambda: crosses(tiled_s, 0.1)),
    ("11", "11-short", "at most 5 %", "{:.0f}", lambda: 100 * 0.1 / 2),
    ("11", "calculators", "from 7,390 tokens", "{:,}", lambda: opens()["naive"][0]),
    ("11", "calculators", "is 10,800,", "{:,}", on_a_t4),
    ("11", "calculators", "is 104,000 on both", "{:,}", lambda: opens()["tiled"][0]),
    ("11", "calculators", "never overtakes", "{}", lambda: opens(window=4_096)["tiled"] or "never overtakes"),
    ("11", "11-recall", "9.2 times.", "{:.1f}", lambda: FLOPS / RATE / 32),
    ("deeper/11", "11d-copies-told", "place of 12,", "{}", lambda: 4 + 4 + 2 + 2),
    ("deeper/11", "11d-pad-found", "bytes are 16 MiB", "{:.0f}", lambda: 4_096**2 / MIB),
    ("deeper/11", "11d-pad-why", "mask of 64 MiB", "{:.0f}", lambda: 4 * 4_096**2 / MIB),
    ("deeper/11", "11d-states-told", "are 72 MiB", "{:.0f}", lambda: 36 * 32 * 128 * 128 * 4 / MIB),
    ("deeper/11", "11d-states-told", "take 2 MiB more", "{:.0f}", lambda: convolved() / MIB),
    ("deeper/11", "11d-exp-told", "are 254 times slower", "{:.0f}", lambda: 989e12 / 3.9e12),
    ("deeper/11", "11d-exp-told", "÷ 989e12 for", "{:.0f}", lambda: FLOPS / 1e12),
    ("deeper/11", "11d-chunks-why", "take 1.82 GiB", "{:.2f}", lambda: chunks_gib()),
    ("deeper/11", "11d-indexer", "At 3,000 tokens", "{:,.0f}", lambda: round(72 * MIB / (12 * 2 * 2 * 256 * 2), -3)),
    ("deeper/11", "11d-indexer-told", "are 570 MFLOP", "{:.0f}", lambda: CHOSEN / 1e6),
    ("deeper/11", "11d-indexer-told", "does 16,384 FLOPs", "{:,}", lambda: INDEX),
    ("deeper/11", "11d-end", "22 % *larger*", "{:.0f}", lambda: 100 * larger()),
    ("deeper/11", "11d-end", "a thirteenth", "{}", lambda: {13: "a thirteenth"}.get(round(fewer()))),
]


def convolved() -> int:
    """What Qwen3-Next keeps of one token, less its states and the token's keys and values."""
    return cache_bytes(NEXT, 1) - 36 * 32 * 128 * 128 * 4 - 12 * 2 * 2 * 256 * 2


def larger() -> float:
    with_indexer, without = (cache_bytes(model, 4_096) for model in (V32, "deepseek-v3"))
    return with_indexer / without - 1


def fewer() -> float:
    """How many times fewer FLOPs for the token behind 131,072 others."""
    return CHOSEN / 2_048 * 131_072 / (CHOSEN + INDEX * 131_072)


def chunks_gib() -> float:
    """What Transformers' code for Qwen3-Next's delta rule makes over a piece of a prompt."""
    rule = model(NEXT).layers[0].attention.delta
    return widest_bytes(DeltaForward(rule, sequences=1, tokens=8_192, width=2, joined=True)) / GIB
