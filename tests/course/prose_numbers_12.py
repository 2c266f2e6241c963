"""The numbers that prose and remarks of chapter 12 carry: chapter, cell, words, form, and what computes them."""

from __future__ import annotations

from dataclasses import replace

from transformers import AutoConfig

from helpers.catalog import ServeSetup, device, model
from helpers.lesson import service
from helpers.memory import budget
from helpers.memory.serve.engines.vllm import Launch
from helpers.memory.serve.rank_weights import rank_weight_bytes

GIB, MIB, KIB = 2**30, 2**20, 2**10
SETUP, LAUNCH = service.SETUP, service.launch()
FULLER = replace(LAUNCH, share=0.95, max_seqs=256)
WIDE = service.launch(cards=16)
LATENT = ServeSetup("deepseek-v3", users=200, context=8192)
NEXT = model(AutoConfig.for_model("qwen3_next"))
QWEN = {"hidden_size": 2560, "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8}
QWEN |= {"head_dim": 128, "intermediate_size": 9728, "vocab_size": 151936, "tie_word_embeddings": True}
SMALLER = model(AutoConfig.for_model("qwen3", max_position_embeddings=40960, **QWEN))  # Qwen3-4B
READ_160 = budget.decode_bytes(replace(SETUP, users=160))
READ_FEW = budget.decode_bytes(replace(SETUP, users=8, context=512))
CACHE_160 = 160 * SETUP.cache_bytes()


def window_pays_from() -> int:
    """The tokens from which Gemma-3-27B keeps less than Llama-3.1-70B."""
    shapes = model("gemma-3-27b-text"), SETUP.model
    gemma, llama = ([shape.cache_bytes("bf16", tokens) for tokens in range(1, 8192)] for shape in shapes)
    return next(tokens for tokens, (one, other) in enumerate(zip(gemma, llama, strict=True), 1) if one < other)


def of_8b(kv: str) -> int:
    """Users of 8,192 tokens of Llama-3-8B in vLLM's share of one H100."""
    return Launch(ServeSetup("llama-3-8b", users=32, context=8192, kv=kv), service.ENGINE, service.CARD).users


def fit(cards: int = 8, **changes) -> int:
    return service.launch(replace(SETUP, **({"skipped": None} | changes)), cards).users


def divided() -> int:
    """People on sixteen cards of which two keep every other token of a head."""
    tokens = WIDE.pages.block_tokens
    return WIDE.blocks // (-(-SETUP.context // 2) // tokens)


def gain(context: int) -> float:
    """How much faster, in %, one person's step is with an FP8 cache."""
    setups = (ServeSetup(SMALLER, kv=kind, context=context) for kind in ("bf16", "fp8-e4m3"))
    slow, fast = map(budget.decode_bytes, setups)
    return 100 * (slow / fast - 1)


def per_token(shape) -> float:
    return (shape.cache_bytes("bf16", 8192) - shape.cache_bytes("bf16", 8191)) / KIB


def waiting() -> str:
    share = 1 - LAUNCH.users / SETUP.users
    return "one in five" if 0.18 < share < 0.22 else f"{share:.2f}"


def q8_0() -> float:
    values = budget.serve(replace(SETUP, kv="q8_0")).held["kv_cache"]
    return values / service.CARDS / GIB


V32 = model({**model("deepseek-v3").config, "model_type": "deepseek_v32"})

NUMBERS = [
    ("12", "12-s1", "in five waited", "{}", lambda: waiting().removeprefix("one ")),
    ("12", "12-s1", "waited: 161 fit", "{}", lambda: LAUNCH.users),
    ("12", "12-s1", "weights, 16.5 GiB", "{:.1f}", lambda: LAUNCH.weight_bytes / GIB),
    ("12", "12-s1", "nearly four times", "{}", lambda: four_times()),
    ("12", "b1a0f95e", "a third of a MiB", "{}", lambda: third()),
    ("12", "779380ab", "service: 500 GiB", "{:.0f}", lambda: budget.serve(SETUP).held["kv_cache"] / GIB),
    ("12", "779380ab", "beside 131 of", "{:.0f}", lambda: budget.serve(SETUP).held["parameters"] / GIB),
    ("12", "12-flops-told", "14,304 tokens. With", "{:,}", lambda: sum(range(192, 256))),
    ("12", "12-s3", "takes 92 % of", "{:.0f} %", lambda: 100 * LAUNCH.chosen_share),
    ("12", "12-s3", "and 50.4 GiB are", "{:.1f}", lambda: LAUNCH.pool_bytes / GIB),
    ("12", "12-s3", "person takes 0.31 of", "{:.2f}", lambda: LAUNCH.user_bytes / GIB),
    ("12", "12-cards-told", "become 8.4.", "{:.1f}.", lambda: WIDE.weight_bytes / GIB),
    ("12", "12-cards-told", "for 26 more", "{}", lambda: WIDE.users - LAUNCH.users),
    ("12", "12-cards-told", "leave, 8.1 GiB", "{:.1f}", lambda: (WIDE.pool_bytes - LAUNCH.pool_bytes) / GIB),
    ("12", "12-cards-told", "hold 322.", "{}.", lambda: 2 * LAUNCH.users),
    ("12", "12-latent-ask", "parallel, holds 374.", "{}.", divided),
    ("12", "12-latent-ask", "is 68.6 KiB", "{:.1f}", lambda: per_token(LATENT.model)),
    ("12", "12-latent-ask", "a fifth of", "{}", lambda: fifth()),
    ("12", "12-latent-told", "be 13.4 GiB", "{:.1f}", lambda: LATENT.users * LATENT.cache_bytes() / 8 / GIB),
    ("12", "12-s4", "Llama's 62.5 GiB", "{:.1f}", lambda: service.parts()["kv_cache"] / GIB),
    ("12", "12-s4", "them in 13.4", "{:.1f}", lambda: 25 * LATENT.cache_bytes() / GIB),
    ("12", "12-s4", "Beside 79 GiB of", "{:.0f}", lambda: rank_weight_bytes(LATENT, 8) / GIB),
    ("12", "12-s7", "from 1,800 tokens on", "{:,}", lambda: round(window_pays_from(), -2)),
    ("12", "88ae42fd", "card; 54 and", "{}", lambda: of_8b("bf16")),
    ("12", "88ae42fd", "and 108 in", "{}", lambda: of_8b("fp8-e4m3")),
    ("12", "12-bits-told", "holds 322.", "{}.", lambda: fit(kv="fp8-e4m3")),
    ("12", "b4966b2b", "of 48, 24 KiB", "{:.0f}", lambda: per_token(NEXT)),
    ("12", "b4966b2b", "together 74 MiB", "{:.0f}", lambda: NEXT.state_bytes() / MIB),
    ("12", "12-s7", "what 3,168 more", "{:,.0f}", lambda: NEXT.state_bytes() / KIB / per_token(NEXT)),
    ("12", "12-s7", "once, 139 GB", "{:.0f}", lambda: (READ_160 - CACHE_160) / 1e9),
    ("12", "12-s7", "is 429 GB", "{:.0f}", lambda: CACHE_160 / 1e9),
    ("12", "12-s7", "read 26.8 TB/s", "{:.1f}", lambda: 8 * device("h100").memory_bytes_per_s / 1e12),
    ("12", "12-speed-told", "Right: 569 GB", "{:.0f}", lambda: READ_160 / 1e9),
    ("12", "12-speed-told", "become 354.", "{:.0f}.", lambda: (READ_160 - CACHE_160 / 2) / 1e9),
    ("12", "12-speed-why", "Computed are 2", "{:.0f}", lambda: gain(2_048)),
    ("12", "12-speed-why", "2 and 23", "{:.0f}", lambda: gain(32_768)),
    ("12", "12-s3", "1,320,256 tokens", "{:,}", lambda: LAUNCH.tokens),
    ("12", "12-do", "161 → 174 |", "→ {}", lambda: FULLER.users),
    ("12", "12-do", "| 2.4 GiB stay", "{:.1f}", lambda: FULLER.left_bytes / GIB),
    ("12", "12-do", "161 → 573, if", "→ {}", lambda: fit(kv="nvfp4")),
    ("12", "12-do", "| 161 → 186 |", "→ {}", lambda: fit(weights="fp8-e4m3")),
    ("12", "12-do", "62.5 → 33.2", "{:.1f}", q8_0),
    ("12", "12-do", "107.2 → 13.4", "{:.1f}", lambda: LATENT.users * LATENT.cache_bytes() / GIB),
    ("12", "9bed0748", "1.3 GB of", "{:.1f}", lambda: 8 * 512 * 320 * KIB / 1e9),
    ("12", "9bed0748", "GB of 140.", "{:.0f}.", lambda: READ_FEW / 1e9),
    ("12", "f642c584", "replica | 26 more", "{}", lambda: WIDE.users - LAUNCH.users),
    ("12", "f642c584", "16 | 3.6 times", "{:.1f}", lambda: fit(kv="nvfp4") / LAUNCH.users),
    ("deeper/12", "12d-latent-why", "is 56 %", "{:.0f} %", lambda: 100 * packed()),
    ("deeper/12", "12d-latent-why", "656 bytes and", "{}", lambda: V32.layers[0].attention.sparse_fp8_bytes - 132),
    ("deeper/12", "12d-delta-why", "at 1,056 tokens", "{:,.0f}", lambda: NEXT.state_bytes() / 36 / (2 * 2 * 256 * 2)),
]  # fmt: skip


def four_times() -> str:
    times = service.parts()["kv_cache"] / LAUNCH.weight_bytes
    return "nearly four times" if 3.7 < times < 4 else f"{times:.1f} times"


def third() -> str:
    share = per_token(SETUP.model) / KIB
    return "a third" if 0.3 < share < 0.35 else f"{share:.2f}"


def fifth() -> str:
    share = per_token(LATENT.model) / per_token(SETUP.model)
    return "a fifth" if 0.19 < share < 0.22 else f"{share:.2f}"


def packed() -> float:
    return V32.cache_bytes("fp8-e4m3", 1) / V32.cache_bytes("bf16", 1)
