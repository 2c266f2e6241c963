"""FSDP2 by tensor parallelism in closed form, beside the trace of one rank of the mesh."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from helpers.catalog.errors import WorkbookError
from helpers.catalog.models import model
from helpers.catalog.setup import TrainSetup
from helpers.catalog.split import Split
from helpers.memory import budget, trace
from tests.versions import divided_embedding


def of(name: str, layers: int, *details: object, **changes: object) -> TrainSetup:
    """A model of the catalogue with so many layers, which keep their width."""
    changes = {"optimizer": "adamw-fused", **changes}
    return TrainSetup({**model(name).config, "num_hidden_layers": layers}, *details, **changes)


# Each has its peak in another place
RUNS = {
    "gathered logits, then the loss": (of("llama-3-8b", 2, sequence=2048, checkpointing="full"), 2, 2),
    "a tied table's whole gradient": (of("llama-3.2-1b", 2, sequence=64), 4, 2),
    "an embedding's whole gradient": (of("llama-3-8b", 2, sequence=64), 8, 8),
    "accumulated, tied": (of("llama-3.2-1b", 2, sequence=64, micro_batches=2), 2, 2),
    "a layer, fp32": (of("llama-2-7b", 3, "fp32", sequence=1024, checkpointing="full"), 4, 2),
    "the root in its shards": (of("llama-3-8b", 2, sequence=64), 2, 2),
}
LARGE = {
    "the loss, 8B": (TrainSetup("llama-3-8b", sequence=4096, optimizer="adamw-fused", checkpointing="full"), 8, 8),
    "the embedding, 7B": (TrainSetup("qwen2.5-7b", "bf16", "adamw-fused", 1, 256), 4, 2),
    "accumulated, 7B": (TrainSetup("llama-2-7b", optimizer="adamw-fused", sequence=1024, micro_batches=2), 2, 2),
    "segments, 7B": (TrainSetup("llama-2-7b", sequence=2048, optimizer="adamw-fused", checkpointing="every:8"), 64, 8),
}
BASE = TrainSetup("llama-3.2-1b", optimizer="adamw-fused")


def marked(names: Iterable[str]) -> list:
    """Names of runs, marked where the embedding is not the head's."""
    tied = {name: setup.model.tied for name, (setup, *_) in (RUNS | LARGE).items()}
    return [pytest.param(name, marks=() if tied[name] else divided_embedding) for name in names]


def off(setup: TrainSetup, ranks: int, tensor: int, reduced: str = "fp32") -> float:
    traced = trace.train(setup, "h100", split=Split(ranks, tensor, reduced=reduced))
    predicted = budget.fsdp2(setup, ranks, "h100", reduced=reduced, tensor=tensor)
    return predicted.peak_bytes / traced.peak_bytes - 1


@pytest.mark.parametrize("run", marked(RUNS))
def test_the_peak_is_the_traces(run):
    assert abs(off(*RUNS[run])) < 0.001


@pytest.mark.parametrize("run", marked(["the root in its shards", "a tied table's whole gradient"]))
def test_the_peak_with_gradients_reduced_in_bf16_is_the_traces(run):
    assert abs(off(*RUNS[run], "bf16")) < 0.001


@pytest.mark.slow
@pytest.mark.parametrize("run", marked(LARGE))
def test_the_peak_of_a_large_model_is_the_traces(run):
    assert abs(off(*LARGE[run])) < 0.003


def test_the_peak_can_be_at_the_end_of_the_segment_before_the_last():
    """There the last segment's gradients are on their way: 7.6 MiB more than at the first segment's end."""
    peak = budget.fsdp2(LARGE["segments, 7B"][0], 64, tensor=8).peak
    assert peak.layer == 23


def test_one_tensor_rank_is_fsdp2_alone():
    assert budget.fsdp2(BASE, 8, "h100", tensor=1) == budget.fsdp2(BASE, 8, "h100")


def test_the_weights_of_a_rank_are_divided_by_both_dimensions():
    parts = [budget.fsdp2(BASE, ranks, tensor=8 // ranks).parts["parameters"] for ranks in (8, 4, 2)]
    assert parts[1:] == pytest.approx(parts[:1] * 2, rel=0.001)


@pytest.mark.parametrize(
    ("setup", "ranks", "tensor", "words"),
    [
        (BASE, 8, 0, "tensor is 0"),
        (BASE, 8, 2.0, "tensor is 2.0"),
        (BASE, 1, 2, "ranks is 1"),
        (BASE, 8, 16, "8 KV heads over 16"),
        (replace(BASE, precision="megatron-bf16"), 8, 2, "megatron-bf16 under tensor parallelism"),
        (TrainSetup("gpt2", sequence=64), 8, 2, "no closed form"),
    ],
)
def test_what_is_not_predicted_says_so(setup, ranks, tensor, words):
    with pytest.raises(WorkbookError, match=words):
        budget.fsdp2(setup, ranks, tensor=tensor)
