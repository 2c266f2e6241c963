"""Ready-made runs: against the closed form, at sizes that no test machine holds, and what they refuse."""

from dataclasses import replace

import pytest

from helpers.catalog import ServeSetup, TrainSetup, WorkbookError
from helpers.catalog.split import Split
from helpers.memory import budget, trace

GIB = 2**30


@pytest.mark.parametrize(
    ("model", "how"),
    [
        pytest.param("llama-3.2-1b", {"precision": "bf16", "optimizer": "adamw-fused"}, marks=pytest.mark.slow),
        pytest.param("llama-3.2-1b", {"precision": "bf16", "checkpointing": "full"}, marks=pytest.mark.all),
        ("gpt2", {"precision": "fp32", "optimizer": "sgd"}),
        ("tiny-llama", {"precision": "autocast-bf16"}),
        ("tiny-gpt2", {"precision": "autocast-bf16"}),
    ],
)
def test_training_agrees_with_the_closed_form(model, how):
    setup = TrainSetup(model, micro_batch=2, sequence=256, **how)
    found, predicted = trace.train(setup), budget.train(setup, "a100-80gb")
    assert found.peak_bytes == pytest.approx(predicted.peak_bytes, rel=0.002)
    assert found.peak_reserved_bytes >= found.peak_allocated_bytes >= found.peak_bytes


def test_the_first_step_makes_the_states():
    setup = TrainSetup("tiny-llama", precision="fp32", micro_batch=1, sequence=64, optimizer="adamw-fused")
    first, second = trace.train(setup, steps=1), trace.train(setup, steps=2)
    assert second.parts["optimizer"] == pytest.approx(2 * second.parts["parameters"], rel=0.001)
    assert first.peak_bytes <= second.peak_bytes


def test_prefill_leaves_the_cache_that_the_budget_counts():
    setup = ServeSetup("llama-3-8b", users=2, context=512)
    found = trace.prefill(setup)
    assert found.parts["kv_cache"] == budget.serve(setup).held["kv_cache"]
    assert found.parts["parameters"] == pytest.approx(budget.serve(setup).held["parameters"], rel=1e-5)


def test_a_decode_step_holds_a_layer_s_cache_twice_for_a_moment():
    setup = ServeSetup("llama-3-8b", users=8, context=1024)
    found, kv = trace.decode(setup), budget.serve(setup).held["kv_cache"]
    assert kv < found.parts["kv_cache"] <= kv * (1 + 1 / 32)


def test_a_window_bounds_the_cache():
    found = trace.decode(ServeSetup("tiny-llama", weights="bf16", kv="bf16", users=1, context=300))
    assert found.parts["kv_cache"] > 0


@pytest.mark.filterwarnings("error:`is_gradient_checkpointing`:FutureWarning")  # no reader can do anything about it
def test_lora_trains_only_its_adapters():
    pytest.importorskip("peft")
    setup = TrainSetup("tiny-llama", precision="bf16", micro_batch=1, sequence=64, checkpointing="full")
    found = trace.lora(setup, rank=8, targets=("q_proj", "v_proj"))
    adapters = 4 * 2 * (2 * 8 * 256) if setup.model.kv_heads == setup.model.heads else None
    if adapters:
        assert found.parts["optimizer"] == pytest.approx(2 * 4 * adapters, rel=0.02)
    assert found.peak_bytes < trace.train(setup).peak_bytes


@pytest.mark.parametrize(
    "call",
    [
        lambda: trace.train(TrainSetup("tiny-llama", split=Split(2, zero=3))),
        lambda: trace.train(TrainSetup("tiny-llama"), steps=0),
        lambda: trace.train(TrainSetup("tiny-llama"), gpu="h1000"),
        lambda: trace.prefill(ServeSetup("tiny-llama", weights="int8")),
        lambda: trace.prefill(ServeSetup("tiny-llama", weights="nf4", kv="fp8-e4m3")),
        lambda: trace.prefill(ServeSetup("tiny-llama", weights="nf4", skipped=["down_proj"])),
        lambda: trace.prefill(ServeSetup("tiny-llama", kv="int8")),
    ],
)
def test_bad_input_is_refused(call):
    with pytest.raises(WorkbookError):
        call()


@pytest.mark.parametrize(("rank", "targets"), [(0, ("q_proj",)), (True, ("q_proj",)), (8, ("query",))])
def test_bad_adapters_are_refused(rank, targets):
    pytest.importorskip("peft")
    with pytest.raises(WorkbookError):
        trace.lora(TrainSetup("tiny-llama", precision="bf16"), rank, targets)


@pytest.mark.slow
@pytest.mark.parametrize("weights", [pytest.param("nf4", marks=pytest.mark.all), "nf4-dq"])
def test_a_served_model_in_four_bits_holds_what_the_budget_counts(weights):
    pytest.importorskip("bitsandbytes")
    setup = ServeSetup("llama-3.2-1b", weights=weights, users=2, context=64)
    found, tensors = trace.decode(setup), 4 * 16 * 7
    assert 0 <= found.parts["parameters"] - budget.weight_bytes(setup) <= 512 * 2 * tensors  # each rounded up
    prefill, plain = (trace.prefill(one) for one in (setup, replace(setup, weights="bf16")))
    weight_bytes = 2 * 8192 * 2048
    assert prefill.parts["parameters"] < plain.parts["parameters"] / 2
    assert prefill.parts["workspace"] > plain.parts["workspace"], "a weight is decoded whole for a long prompt"
    assert prefill.parts["workspace"] < plain.parts["workspace"] + 2 * weight_bytes
