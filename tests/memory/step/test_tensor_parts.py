"""Tensor parallelism in closed form, beside the trace of one rank."""

from __future__ import annotations

from dataclasses import replace

import pytest

from helpers.catalog import model
from helpers.catalog.errors import WorkbookError
from helpers.catalog.setup import TrainSetup
from helpers.catalog.split import Split
from helpers.memory import budget, trace
from helpers.memory.step.ranks.tensor_parts import rank_shape
from helpers.techniques.parallel.formula import parameter_bytes
from tests.versions import divided_embedding

CONFIG = {"model_type": "llama", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2}
CONFIG |= {"num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": 8192, "tie_word_embeddings": False}
SMALL = TrainSetup(CONFIG, precision="bf16", sequence=64, optimizer="adamw-fused")
BASE = TrainSetup("llama-3.2-1b", precision="bf16", sequence=32, optimizer="adamw-fused")
TIED = {**CONFIG, "tie_word_embeddings": True}
# Each has its peak in another place: the optimizer's share of the table, gathered logits, a tied table, the loss
RUNS = {
    "an embedding's whole gradient": (SMALL, 2),
    "tied tables": (replace(SMALL, model=TIED, sequence=16), 2),
    "tied, accumulated": (replace(SMALL, model=TIED, sequence=16, micro_batches=2), 2),
    "accumulated, foreach": (replace(SMALL, micro_batches=2, optimizer="adamw"), 2),
    "the loss": (replace(SMALL, sequence=1024, checkpointing="full"), 2),
    "gathered logits": (replace(SMALL, precision="fp32", sequence=2048, checkpointing="full"), 2),
}
LARGE = {
    "tied, 1B": (BASE, 2),
    "tied, 1B, accumulated": (replace(BASE, sequence=64, micro_batches=2), 4),
    "autocast": (replace(BASE, precision="autocast-bf16", sequence=1024), 2),
    "the loss, 7B": (TrainSetup("mistral-7b", "bf16", "sgd", 8, 2048, "full"), 8),
    "the optimizer, 7B": (TrainSetup("llama-2-7b", "bf16", "adamw-fused", 1, 128, "full"), 8),
    "eager": (TrainSetup("llama-2-7b", "bf16", "adamw-fused", 1, 2048, attention="eager"), 8),
    "biases": (TrainSetup("qwen2.5-7b", "bf16", "adamw-fused", 1, 512), 4),
    "logits gathered in FP32": (TrainSetup("llama-2-7b", "fp32", "adamw-fused", 1, 8192, "full"), 8),
}


def of(runs: dict[str, tuple[TrainSetup, int]]) -> list:
    """Their names, marked where the embedding is not the head's."""
    return [
        pytest.param(name, marks=() if setup.model.tied else divided_embedding) for name, (setup, _) in runs.items()
    ]


def off(setup: TrainSetup, ranks: int, rank: int = 0) -> float:
    traced = trace.train(setup, "h100", split=Split(tensor_parallel=ranks, rank=rank))
    return budget.tensor_parallel(setup, ranks, "h100").tensor_bytes / traced.tensor_bytes - 1


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("run", of(RUNS))
def test_the_peak_is_the_traces_on_each_rank(run, rank):
    assert abs(off(*RUNS[run], rank)) < 0.005


@pytest.mark.slow
@pytest.mark.parametrize("run", of(LARGE))
def test_the_peak_of_a_large_model_is_the_traces(run):
    assert abs(off(*LARGE[run])) < 0.001


@pytest.mark.parametrize("name", ["llama-3-8b", "llama-3.2-1b", "qwen2.5-7b"])
def test_a_rank_has_the_weights_that_the_split_by_hand_has(name):
    assert 2 * rank_shape(model(name), 4).parameters == parameter_bytes(model(name), 4, 0, 2)


@pytest.mark.parametrize(
    ("setup", "ranks", "words"),
    [
        (replace(BASE, precision="megatron-bf16"), 2, "megatron-bf16 under tensor"),
        (BASE, 16, "8 KV heads over 16"),
        (BASE, 1, "ranks is 1"),
        (TrainSetup("gpt2", "bf16", sequence=64), 2, "no closed form"),
        (TrainSetup("phi-4", "bf16", sequence=64), 2, "no closed form"),
        (replace(BASE, zero=3, ranks=8), 2, "not predicted"),
    ],
)
def test_what_is_not_predicted_says_so(setup, ranks, words):
    with pytest.raises(WorkbookError, match=words):
        budget.tensor_parallel(setup, ranks)


def test_a_card_whose_kernel_takes_no_grouped_heads_is_refused():
    with pytest.raises(WorkbookError, match="falls back to the plain formula"):
        budget.tensor_parallel(replace(BASE, precision="fp32"), 4, "h100")
