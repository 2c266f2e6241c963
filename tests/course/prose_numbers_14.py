"""The numbers that prose and remarks of chapter 14 carry: chapter, cell, words, form, and what computes them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from helpers.catalog import ServeSetup, model
from helpers.catalog.engines import engine
from helpers.lesson import service
from helpers.memory.serve.engines.vllm import Launch
from helpers.techniques import paging, scheduling
from helpers.techniques.scheduling import (
    Instance,
    KVLink,
    MeanStep,
    Policy,
    Roofline,
    batching,
    nim,
    simulate,
    simulate_disaggregated,
    steady,
)

GIB = 2**30
SERVICE = replace(service.SETUP, kv="fp8")
DRAFT = replace(SERVICE, model="llama-3.2-1b")
SHARES = nim.MEMORY_EFFICIENCY, nim.COMPUTE_EFFICIENCY
CARD = Roofline.of(SERVICE, service.CARD, service.CARDS, *SHARES, nim.OVERHEAD_S)
SMALL = Roofline.of(DRAFT, service.CARD, service.CARDS, *SHARES, nim.OVERHEAD_S * 16 / 80)
TOKEN_S = CARD.flops_per_token / CARD.flops_per_s
LAUNCH, SMALL_LAUNCH = service.launch(SERVICE), service.launch(DRAFT)
CHAT = paging.trace("chat").requests


def seconds(users: int, chunk: int = 0, seen: int = 0, each: int = 1, roof: Roofline = CARD, context: int = 4096):
    """Of a step in which `users` get `each` tokens, beside a chunk of a prompt."""
    pairs = users * each * context + sum(range(seen + 1, seen + chunk + 1))
    return roof.seconds(MeanStep(users * each + chunk, users * context + (seen + chunk if chunk else 0), pairs))


def prefill(budget: int, prompt: int = 8000, users: int = 200) -> tuple[float, float]:
    """The longest step, and all until the first token."""
    chunk = budget - users
    steps = [seconds(users, min(chunk, prompt - seen), seen) for seen in range(0, prompt, chunk)]
    return max(steps), sum(steps)


def faster(people: int, right: float = 0.7, proposals: int = 4, roof: Roofline = SMALL) -> float:
    """Tokens a second with a draft over those without, counted one step after the other."""
    tokens, chance = 1.0, 1.0
    for _ in range(proposals):
        chance *= right
        tokens += chance
    takes = seconds(people, each=proposals + 1) + proposals * seconds(people, roof=roof)
    return tokens * seconds(people) / takes


def given(people: int, cached: int = 0):
    return steady(CARD, people, people, 7692, 500, 8192, cached)


@cache
def admitted(admission: str):
    arrivals = scheduling.limited(scheduling.at_once(CHAT), 1024)
    return simulate(arrivals, Policy(token_budget=1024, admission=admission), CARD, blocks=1000)


def longer_ratio() -> float:
    """Requests that run by *now* over those of *to the end*, in three times as many chats."""
    arrivals = scheduling.limited(scheduling.at_once(CHAT * 3), 1024)
    policies = [Policy(token_budget=1024, admission=admission) for admission in ("now", "to-the-end")]
    now, careful = (simulate(arrivals, policy, CARD, blocks=1000).running for policy in policies)
    return now / careful


def again() -> float:
    """Of the tokens that the chats need, those that *now* computes twice."""
    needed = sum(len(one.prompt) + one.new_tokens - 1 for one in CHAT)
    return admitted("now").computed_tokens / needed - 1


@cache
def long_chat(slots: int) -> float:
    answers = [one.new_tokens for one in paging.chat(2000, seed=3).requests]
    return batching.static_forwards(answers, slots) / batching.continuous_forwards(answers, slots)


@cache
def first_tokens(way: str) -> float:
    """Mean seconds to the first token of four prompts of 4,000 tokens a second, or of two."""
    per_s = 2 if way.startswith("half") else 4
    arrivals = scheduling.poisson([paging.Request((1,) * 4000, (0,) * 300)] * 30 * per_s, per_s, seed=1)
    pool = service.launch(SERVICE).blocks
    if way.endswith("both"):
        halves = [simulate(arrivals[at::2], Policy(token_budget=512), CARD, pool).served for at in (0, 1)]
        served = [one for half in halves for one in half]
    else:
        ends = Instance(Policy(token_budget=4096), CARD, pool), Instance(Policy(), CARD, pool)
        rate = 1e15 if way == "no transfer" else 190e9
        served = simulate_disaggregated(arrivals, *ends, KVLink(SERVICE.cache_bytes(1), rate)).served
    return sum(one.ttft_s for one in served) / len(served)


def fewer_sequences() -> Launch:
    return replace(LAUNCH, max_seqs=256)


def with_draft() -> int:
    """People whose keys and values of both models fit the pool that the draft's weights leave."""
    pool = LAUNCH.pool_bytes - SMALL_LAUNCH.weight_bytes
    return pool // (LAUNCH.user_bytes + SMALL_LAUNCH.user_bytes)


