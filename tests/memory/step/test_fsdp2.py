"""FSDP2 in closed form, beside the trace of one rank."""

from __future__ import annotations

from dataclasses import replace

import pytest

from helpers.catalog.errors import WorkbookError
from helpers.catalog.models import model
from helpers.catalog.policies import whole_layers
from helpers.catalog.setup import TrainSetup
from helpers.catalog.split import Split
from helpers.memory import budget, trace
from helpers.techniques.checkpointing import apply

BASE = TrainSetup("llama-3.2-1b", optimizer="adamw-fused")
# Each has its peak in another place: the loss, a layer in its MLP, at its end, the embedding, the root's reduction.
RUNS = {
    "a tied table's three gradients": (replace(BASE, sequence=64, checkpointing="full"), 2),
    "the loss": (replace(BASE, sequence=2048), 4),
    "the root's flat": (TrainSetup("qwen3-0.6b", sequence=128, optimizer="adamw-fused", checkpointing="full"), 8),
}
REDUCED = {  # gradients added in BF16, as accelerate does
    "a tied table's three gradients": RUNS["a tied table's three gradients"],
    "accumulated, tied": (replace(BASE, sequence=1024, micro_batches=2), 2),
    "untied, into shards": (replace(BASE, model="tiny-llama", sequence=64), 2),
}
LARGE = {
    "the root's flat, 8B": (TrainSetup("llama-3-8b", sequence=128, optimizer="adamw-fused"), 8),
    "the norm before an MLP": (
        TrainSetup("llama-2-7b", sequence=1536, optimizer="adamw-fused", checkpointing="full"),
        64,
    ),
    "the end of a layer": (
        TrainSetup("llama-2-7b", precision="fp32", sequence=1024, optimizer="adamw-fused", checkpointing="full"),
        8,
    ),
    "bf16": (TrainSetup("qwen2.5-7b", precision="bf16", sequence=256, optimizer="adamw-fused"), 16),
    "foreach": (TrainSetup("llama-2-7b", sequence=512, checkpointing="full"), 4),
    "accumulated": (TrainSetup("llama-2-7b", sequence=1024, optimizer="adamw-fused", micro_batches=2), 4),
    "accumulated, tied": (TrainSetup("llama-3.2-1b", sequence=1024, optimizer="adamw-fused", micro_batches=2), 2),
    "layernorm": (TrainSetup("gpt2", sequence=512, optimizer="adamw-fused"), 4),
}

HALVED = TrainSetup(
    {**model("llama-2-7b").config, "num_hidden_layers": 8, "vocab_size": 4096}, sequence=1024, optimizer="adamw-fused"
)
SMALL_LATENT = {"num_hidden_layers": 4, "hidden_size": 512, "intermediate_size": 1024, "num_attention_heads": 8}
SMALL_LATENT |= {"num_key_value_heads": 8, "vocab_size": 4096, "moe_intermediate_size": 256, "n_routed_experts": 8}
SMALL_LATENT |= {"n_group": 1, "topk_group": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 1}
SMALL_LATENT |= {"q_lora_rank": 256, "kv_lora_rank": 128, "qk_rope_head_dim": 32, "qk_nope_head_dim": 32}
LATENT_CONFIG = {**model("deepseek-v3").config, **SMALL_LATENT, "v_head_dim": 32}
LATENT = TrainSetup(LATENT_CONFIG, sequence=128, optimizer="adamw-fused", micro_batch=2, checkpointing="full")
EIGHT = {**model("tiny-llama").config, "num_hidden_layers": 8}
RECOMPUTED = {
    "every second product": (replace(BASE, checkpointing="selective:every-second"), 4),
    "inputs on the host": (replace(BASE, checkpointing="offload:inputs"), 4),
    "segments of four": (TrainSetup(EIGHT, sequence=2048, optimizer="adamw-fused", checkpointing="every:4"), 64),
    "segments in segments": (replace(HALVED, checkpointing="recursive"), 16),
    "one layer in a segment of four": (replace(HALVED, checkpointing="nested:4"), 16),
}
EXPERTS = {**model("mixtral-8x7b").config, "num_hidden_layers": 4, "hidden_size": 512, "intermediate_size": 1024}
EXPERTS |= {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64, "vocab_size": 4096}
OTHERS = {
    "four experts, rows for eight": (
        TrainSetup({**EXPERTS, "num_local_experts": 4}, "bf16", "adamw-fused", 2, 512, "full"),
        8,
    ),
    "experts that are run again while two layers are whole": (
        TrainSetup(EXPERTS, "bf16", "adamw-fused", 2, 256, "nested:2", micro_batches=2),
        4,
    ),
    "gelu_new, accumulated": (TrainSetup("tiny-gpt2", "fp32", "adamw-fused", 2, 16, micro_batches=2), 4),
    "a dense layer and experts": (LATENT, 4),
}
RECOMPUTED_LARGE = {  # all but one have their peak in a layer
    "every second product, 7B": (
        TrainSetup("llama-2-7b", sequence=2048, optimizer="adamw-fused", checkpointing="selective:every-second"),
        64,
    ),
    "every second product, the root's flat": (
        TrainSetup("qwen2.5-7b", sequence=512, optimizer="adamw-fused", checkpointing="selective:every-second"),
        8,
    ),
    "every second product, bf16": (
        TrainSetup(
            "llama-3-8b", "bf16", sequence=4096, optimizer="adamw-fused", checkpointing="selective:every-second"
        ),
        8,
    ),
    "segments of three, two left": (
        TrainSetup("llama-2-7b", sequence=1024, optimizer="adamw-fused", checkpointing="every:3"),
        8,
    ),
    "segments of seven": (
        TrainSetup("qwen2.5-7b", sequence=2048, optimizer="adamw-fused", checkpointing="every:7"),
        64,
    ),
    "segments of one in those of four": (
        TrainSetup("llama-2-7b", sequence=2048, optimizer="adamw-fused", checkpointing="nested:4"),
        64,
    ),
    "inputs on the host, 7B": (
        TrainSetup("llama-2-7b", sequence=2048, optimizer="adamw-fused", checkpointing="offload:inputs"),
        64,
    ),
    "root of the layers": (
        TrainSetup("llama-2-7b", "fp32", sequence=1024, optimizer="adamw-fused", checkpointing="sqrt-n"),
        16,
    ),
}


