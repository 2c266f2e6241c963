"""The numbers that prose and remarks of chapter 08 carry: chapter, cell, words, form, and what computes them."""

from __future__ import annotations

from dataclasses import replace

from helpers.catalog import Adapter, ServeSetup, Split, TrainSetup, device, tier
from helpers.lesson import job
from helpers.memory import budget, offload
from helpers.memory.fit import Room
from helpers.memory.layer_work import attention_flops, weights_met
from helpers.memory.serve.engines.llamacpp import LlamaCpp
from helpers.memory.serve.engines.llamacpp_layers import MARGIN_BYTES, fewest_cpu_experts
from helpers.small_lm import load

GIB = 2**30
SLOT = 0.8 * job.CARD.link_bytes_per_s("pcie")
HOST = 0.8 * tier("desktop").read_bytes_per_s
MEMORY = 0.8 * job.CARD.memory_bytes_per_s
FLOPS = 0.5 * job.CARD.flops_per_s("bf16")
WEIGHTS = job.SETUP.model.parameters
CHECKPOINTED = replace(job.SETUP, checkpointing="full")
AWAY = replace(CHECKPOINTED, precision="bf16", split=Split(1, zero=2), offload_optimizer="cpu")
STREAMED = replace(AWAY, split=Split(1, zero=3), offload_parameters="cpu")
QLORA = replace(CHECKPOINTED, adapter=Adapter(targets="all-linear", base="nf4-dq"))
LONG = replace(QLORA, sequence=32_768, loss="liger")
LAYER = job.SETUP.model.layers[0]
BUCKET = 500_000_000  # DeepSpeed's default, in elements
FLOWN = budget.step_flops(AWAY)
COMPUTE_S = FLOWN.total / FLOPS
PIECES = 8  # of the drawn step
STEP_S = COMPUTE_S + 2 * WEIGHTS / SLOT / PIECES + 28 * WEIGHTS / HOST + 2 * WEIGHTS / SLOT / PIECES
WAIT_S = STEP_S - COMPUTE_S
COPY_S = 2 * LAYER.parameters / SLOT
EVEN = offload.break_even_tokens(FLOPS, SLOT)
OSS = ServeSetup("gpt-oss-120b", weights="mxfp4", context=8192)
THERE = offload.experts_on_host(OSS, job.CARD, "desktop")
SHIPPED = replace(OSS, context=2048)  # as the calculator starts
PROMPTS = ServeSetup("llama-3-70b", weights="fp8-e4m3", users=16, context=2048)
CARD_MS = 1e3 * THERE.card_s / 0.8


def one_by_one_s() -> float:
    """DeepSpeed's seconds behind the backward pass: clip in FP32, update, cast to BF16, then send."""
    return (8 + 28 + 6) * WEIGHTS / HOST + 2 * WEIGHTS / SLOT


def peak(setup) -> float:
    return budget.train(setup).peak_bytes / GIB


def work_s(tokens: int) -> float:
    """Of one layer in the forward pass."""
    return (2 * tokens * weights_met(LAYER) + attention_flops(LAYER.attention, tokens)) / FLOPS


def kept(tokens: int) -> int:
    return budget.bytes_saved_by(replace(QLORA, checkpointing="none", sequence=tokens), LAYER)


def unseen() -> int:
    """Tokens of a sequence from which on a layer computes for as long as all that it keeps travels."""
    return next(tokens for tokens in range(1_000, 10**6, 1_000) if work_s(tokens) >= kept(tokens) / SLOT)


def placed():
    """gpt-oss-120b in llama.cpp, with as few experts as need be on the host, and the GiB free that its --fit leaves."""
    return fewest_cpu_experts(LlamaCpp(OSS), Room(job.CARD).for_tensors_bytes - MARGIN_BYTES)


def placed_ms() -> float:
    """A token then: the host reads its share of the chosen experts, and the card the others."""
    here = 1 - placed().cpu_moe / 36
    return CARD_MS + 1e3 * THERE.read_bytes * ((1 - here) / HOST + here / MEMORY)