def draft_gib() -> float:
    held = service.parts(DRAFT)
    return (held["parameters"] + held["kv_cache"]) / GIB


def quarter(share: float) -> str:
    return "quarter" if 0.23 < share < 0.27 else f"{share}"


def documents_padding() -> float:
    return batching.padding_waste(sorted(len(one.prompt) for one in paging.trace("documents").requests), 8)


def alone(tokens: int) -> float:
    """Seconds of a prompt that nobody shares a step with."""
    return CARD.seconds(MeanStep(tokens, tokens, tokens * (tokens + 1) / 2))


STATES = [ServeSetup("Qwen/Qwen3-Next-80B-A3B", users=1, context=8192, drafts=n).cache_bytes() / 2**20 for n in (0, 1)]

NUMBERS = [
    ("14", "14-pause-ask", "takes 18 ms.", "{:.0f} ms", lambda: 1e3 * seconds(200)),
    ("14", "14-pause-ask", "a card 37 µs", "{:.0f} µs", lambda: 1e6 * TOKEN_S),
    ("14", "14-pause-told", "Right: 296 ms", "{:.0f} ms", lambda: 8000 * 37 / 1e3),
    ("14", "14-pause-why", "as 18 ordinary steps", "{:.0f}", lambda: seconds(200, chunk=8000) / seconds(200)),
    ("14", "14-pause-why", "takes 6.7 ms", "{:.1f}", lambda: 1e3 * nim.OVERHEAD_S),
    ("14", "14-pause-why", "gets 90 %", "{:.0f} %", lambda: 100 * nim.MEMORY_EFFICIENCY),
    ("14", "14-pause-why", "products 47 %", "{:.0f} %", lambda: 100 * nim.COMPUTE_EFFICIENCY),
    ("14", "8b73c4da", "reads 17.4 GB", "{:.1f}", lambda: CARD.weight_bytes / 1e9),
    ("14", "14-same-why", "take 2.0 times", "{:.1f}", lambda: long_chat(8)),
    ("14", "14-same-why", "and 2.7 times", "{:.1f}", lambda: long_chat(200)),
    (
        "14",
        "14-draft-why",
        "slower*, 0.87 times",
        "{:.2f}",
        lambda: faster(1, roof=replace(SMALL, overhead_s=CARD.overhead_s)),
    ),
    ("14", "14-free-ask", "for 11.3 ms", "{:.1f}", lambda: 1e3 * CARD.read_seconds(MeanStep(200, 200 * 4096, 0))),
    ("14", "14-first-ask", "takes 28 ms", "{:.0f}", lambda: 1e3 * prefill(512)[0]),
    ("14", "14-first-told", "are 26 steps", "{}", lambda: -(-8000 // 312)),
    ("14", "14-first-why", "takes 2.6 s", "{:.1f}", lambda: prefill(256)[1]),
    ("14", "14-first-why", "with 8,192 on", "{:,}", lambda: engine("vllm", "0.33").batch(service.CARD)[0]),
    ("14", "14-running-told", "Right: 920 tokens", "{:.0f}", lambda: nim.TABLE[-1].tokens_per_s),
    ("14", "14-running-told", "second × 0.0932 s", "{:.4f}", lambda: nim.TABLE[-1].itl_s),
    (
        "14",
        "14-running-why",
        "is 7 % more",
        "{:.0f} %",
        lambda: 100 * (nim.users_that_fit() / nim.TABLE[-1].running - 1),
    ),
    ("14", "14-room-ask", "has 88.6 and", "{:.1f}", lambda: nim.TABLE[-1].ttft_s),
    ("14", "14-room-ask", "and 8.0 s", "{:.1f}", lambda: nim.TABLE[4].ttft_s),
    ("14", "14-room-ask", "room for 161 people", "{}", lambda: service.launch().users),
    ("14", "14-room-ask", "cache for 322", "{}", lambda: LAUNCH.users),
    ("14", "14-room-ask", "cards 0.31 s", "{:.2f}", lambda: alone(7692)),
    ("14", "14-room-ask", "give 1,385 tokens", "{:,.0f}", lambda: given(161).tokens_per_s),
    ("14", "14-room-told", "at most 3.2 begin", "{:.1f}", lambda: 1 / alone(7692)),
    ("14", "14-room-why", "waits 219 ms", "{:.0f}", lambda: 1e3 * given(322).itl_s),
    ("14", "28d50e6b", "have 332 tokens", "{:.0f}", lambda: sum(len(one.prompt) for one in CHAT) / len(CHAT)),
    ("14", "28d50e6b", "stop after 181", "{:.0f}", lambda: sum(one.new_tokens for one in CHAT) / len(CHAT)),
    ("14", "14-admission-told", "90 is 3.2", "{:.1f}", lambda: (332 + 1024) / (332 + 90)),
    ("14", "14-admission-told", "chats it is 3.0", "{:.1f}", longer_ratio),
    ("14", "401c6ef8", "A quarter of", "{}", lambda: quarter(again())),
    (
        "14",
        "14-draft-cache-ask",
        "has 2 % of",
        "{:.0f} %",
        lambda: 100 * DRAFT.model.parameters / SERVICE.model.parameters,
    ),
    ("14", "14-draft-pays-ask", "right: 2.77 tokens", "{:.2f}", lambda: 1 + 0.7 + 0.49 + 0.343 + 0.2401),
    ("14", "14-draft-pays-ask", "takes 12.5 ms", "{:.1f}", lambda: 1e3 * seconds(1)),
    ("14", "14-draft-pays-ask", "takes 1.5 ms", "{:.1f}", lambda: 1e3 * seconds(1, roof=SMALL)),
    ("14", "14-draft-200-ask", "tokens takes 47 ms", "{:.0f}", lambda: 1e3 * seconds(200, each=5)),
    ("14", "14-draft-200-ask", "the draft 2.", "{:.0f}.", lambda: 1e3 * seconds(200, roof=SMALL)),
    ("14", "14-draft-200-told", "takes 47 ms", "{:.0f}", lambda: 1e3 * seconds(200, each=5)),
    ("14", "14-draft-200-told", "draft 8.", "{:.0f}", lambda: 4e3 * seconds(200, roof=SMALL)),
    ("14", "14-draft-200-told", "in 54.", "{:.0f}.", lambda: 3e3 * seconds(200)),
    ("14", "14-draft-why", "makes them 24 % faster", "{:.0f} %", lambda: 100 * (faster(200, proposals=1) - 1)),
    ("14", "14-transfer-ask", "has 160 KiB", "{:.0f} KiB", lambda: SERVICE.cache_bytes(1) / 2**10),
    ("14", "14-transfer-told", "are 1.3 GB", "{:.1f} GB", lambda: 8000 * SERVICE.cache_bytes(1) / 1e9),
    ("14", "14-transfer-told", "took 325 ms", "{:.0f}", lambda: 1e3 * alone(8000)),
    ("14", "14-apart-ask", "machine 0.16 s", "{:.2f}", lambda: alone(4000)),
    ("14", "14-apart-told", "busy 64 % of", "{:.0f} %", lambda: 400 * alone(4000)),
    ("14", "14-apart-why", "after 200 ms", "{:.0f}", lambda: 1e3 * first_tokens("half, apart")),
    ("14", "14-apart-why", "and not 222", "{:.0f}", lambda: 1e3 * first_tokens("half, both")),
    ("14", "a5381c06", "| 49 ms in place", "{:.0f}", lambda: 1e3 * prefill(1024)[0]),
    ("14", "a5381c06", "place of 333", "{:.0f}", lambda: 1e3 * prefill(8200)[0]),
    ("14", "a5381c06", "after 465 ms", "{:.0f}", lambda: 1e3 * prefill(1024)[1]),
    ("14", "a5381c06", "| 1.7 GiB of", "{:.1f}", lambda: (fewer_sequences().pool_bytes - LAUNCH.pool_bytes) / GIB),
    ("14", "a5381c06", "default, 11 people", "{}", lambda: fewer_sequences().users - LAUNCH.users),
    ("14", "a5381c06", "| 3.4 GiB of", "{:.1f}", draft_gib),
    ("14", "a5381c06", "; 291 people", "{}", with_draft),
    ("14", "a5381c06", "place of 322", "{}", lambda: LAUNCH.users),
    ("14", "a5381c06", "| 16.5 GiB of weights", "{:.1f}", lambda: LAUNCH.weight_bytes / GIB),
    ("14", "14-when-not", "people 8 %", "{:.0f} %", lambda: 100 * (1 - faster(200))),
    ("14", "14-quiet-told", "further steps of 6.7 ms", "{:.1f}", lambda: 1e3 * nim.OVERHEAD_S),
    (
        "deeper/14",
        "14d-sorted-told",
        "a tenth of it or less",
        "{}",
        lambda: "a tenth" if documents_padding() < 0.1 else "",
    ),
    ("deeper/14", "14d-spec", "B (2.5 GB a", "{:.1f}", lambda: 2 * model("llama-3.2-1b").parameters / 1e9),
    ("deeper/14", "14d-states", "states of 74 MiB", "{:.0f}", lambda: STATES[1] - STATES[0]),
    ("deeper/14", "14d-states", "has 192 MiB", "{:.0f}", lambda: 2 * STATES[0] - STATES[1]),
    ("deeper/14", "14d-route-told", "are 3 %.", "{:.0f} %", lambda: 100 * 70 / 2070),
]