def off(setup: TrainSetup, ranks: int, reduced: str = "fp32") -> float:
    put_in = None if whole_layers(setup.segments) else apply
    traced = trace.train(setup, "h100", split=Split(fsdp=ranks, reduced=reduced), apply=put_in)
    return budget.fsdp2(setup, ranks, "h100", reduced=reduced).peak_bytes / traced.peak_bytes - 1


@pytest.mark.parametrize("run", RUNS)
def test_the_peak_is_the_traces(run):
    assert abs(off(*RUNS[run])) < 0.001


@pytest.mark.parametrize("run", RECOMPUTED)
def test_the_peak_with_layers_run_again_is_the_traces(run):
    """A segment that is run again has all its layers whole at once: four here, and not two."""
    assert abs(off(*RECOMPUTED[run])) < 0.001


@pytest.mark.parametrize("run", OTHERS)
def test_the_peak_of_every_family_is_the_traces(run):
    assert abs(off(*OTHERS[run])) < 0.001


@pytest.mark.slow
@pytest.mark.parametrize("run", RECOMPUTED_LARGE)
def test_the_peak_of_a_large_model_with_layers_run_again_is_the_traces(run):
    assert abs(off(*RECOMPUTED_LARGE[run])) < 0.0005


@pytest.mark.parametrize("run", REDUCED)
def test_the_peak_with_gradients_reduced_in_bf16_is_the_traces(run):
    assert abs(off(*REDUCED[run], "bf16")) < 0.001


@pytest.mark.slow
@pytest.mark.parametrize("reduced", ["fp32", "bf16"])
def test_the_root_reduced_into_half_a_model_s_shards_is_the_traces(reduced):
    """On two ranks a shard of both tables is as large as they are: the peak is inside of the reduction."""
    large = TrainSetup("llama-3-8b", optimizer="adamw-fused", sequence=1024, checkpointing="full")
    assert abs(off(large, 2, reduced)) < 0.001


def test_gradients_are_reduced_in_a_format_that_fsdp2_has():
    with pytest.raises(WorkbookError, match="fp8"):
        budget.fsdp2(BASE, 8, reduced="fp8")
    with pytest.raises(WorkbookError, match="fp8"):
        Split(fsdp=8, reduced="fp8")
    with pytest.raises(WorkbookError, match="reduced in bf16 from fp32"):
        trace.train(replace(BASE, precision="fp32"), split=Split(fsdp=2, reduced="bf16"))


@pytest.mark.slow
@pytest.mark.parametrize("run", LARGE)
def test_the_peak_of_a_large_model_is_the_traces(run):
    assert abs(off(*LARGE[run])) < 0.001


def test_scores_that_no_kernel_of_the_card_leaves_out_are_refused():
    """Grouped heads in FP32: SDPA falls back to the plain formula, and a long segment is 5 % higher by its scores."""
    grouped = TrainSetup("llama-3-8b", "fp32", sequence=1024, checkpointing="every:6")
    with pytest.raises(WorkbookError, match="falls back to the plain formula"):
        budget.fsdp2(grouped, 16, "h100")


def test_what_a_rank_keeps_is_its_share():
    one, many = (budget.fsdp2(BASE, ranks).at("optimizer step").parts for ranks in (2, 64))
    assert many["parameters"] == pytest.approx(one["parameters"] / 32, rel=0.001)


@pytest.mark.parametrize(
    ("setup", "ranks", "words"),
    [
        (replace(BASE, precision="megatron-bf16"), 8, "megatron-bf16 under FSDP2"),
        (replace(BASE, checkpointing="offload"), 8, "no closed form"),
        (replace(BASE, zero=3, ranks=8), 8, "not predicted"),
        (BASE, 1, "ranks is 1"),
        (BASE, 0.5, "ranks is 0.5"),
    ],
)
def test_what_is_not_predicted_says_so(setup, ranks, words):
    with pytest.raises(WorkbookError, match=words):
        budget.fsdp2(setup, ranks)