NUMBERS = [
    ("08", "s1", "are 8.03 billion", "{:.2f}", lambda: WEIGHTS / 1e9),
    ("08", "s1", "half a percent", "{}", lambda: half_a_percent()),
    ("08", "08-down-told", "are 16.1 GB", "{:.1f}", lambda: 2 * WEIGHTS / 1e9),
    ("08", "08-down-told", "of it, 25.6 GB/s", "{:.1f}", lambda: SLOT / 1e9),
    ("08", "08-far", "then 42 ms away", "{:.0f}", lambda: 1e3 * GIB / SLOT),
    ("08", "08-far", "thirty times", "{}", lambda: "thirty" if 29 < MEMORY / SLOT < 32.5 else MEMORY / SLOT),
    ("08", "08-far", "a tenth of", "{}", lambda: "a tenth" if 0.095 < tenth() < 0.11 else tenth()),
    ("08", "08-host-ask", "0.6 GiB of activations", "{:.1f}", lambda: budget.train(AWAY).parts["activations"] / GIB),
    ("08", "08-host-ask", "2.9 of logits", "{:.1f}", lambda: budget.train(AWAY).parts["logits"] / GIB),
    ("08", "host-told", "Right: 15.0 of", "{:.1f}", lambda: budget.train(AWAY).parts["parameters"] / GIB),
    ("08", "08-moved-why", "card's 18.5 GiB", "{:.1f}", lambda: peak(AWAY)),
    ("08", "08-moved-why", "have 8 GiB left", "{:.0f}", lambda: 128 - 16 * WEIGHTS / GIB),
    ("08", "08-moved-why", "5600, has 89.6 GB/s", "{:.1f}", lambda: tier("desktop").read_bytes_per_s / 1e9),
    ("08", "update-told", "are 225 GB", "{:.0f}", lambda: 28 * WEIGHTS / 1e9),
    ("08", "update-told", "at 71.7 GB/s", "{:.1f}", lambda: HOST / 1e9),
    ("08", "08-step-why", "for 1.5 s, and", "{:.1f}", lambda: COMPUTE_S),
    ("08", "08-step-why", "waits for 3.3.", "{:.1f}.", lambda: WAIT_S),
    ("08", "08-step-why", "micro-batches, 1.5 s", "{:.1f}", lambda: COMPUTE_S),
    ("08", "08-busy-told", "are 9.9 s", "{:.1f}", lambda: 3 * round(WAIT_S, 1)),
    ("08", "s2", "card's 18.5 GiB", "{:.1f}", lambda: peak(AWAY)),
    ("08", "s3", "at 82.6 TFLOP/s", "{:.1f}", lambda: FLOPS / 1e12),
    ("08", "08-which-told", "break-even: 11 ms", "{:.0f}", lambda: 1e3 * work_s(2_048)),
    ("08", "08-which-told", "beside 17 ms of copy", "{:.0f}", lambda: 1e3 * COPY_S),
    ("08", "08-which-told", "one copy: 31 ms", "{:.0f}", lambda: 1e3 * 2.75 * work_s(2_048)),
    ("08", "08-which-told", "even at 1,173 tokens", "{:,.0f}", lambda: EVEN / 2.75),
    ("08", "08-streamed-why", "waits 6 ms", "{:.0f}", lambda: 1e3 * (COPY_S - work_s(2_048))),
    ("08", "08-streamed-why", "step of 4.8 s", "{:.1f}", lambda: STEP_S),
    ("08", "08-streamed-why", "takes 0.2 s longer", "{:.1f}", lambda: 32 * (COPY_S - work_s(2_048))),
    ("08", "08-streamed-why", "from 18.5 GiB", "{:.1f}", lambda: peak(AWAY)),
    ("08", "08-streamed-why", "to 5.9.", "{:.1f}.", lambda: peak(STREAMED)),
    ("08", "08-streamed-why", "buffers take 0.8 GiB", "{:.1f}", lambda: 2 * 2 * LAYER.parameters / GIB),
    ("08", "08-streamed-why", "embedding's gradient", "{}", lambda: budget.train(STREAMED).peak.name.split()[-1]),
    ("08", "08-streamed-why", "keeps 579 MiB", "{:.0f}", lambda: kept(2_048) / 2**20),
    ("08", "08-streamed-why", "input, 32 MiB", "{:.0f}", lambda: 4 * 2_048 * 4_096 / 2**20),
    ("08", "08-streamed-why", "layer in 11 ms", "{:.0f}", lambda: 1e3 * work_s(2_048)),
    ("08", "08-travel-told", "607 MB take 24 ms", "{:.0f} ms", lambda: 1e3 * kept(2_048) / SLOT),
    ("08", "08-travel-told", "34 MB take 1.3 ms", "{:.1f}", lambda: 1e3 * 4 * 2_048 * 4_096 / SLOT),
    ("08", "s6", "from 64,000 tokens", "{:,}", unseen),
    ("08", "s6", "fill 563 GiB", "{:.0f}", lambda: 32 * kept(64_000) / GIB),
    ("08", "08-experts", "has 65 GB", "{:.0f}", lambda: (THERE.card_bytes + THERE.host_bytes) / 1e9),
    ("08", "08-experts", "and 61 of these", "{:.0f}", lambda: THERE.host_bytes / 1e9),
    ("08", "08-experts-ask", "reads 3 % of", "{:.0f} %", lambda: 100 * 4 / 128),
    ("08", "08-experts-ask", "is 1.9 GB", "{:.1f}", lambda: THERE.read_bytes / 1e9),
    ("08", "08-experts-ask", "and 0.4 MB", "{:.1f}", lambda: 2 * THERE.sent_bytes / 1e6),
    ("08", "08-experts-ask", "part takes 4 ms", "{:.0f}", lambda: CARD_MS),
    ("08", "08-experts-told", "are 27 ms, and", "{:.0f}", lambda: 1e3 * THERE.read_bytes / HOST),
    ("08", "08-experts-told", "sent takes 0.02.", "{:.2f}.", lambda: 1e3 * 2 * THERE.sent_bytes / SLOT),
    ("08", "08-experts-why", "token 30 times", "{:.0f}", lambda: gains()[0]),
    ("08", "08-experts-why", "it 2.5 times", "{:.1f}", lambda: gains()[1]),
    ("08", "08-experts-why", "card, 4 GiB, and", "{:.0f}", lambda: THERE.card_bytes / GIB),
    (
        "08",
        "08-experts-why",
        "nearly a third of",
        "{}",
        lambda: "nearly a third" if placed().cpu_moe == 25 else placed(),
    ),
    ("08", "08-line-ask", "needs 37.2 GiB", "{:.1f}", lambda: peak(LONG)),
    ("08", "08-line-told", "are 0.3 GiB: adapters", "{:.1f}", lambda: budget.train(LONG).parts["optimizer"] / GIB),
    ("08", "08-line-told", "be half a GiB", "{}", lambda: "half" if 0.45 < more_than_averages() < 0.65 else "?"),
    ("08", "08-line-told", "of 512 MiB", "{:.0f}", lambda: 4 * 32_768 * 4_096 / 2**20),
    ("08", "08-lines", "119.7 → 18.5, and", "{:.1f}", lambda: peak(AWAY)),
    ("08", "08-lines", "buffers of 2.8", "{:.1f}", lambda: (2 * 2 * BUCKET + 2 * 128_256 * 4_096) / GIB),
    ("08", "08-lines", "host 119.7 GiB", "{:.1f}", lambda: 16 * WEIGHTS / GIB),
    ("08", "08-lines", "and 15.0 when", "{:.1f}", lambda: 2 * WEIGHTS / GIB),
    ("08", "08-lines", "over 5 s a step", "{}", lambda: "over 5 s" if 5 < one_by_one_s() < 6 else one_by_one_s()),
    ("08", "08-step-why", "over 5 s.", "{}", lambda: "over 5 s" if 5 < one_by_one_s() < 6 else one_by_one_s()),
    ("08", "08-step-why", "more, 0.4 s.", "{:.1f}", lambda: 4 * WEIGHTS / HOST),
    ("08", "08-step-why", "weight, 1.3 s", "{:.1f}", lambda: 12 * WEIGHTS / HOST),
    (
        "08",
        "08-step-why",
        "just hidden",
        "{}",
        lambda: "just hidden" if 0.8 < 12 * WEIGHTS / HOST / COMPUTE_S < 1 else "?",
    ),
    ("08", "08-lines", "| 59.8 GiB of host", "{:.1f}", lambda: 8 * WEIGHTS / GIB),
    ("08", "08-lines", "sends FP32 | 5.9", "{:.1f}", lambda: peak(STREAMED)),
    ("08", "08-lines", "37.2 → 21.8", "{:.1f}", lambda: peak(replace(LONG, checkpointing="offload:inputs"))),
    ("08", "08-lines", "--n-cpu-moe 25", "{}", lambda: placed().cpu_moe),
    ("08", "08-lines", "120b in 21.5", "{:.1f}", lambda: placed().card_bytes / GIB),
    ("08", "08-lines", "| 23 ms a token", "{:.0f}", placed_ms),
    ("08", "08-prompts", "takes 3.1 s", "{:.1f}", lambda: 28 * WEIGHTS / HOST),
    ("08", "08-prompts", "alone wanted 60,", "{:.0f}", lambda: 8 * WEIGHTS / GIB),
    ("08", "08-lines", "15 GiB more of host", "{:.0f}", lambda: 2 * WEIGHTS / GIB),
    ("08", "08-lines", "16 GiB of host; hidden", "{:.0f}", lambda: 32 * 4 * 32_768 * 4_096 / GIB),
    ("08", "08-lines", "; 3 % longer", "{:.0f} %", lambda: waited_for()),
    (
        "08",
        "08-calculator",
        "takes 24.5 ms a token",
        "{:.1f}",
        lambda: 1e3 * offload.experts_on_host(SHIPPED, job.CARD, "desktop").step_s,
    ),
    ("08", "08-calculator", "and 1.97 s if", "{:.2f}", lambda: offload.streamed(SHIPPED, job.CARD).overlapped_s),
    (
        "08",
        "08-calculator",
        "take 13.9 s",
        "{:.1f}",
        lambda: offload.streamed(PROMPTS, job.CARD, "prefill").overlapped_s,
    ),
    ("08", "short", "14 bytes of 16", "{}", lambda: 16 - 2),
    ("deeper/08", "08d-over", "takes 73 GB", "{:.0f}", lambda: (TOKEN.root_bytes + TOKEN.host_bytes) / 1e9),
    ("deeper/08", "08d-over", "which 4.2 are", "{:.1f}", lambda: TOKEN.root_bytes / 1e9),
    ("deeper/08", "token-told", "are 68 GB, at", "{:.0f}", lambda: TOKEN.host_bytes / 1e9),
    ("deeper/08", "decode", "has 436 MB", "{:.0f}", lambda: EIGHT.layers_bytes[0] / 1e6),
    ("deeper/08", "decode", "8.5 ms over", "{:.1f}", lambda: 1e3 * EIGHT.copies_s[0]),
    ("deeper/08", "decode-told", "1.25 µs to read", "{:.2f}", lambda: 1e6 * 4_096 * 1_024 / H100.memory_bytes_per_s),
    ("deeper/08", "08d-buffers", "of 1,537.5 KiB", "{:,.1f}", lambda: small()[1] / 2**10),
    ("deeper/08", "08d-buffers", "and 625 KiB", "{:,.0f}", lambda: small()[0] / 2**10),
    ("deeper/08", "s5", "weights, 1,242 GB", "{:,.0f}", lambda: 18 * SEVENTY.model.parameters / 1e9),
    ("deeper/08", "hops-ask", "for 2.2 s", "{:.1f}", lambda: offload.training_compute_s(SEVENTY, "h100")),
    ("deeper/08", "hops-told", "are 2,621 GB", "{:,.0f}", lambda: 38 * SEVENTY.model.parameters / 1e9),
    ("deeper/08", "hops-told", "at 492 GB/s", "{:.0f}", lambda: 0.8 * tier("dgx-h100-dram").read_bytes_per_s / 1e9),
    ("deeper/08", "hops-why", "are 47.8 s", "{:.1f}", lambda: written_s()),
    ("deeper/08", "batch", "takes 59.7 s", "{:.1f}", lambda: written_s() / 0.8),
    ("deeper/08", "s8", "host, 276 GB", "{:.0f}", lambda: 4 * SEVENTY.model.parameters / 1e9),
    ("deeper/08", "s10", "takes 0.3 s", "{:.1f}", lambda: EIGHT.host_bytes / 51.2e9),
]


