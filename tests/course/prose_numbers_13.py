"""The numbers that prose and remarks of chapter 13 carry: chapter, cell, words, form, and what computes them."""

from __future__ import annotations

import json
from functools import cache
from statistics import mean, pstdev

from helpers.catalog import ServeSetup, model, tier
from helpers.lesson import service
from helpers.lesson.calculators import block_map_answer
from helpers.memory.serve.engines.pages import pages_of
from helpers.memory.serve.engines.sglang import SglangLaunch
from helpers.memory.serve.engines.vllm import Launch
from helpers.techniques import paging
from tests.house.tree import ROOT

GIB, MIB = 2**30, 2**20
TOKEN = service.SETUP.cache_bytes(1) // service.CARDS
CHAT = paging.chat(200, system=1024, message=400, answer=300, max_tokens=8192)
PROMPTS, ANSWERS = [len(one.prompt) for one in CHAT.requests], [one.new_tokens for one in CHAT.requests]
HELD = [prompt + at for prompt, answer in zip(PROMPTS, ANSWERS, strict=True) for at in range(1, answer + 1)]
SLOTS = mean(-(-tokens // 16) * 16 for tokens in HELD)
START = service.launch()
PEOPLE = START.blocks * 16 / SLOTS
RESERVED, BLOCKS = 200 * 8192 * TOKEN / GIB, 200 * SLOTS * TOKEN / GIB
ONCE = BLOCKS - 199 * 1024 * TOKEN / GIB
FLOPS = 0.5 * service.CARDS * service.CARD.flops_per_s("bf16")
WEIGHTS = service.SETUP.model.parameters
EVEN = paging.break_even_bytes_per_s(service.SETUP.cache_bytes(1), WEIGHTS, FLOPS)
TOKEN_S = 2 * WEIGHTS / FLOPS
HYBRID = model("qwen3.5-27b")
STATE_BYTES = 48 * 128 * 128 * 4 + 3 * 10_240 * 2  # heads x key x value in FP32, and what a convolution of 4 remembers
SLOT = 0.8 * service.CARD.link_bytes_per_s("pcie")
HALF = 0.5 * service.CARD.flops_per_s("bf16")


def delivered(name: str) -> float:
    return min(0.8 * tier(name).read_bytes_per_s, service.CARDS * SLOT)


@cache
def small_waste(size: int) -> float:
    return 100 * block_map_answer("chat", "paged", block_size=size).whole.waste


def launched(**changes) -> Launch:
    return Launch(service.SETUP, service.ENGINE, service.CARD, tensor=service.CARDS, **changes)


def more_pool(**changes) -> float:
    """GiB that a flag adds to the pool of a card."""
    return (launched(**changes).pool_bytes - START.pool_bytes) / GIB


def logged(context: int) -> float:
    """GiB of Llama-3.1-8B's pool in a log of vLLM on an H100, as the accuracy table has it."""
    rows = (ROOT / "helpers/memory/accuracy/data/measured.json").read_text().splitlines()
    (row,) = [one for one in rows if f'"Llama-3.1-8B in bf16, {context:,} tokens"' in one]
    return json.loads(row.strip().removesuffix(","))["figures"]["pool"]


SWAPPED = (("llama-3.1-70b", 8), ("llama-2-7b", 1))  # models, and how many cards


def swapped_ms(name: str, cards: int) -> tuple[float, float]:
    """Of 1,736 tokens: to the host and back, and computed again."""
    setup = ServeSetup(name)
    both = 2 * 1736 * setup.cache_bytes(1) / cards / SLOT
    return 1e3 * both, 1e3 * 1736 * 2 * setup.model.parameters / cards / HALF


def in_words(found: float, **words: tuple[float, float]) -> str:
    """The word whose range holds it."""
    return next((word.replace("_", " ") for word, (least, most) in words.items() if least <= found <= most), f"{found}")


NUMBERS = [
    ("13", "d51d017e", "keep 62.5 GiB", "{:.1f}", lambda: RESERVED),
    ("13", "d51d017e", "40 KiB a token", "{:.0f} KiB", lambda: TOKEN / 1024),
    ("13", "d51d017e", "That is 7 GiB more", "{:.0f} GiB", lambda: service.parts().total / GIB - 79.22),
    ("13", "13-never-told", "some 1,700 tokens", "{:,.0f}", lambda: round(mean(PROMPTS) + mean(ANSWERS) / 2, -2)),
    ("13", "213bb217", "ends at 3,233", "{:,}", lambda: max(HELD)),
    ("13", "213bb217", "Four fifths", "{}", lambda: in_words(1 - mean(HELD) / 8192, Four_fifths=(0.78, 0.82))),
    ("13", "blocks-ask", "holds 1,736 on", "{:,.0f}", lambda: mean(HELD)),
    ("13", "13-blocks-told", "200 × 1,744 slots", "{:,.0f}", lambda: SLOTS),
    ("13", "13-blocks-told", "are 0.06 GiB of it", "{:.2f}", lambda: 200 * 7.5 * TOKEN / GIB),
    ("13", "bceacd36", "62.5 GiB to 13.3", "{:.1f}", lambda: BLOCKS),
    ("13", "42b-people", "each, 161 people", "{}", lambda: START.users),
    ("13", "13-people-told", "82,516 blocks", "{:,}", lambda: START.blocks),
    ("13", "13-people-told", "are 1.32 million", "{:.2f}", lambda: START.blocks * 16 / 1e6),
    ("13", "13-average", "by one per cent", "{}", lambda: in_words(vary(), one_per_cent=(0.0065, 0.0135))),
    ("13", "13-length-told", "58.11 GiB with 2,048", "{:.2f}", lambda: logged(2048)),
    ("13", "13-length-told", "58.11 GiB with", "{:.2f}", lambda: logged(32768)),
    ("13", "13-shared-told", "200 × 720.", "{:.0f}.", lambda: SLOTS - 1024),
    ("13", "fits-or-refused", "3,207,168 bytes", "{:,}", lambda: STATE_BYTES),
    ("13", "13-hybrid-told", "is 783, and", "{:.0f}", lambda: STATE_BYTES / 4096),
    ("13", "13-hybrid-why", "cards it is 400", "{}", lambda: pages_of(HYBRID, "bf16", 16, tensor=8).block_tokens),
    ("13", "13-hybrid-told", "is 783, and", "{:.0f}", lambda: STATE_BYTES / 4096),
    ("13", "13-hybrid-why", "has 320 KiB on", "{:.0f}", lambda: service.SETUP.cache_bytes(1) / 1024),
    ("13", "13-hybrid-why", "of 70.6 billion", "{:.1f}", lambda: WEIGHTS / 1e9),
    ("13", "13-hybrid-why", "do 3,958 TFLOP/s", "{:,.0f}", lambda: FLOPS / 1e12),
    ("13", "13-tier-told", "s, 36 µs. In", "{:.0f}", lambda: 1e6 * TOKEN_S),
    ("13", "13-tier-why", "forty times", "{}", lambda: in_words(delivered("dgx-h100-dram") / EVEN, forty=(40, 46))),
    (
        "13",
        "13-tier-why",
        "disks four times",
        "{}",
        lambda: in_words(delivered("nd-h200-v5-nvme") / EVEN, four=(4, 4.5)),
    ),
    ("13", "13-tier-why", "takes nine times", "{}", lambda: in_words(EVEN / delivered("10gbe"), nine=(8.5, 9.5))),
    (
        "13",
        "13-line-told",
        "a twentieth",
        "{}",
        lambda: in_words(more_pool(share=0.95) / START.pool_bytes * GIB, a_twentieth=(0.045, 0.055)),
    ),
    ("13", "13-do", "a pool of 50.4 GiB", "{:.1f}", lambda: START.pool_bytes / GIB),
    ("13", "13-average", "With 757 nearly", "{:.0f}", lambda: int(PEOPLE)),
    ("13", "13-do", "161 full ones", "{}", lambda: START.users),
    ("13", "13-do", "not 1.3 |", "{:.1f}", lambda: START.blocks * 16 / 1e6),
    ("13", "13-do", "2.4 GiB left", "{:.1f}", lambda: launched(share=0.95).left_bytes / GIB),
    ("13", "13-do", "2.4 million tokens", "{:.1f}", lambda: 8 * 100e9 / service.SETUP.cache_bytes(1) / 1e6),
    ("13", "13-do", "share 40 GiB", "{:.0f}", lambda: 131_072 * service.SETUP.cache_bytes(1) / GIB),
    ("13", "13-when-gone", "three times", "{}", lambda: in_words(1 / (1 - found()), three=(2.9, 3.2))),
    ("13", "13-do", "0.95` | 2.4 GiB", "{:.1f}", lambda: more_pool(share=0.95)),
    ("13", "13-do", "256` | 1.7 GiB", "{:.1f}", lambda: more_pool(max_seqs=256)),
    ("13", "13-do", "| 5.2 million", "{:.1f}", lambda: 1600 * GIB / service.SETUP.cache_bytes(1) / 1e6),
    (
        "13",
        "13-do",
        "a pool of 46.6 GiB",
        "{:.1f}",
        lambda: SglangLaunch(service.SETUP, service.CARD, 8).pool_bytes / GIB,
    ),
    ("13", "13-do", "each gets 8,192", "{:,}", lambda: 131_072 // 16),
    ("13", "calculator-ask", "4 waste 2.5 %", "{:.1f}", lambda: small_waste(4)),
    ("13", "calculator-ask", "of 16 11 %", "{:.0f}", lambda: small_waste(16)),
    ("13", "calculator-ask", "of 64 27 %", "{:.0f}", lambda: small_waste(64)),
    ("13", "13-recall", "that time: 3.3 GB/s", "{:.1f}", lambda: 131_072 / (2 * 8e9 / 400e12) / 1e9),
    ("13", "13-in-short", "| 49 of 62.5", "{:.0f}", lambda: RESERVED - BLOCKS),
    ("13", "13-in-short", "| 7.8 of 13.3", "{:.1f}", lambda: BLOCKS - ONCE),
    ("13", "13-in-short", "two thirds of", "{}", lambda: in_words(found(), two_thirds=(0.64, 0.69))),
    ("deeper/13", "13d-gather-why", "memory: 170 MiB on", "{:.0f}", lambda: 200 * SLOTS * TOKEN / 80 / MIB),
    (
        "deeper/13",
        "13d-gather-why",
        "it is 317 MiB",
        "{:.0f}",
        lambda: 200 * -(-max(HELD) // 16) * 16 * TOKEN / 80 / MIB,
    ),
    ("deeper/13", "13d-fork-ask", "has 1,506 tokens", "{:,.0f}", lambda: mean(PROMPTS)),
    ("deeper/13", "13d-fork-ask", "answers have 352", "{:.0f}", lambda: mean(ANSWERS)),
    ("deeper/13", "13d-fork-ask", "block is 640 KiB", "{:.0f}", lambda: 16 * TOKEN / 1024),
    ("deeper/13", "13d-fork-why", "moves 51 GB/s", "{:.0f}", lambda: SLOT / 1e9),
    ("deeper/13", "13d-fork-why", "takes 36 µs", "{:.0f}", lambda: 1e6 * TOKEN_S),
    ("deeper/13", "13d-swap-told", "are 3 ms. Computing", "{:.0f}", lambda: swapped_ms("llama-3.1-70b", 8)[0]),
    ("deeper/13", "13d-swap-told", "takes 62", "{:.0f}", lambda: swapped_ms("llama-3.1-70b", 8)[1]),
    ("deeper/13", "13d-theirs-told", "promised 13 times", "{:.0f}", lambda: promised()),
    ("deeper/13", "13d-traffic-why", "1.6 % of", "{:.1f}", lambda: 100 * paging.waste_of(paging.chat(), "paged").waste),
]


def vary() -> float:
    """The spread of what all the people that fit hold together, as a part of it."""
    return pstdev(HELD) / mean(HELD) / PEOPLE**0.5


def found() -> float:
    """The part of all prompts' tokens that a prefix cache finds."""
    return 199 * 1024 / sum(PROMPTS)


def promised() -> float:
    """How many times as quick as computing a token of Llama-3.1-8B comes to one H100, by two FLOPs a weight."""
    setup = ServeSetup("llama-3.1-8b")
    return SLOT / paging.break_even_bytes_per_s(setup.cache_bytes(1), setup.model.parameters, HALF)
