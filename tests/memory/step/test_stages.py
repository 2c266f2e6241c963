"""A pipeline's stages in closed form, beside the trace of one rank."""

from __future__ import annotations

from dataclasses import replace

import pytest

from helpers.catalog.errors import WorkbookError
from helpers.catalog.models import model
from helpers.catalog.setup import TrainSetup
from helpers.catalog.split import Split
from helpers.memory import budget, trace

CONFIG = {"model_type": "llama", "hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 8}
CONFIG |= {"num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 8192, "tie_word_embeddings": False}
SETUP = TrainSetup(CONFIG, precision="bf16", sequence=1024, micro_batches=8, optimizer="adamw-fused")
# By what decides: micro-batches in flight, gradients that are not there yet, buffers, autocast's cache
RUNS = {
    "first": (SETUP, 4, 0, "1F1B"),
    "second": (SETUP, 4, 1, "1F1B"),
    "last": (SETUP, 4, 3, "1F1B"),
    "as many micro-batches as stages": (replace(SETUP, micro_batches=4), 4, 0, "1F1B"),
    "gpipe": (SETUP, 4, 2, "GPipe"),
    "gpipe's losses": (SETUP, 4, 3, "GPipe"),
    "autocast": (replace(SETUP, precision="autocast-bf16"), 4, 1, "1F1B"),
    "autocast, short": (replace(SETUP, precision="autocast-bf16", sequence=64), 3, 1, "GPipe"),
}
SMALL = {"num_hidden_layers": 4, "hidden_size": 512, "intermediate_size": 1024, "num_attention_heads": 8}
SMALL |= {"num_key_value_heads": 4, "head_dim": 64, "vocab_size": 4096}
EXPERTS = {**model("mixtral-8x7b").config, **SMALL, "num_local_experts": 4}
SINKS = {**model("gpt-oss-20b").config, **SMALL, "num_local_experts": 4, "pad_token_id": 0, "eos_token_id": 2}
SCALED = {**model("gemma-3-1b").config, **SMALL, "num_key_value_heads": 1, "pad_token_id": 0}
FAMILIES = {  # masks that the model's forward names, outputs that GPipe's sends hold
    "experts": (TrainSetup(EXPERTS, "autocast-bf16", "adamw-fused", 2, 128, micro_batches=4), 2, 0, "1F1B"),
    "sinks": (TrainSetup(SINKS, "fp32", "adamw-fused", 2, 512, attention="eager", micro_batches=2), 2, 0, "1F1B"),
    "scaled embeddings": (TrainSetup(SCALED, "bf16", "adamw-fused", 2, 256, "full", micro_batches=4), 2, 0, "GPipe"),
}
REST = {
    "recomputed, first": (replace(SETUP, checkpointing="full"), 2, 0, "1F1B"),
    "recomputed, last": (replace(SETUP, checkpointing="full"), 2, 1, "1F1B"),
    "segments in FP32": (replace(SETUP, checkpointing="every:2", precision="fp32"), 2, 0, "1F1B"),
    "FP32": (replace(SETUP, precision="fp32"), 3, 1, "1F1B"),
    "the optimizer": (replace(SETUP, checkpointing="full", sequence=64, optimizer="adamw"), 3, 1, "1F1B"),
    "the embedding": (replace(SETUP, checkpointing="full", sequence=64), 3, 0, "1F1B"),
    "tied": (replace(SETUP, model={**CONFIG, "tie_word_embeddings": True}, sequence=128), 4, 0, "1F1B"),
    "eager": (replace(SETUP, attention="eager"), 4, 1, "1F1B"),
    "eager, autocast": (replace(SETUP, attention="eager", precision="autocast-bf16", sequence=256), 2, 0, "GPipe"),
    "gpipe, short": (replace(SETUP, sequence=64), 3, 1, "GPipe"),
    "autocast, last": (replace(SETUP, precision="autocast-bf16"), 4, 3, "1F1B"),
    "autocast, recomputed": (replace(SETUP, precision="autocast-bf16", checkpointing="full"), 2, 0, "1F1B"),
    "8B": (TrainSetup("llama-3-8b", "bf16", "adamw-fused", 1, 1024, "full", micro_batches=8), 4, 3, "1F1B"),
    "7B": (TrainSetup("llama-2-7b", "autocast-bf16", "adamw-fused", 1, 2048, micro_batches=8), 4, 0, "1F1B"),
}


def off(setup: TrainSetup, ranks: int, stage: int, schedule: str) -> float:
    """Without cuBLAS, which would hide it in so small a model."""
    traced = trace.train(setup, "h100", split=Split(pipeline=ranks, rank=stage, schedule=schedule))
    predicted = budget.pipeline(setup, ranks, stage, schedule, "h100")
    return predicted.tensor_bytes / (traced.peak_bytes - predicted.library_bytes) - 1


@pytest.mark.parametrize("run", RUNS)
def test_each_stages_peak_is_the_traces(run):
    assert abs(off(*RUNS[run])) < 0.001


@pytest.mark.parametrize("run", FAMILIES)
def test_the_peak_of_other_families_is_the_traces(run):
    assert abs(off(*FAMILIES[run])) < 0.001


@pytest.mark.slow
@pytest.mark.parametrize("run", REST)
def test_the_peak_of_other_setups_is_the_traces(run):
    assert abs(off(*REST[run])) < 0.001


def test_stages_have_the_whole_model_together():
    held = [budget.pipeline(SETUP, 4, stage).parts["parameters"] for stage in range(4)]
    assert sum(held) == pytest.approx(2 * SETUP.model.parameters, rel=0.001)


@pytest.mark.parametrize(
    ("setup", "ranks", "schedule", "words"),
    [
        (SETUP, 4, "InterleavedZeroBubble", "closed form"),
        (SETUP, 9, "1F1B", "stages is 9"),
        (replace(SETUP, micro_batches=2), 4, "1F1B", "2 micro-batches in 4 stages"),
        (replace(SETUP, checkpointing="selective"), 4, "1F1B", "no closed form"),
        (replace(SETUP, precision="megatron-bf16"), 4, "1F1B", "megatron-bf16 in a pipeline"),
        (replace(SETUP, zero=3, ranks=8), 4, "1F1B", "not predicted"),
        (TrainSetup("gpt2", "bf16", sequence=64, micro_batches=4), 4, "1F1B", "no closed form"),
        (TrainSetup("gemma-2-9b", "bf16", attention="eager", micro_batches=4), 4, "1F1B", "no closed form"),
    ],
)
def test_what_is_not_predicted_says_so(setup, ranks, schedule, words):
    with pytest.raises(WorkbookError, match=words):
        budget.pipeline(setup, ranks, 0, schedule)
