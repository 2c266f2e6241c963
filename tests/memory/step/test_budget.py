"""The closed form against the figures that the field knows, and against the mistakes that the field makes."""

from dataclasses import replace
from math import prod

import pytest

from helpers.catalog import TrainSetup, WorkbookError, model
from helpers.catalog.split import Split
from helpers.memory import budget
from helpers.memory.breakdown import Point, rounded
from tests.memory.configs import llama_7b, variant
from tests.memory.step.agreement import AUTOCAST, EAGER, FULL

GIB = 2**30
N = model("llama-2-7b").parameters
WIDTH = 4096

# (choices, GiB as traced from the real code with fake tensors, GiB of the closed form)
FOREACH = {"optimizer": "adamw-foreach"}
TRACED = [(AUTOCAST, 102.0, 102.31), (AUTOCAST | FULL, 100.4, 100.44), ({}, 50.2, 50.22)]
TRACED += [(FOREACH, 62.8, 62.76), (AUTOCAST | FOREACH, 125.5, 125.51)]


@pytest.mark.parametrize(("choices", "traced_gib", "exact_gib"), TRACED)
def test_llama_2_7b_within_one_percent_of_the_trace(choices, traced_gib, exact_gib):
    peak_gib = budget.train(llama_7b(**choices)).peak_bytes / GIB
    assert peak_gib == pytest.approx(traced_gib, rel=0.01)
    assert round(peak_gib, 2) == exact_gib


# Bytes per parameter at the optimizer step: two recipes are called mixed precision, and they differ.
CONVENTIONS = [("fp32", "adamw-fused", 16), ("bf16", "adamw-fused", 8), ("autocast-bf16", "adamw-fused", 16)]
CONVENTIONS += [("megatron-bf16", "adamw-fused", 18), ("autocast-bf16", "adamw-foreach", 20), ("fp32", "sgd", 8)]
CONVENTIONS += [
    ("bf16", "adamw-foreach", 10),
    ("fp32", "sgd-momentum", 12),
    ("autocast-bf16", "adamw-8bit", 10 + 1 / 32),
]


@pytest.mark.parametrize(("precision", "optimizer", "bytes_each"), CONVENTIONS)
def test_bytes_per_parameter_at_the_optimizer_step(precision, optimizer, bytes_each):
    last = budget.train(llama_7b(precision=precision, optimizer=optimizer)).at(Point.OPTIMIZER)
    assert last.total / N == pytest.approx(bytes_each, rel=1e-3)


def test_logits_and_loss_cost_twelve_bytes_each():
    setup = TrainSetup("llama-3-8b", precision="bf16", sequence=8192)
    assert budget.train(setup).at("loss").parts["logits"] == 12 * 8192 * 128_256


def test_full_checkpointing_keeps_one_input_per_layer():
    tokens = 2048
    full = budget.train(llama_7b(checkpointing="full")).moments[0].parts["activations"]
    inputs = 32 * 2 * tokens * WIDTH  # 2sbh a layer, not 34sbh
    final_norm = tokens * WIDTH * (4 + 2 + 2) + 4 * tokens
    rotary = 2 * 2 * tokens * 128
    assert full == inputs + final_norm + rotary


def test_segments_keep_fewer_inputs_and_recompute_more():
    full, four = (budget.train(llama_7b(checkpointing=every)) for every in ("full", "every:4"))
    input_bytes = 2 * 2048 * WIDTH
    kept = [run.moments[0].parts["activations"] for run in (full, four)]
    assert kept[0] - kept[1] == (32 - 8) * input_bytes
    recomputed = [max(m.parts["activations"] for m in run.moments if m.at is Point.LAYER) for run in (full, four)]
    assert recomputed[1] > recomputed[0]


def test_moments_come_in_the_order_of_the_step():
    first, *backward, last = (moment.name for moment in budget.train(llama_7b()).moments)
    of = ["the loss", "lm_head", "the final norm", "layer 32", "layer 1", "the embedding"]
    assert (first, backward, last) == (
        "end of forward, in the loss",
        [f"backward of {one}" for one in of],
        "optimizer step",
    )