TOKEN = offload.streamed(ServeSetup("llama-3-70b", weights="fp8-e4m3", context=2048), job.CARD)
EIGHT = offload.streamed(ServeSetup("llama-3-8b", context=1024), "h100", link_bytes_per_s=51.2e9)
H100 = device("h100")
SEVENTY = TrainSetup("llama-2-70b", "megatron-bf16", "adamw-fused", sequence=2048, checkpointing="full",
                     split=Split(8, zero=3), offload_optimizer="nvme", offload_parameters="nvme")  # fmt: skip


def written_s() -> float:
    hops = offload.training_hops(SEVENTY, "h100", "dgx-h100-dram", "nd-h200-v5-nvme")
    return max(hop.seconds for hop in hops)


def small() -> tuple[int, int]:
    """Bytes of the small model's root, and of a layer."""
    model = load().model
    layer = sum(weight.nbytes for weight in model.model.layers[0].parameters())
    return sum(weight.nbytes for weight in model.parameters()) - 4 * layer, layer


def waited_for() -> float:
    """How much longer, in %, a long step takes whose layers' inputs go and come on the stream that computes."""
    copies_s = 2 * 32 * 4 * LONG.sequence * 4_096 / SLOT
    return 100 * copies_s / (budget.step_flops(LONG).total / FLOPS)


def half_a_percent() -> str:
    share = 100 * QLORA.adapter.parameters(QLORA.model) / WEIGHTS
    return "half a percent" if 0.45 < share < 0.55 else f"{share:.2f} %"


def tenth() -> float:
    """The share of the job's forward pass that is computed while a GiB comes."""
    return GIB / SLOT * FLOPS / FLOWN.forward


def gains() -> tuple[float, float]:
    """How many times as fast: four experts in place of all, both over the slot; then the CPU in place of the slot."""
    whole, four, there = THERE.host_bytes / SLOT, THERE.read_bytes / SLOT, THERE.read_bytes / HOST
    times = [seconds + CARD_MS / 1e3 for seconds in (whole, four, there)]
    return times[0] / times[1], times[1] / times[2]


def more_than_averages() -> float:
    """GiB of the adapters' averages, gradients and FP32 copies."""
    return 16 * QLORA.adapter.parameters(QLORA.model) / GIB