def test_shape_variants_of_a_family_go_through_the_closed_form():
    grouped, full = variant("llama-2-7b", num_key_value_heads=8), model("llama-2-7b")
    setup = llama_7b()
    less = [budget.train(replace(setup, model=shape)).moments[0].parts["activations"] for shape in (full, grouped)]
    assert less[0] - less[1] == 32 * 2 * (32 - 8) * 128 * 2048 * 2  # K and V of 24 heads fewer


def test_grouped_heads_in_fp32_keep_their_scores_on_cuda_and_no_others():
    grouped = TrainSetup("llama-3.2-1b", precision="fp32", sequence=256)
    alone, on_a100 = budget.train(grouped), budget.train(grouped, "a100-80gb")  # a CPU's kernel takes grouped heads
    assert on_a100.saved_bytes > alone.saved_bytes + 16 * 32 * 4 * 256**2
    with pytest.raises(WorkbookError, match="grouped heads"):
        budget.train(replace(grouped, split=Split(fsdp=2)), "a100-80gb")
    for change in ({"precision": "bf16"}, AUTOCAST, EAGER, {"model": "llama-2-7b"}):
        changed = replace(grouped, **change)
        assert budget.train(changed, "a100-80gb").saved_bytes == budget.train(changed).saved_bytes


@pytest.mark.parametrize("name", ["llama-2-7b", "gpt2"])
def test_the_libraries_of_a_card_are_told_apart_from_its_tensors(name):
    """GPT-2 adds biases: cuBLASLt has a workspace, too, in autograd's thread as well where that recomputes."""
    setup = TrainSetup(name, "bf16", "adamw-fused", sequence=1024, checkpointing="full")
    alone, on_h100, on_amd = (budget.train(setup, gpu) for gpu in (None, "h100", "mi300x"))
    assert on_h100.library_bytes == 2 * 2**25 + (2 * 2**20 if name == "gpt2" else 0)
    assert alone.library_bytes == on_amd.library_bytes == 0
    on_a100 = budget.train(setup, "a100-80gb")
    assert on_a100.peak_bytes - alone.peak_bytes == 2 * 8_519_680 + (2 * 2**20 if name == "gpt2" else 0)
    assert on_h100.tensor_bytes == alone.tensor_bytes == alone.peak_bytes == on_h100.peak_bytes - on_h100.library_bytes


def test_eight_accumulated_micro_batches_of_7b_need_its_gradients_more():
    """FP32 gradients, 25.1 GiB, are alive at every moment; both peak in the loss, where no new one is made yet."""
    one = TrainSetup("llama-2-7b", optimizer="adamw-fused")
    alone, eight = budget.train(one), budget.train(replace(one, micro_batches=8))
    assert eight.peak_bytes - alone.peak_bytes == sum(rounded(4 * prod(s)) for s in one.model.tensors())
    assert eight.peak.at is alone.peak.at is Point.LOSS
    assert eight.flops.total == 8 * alone.flops.total


@pytest.mark.parametrize(("precision", "width"), [("fp32", 4), ("bf16", 2), ("autocast-bf16", 4), ("megatron-bf16", 2)])
@pytest.mark.parametrize(("name", "tables"), [("llama-2-7b", 1), ("llama-3.2-1b", 3)])
def test_a_new_gradient_stands_beside_its_sum_in_the_dtype_that_it_is_made_in(name, tables, precision, width):
    """Tied weights have three of them at the embedding: the head's, the embedding's, their sum; under autocast two."""
    setup = TrainSetup(name, precision, "sgd", sequence=1, micro_batches=2)
    table = width * setup.model.vocab * setup.model.hidden
    parts = budget.train(setup).at(Point.EMBEDDING).parts
    expected = table * (2 if tables == 3 and precision == "autocast-bf16" else tables)
    assert parts["workspace"] == pytest.approx(expected, abs=4096 * 4)
