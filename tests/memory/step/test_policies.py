"""Every checkpointing policy with a closed form against a real step: saved bytes to the byte, the peak, the FLOPs."""

from dataclasses import replace
from functools import cache

import pytest
import torch

from helpers.catalog import Adapter, TrainSetup, WorkbookError
from helpers.memory import budget, measure, trace
from helpers.memory.breakdown import Phase, Point
from helpers.memory.measure import steps
from helpers.memory.measure.steps import build_model, run_of, training_run
from helpers.memory.step.flops import _Products, step_flops
from helpers.techniques.checkpointing import checkpointed, flops_of
from tests.memory.configs import llama_7b
from tests.memory.step.agreement import agree, by_night, llama

BASE = llama(64, 176, 5, 4, 256, 2, max_position_embeddings=512, hidden_act="silu")
QWEN3 = {"model_type": "qwen3", "intermediate_size": 160, "head_dim": 24, "tie_word_embeddings": True}
GPT2 = {"n_embd": 64, "n_layer": 5, "n_head": 4, "n_positions": 512, "vocab_size": 256, "bos_token_id": 0}
SHAPES = {"llama": BASE, "qwen3": BASE | QWEN3, "gpt2": {"model_type": "gpt2", **GPT2, "eos_token_id": 0}}
SOME = ("full", "first:2", "selective", "module:attention", "module:mlp", "offload:inputs", "selective:every-second")
POLICIES = ("none", *SOME, "every:2", "sqrt-n", "nested:3", "recursive", "selective:matmuls", "selective:attention")
# GPT-2 under autocast is held against the trace: its gelu_new is another on CUDA, and that is what the budget tells
OTHERS = [(*same, "sdpa", policy) for same in (("qwen3", "bf16"), ("llama", "autocast-bf16")) for policy in SOME]
EAGER = [
    ("llama", precision, "eager", policy)
    for precision in ("fp32", "autocast-bf16")
    for policy in ("selective", "module:attention", "module:mlp", "selective:every-second")
]
OF_LLAMA, QWEN, OF_GPT2 = [[(name, "fp32", "sdpa", policy) for policy in POLICIES] for name in SHAPES]
ONE_EACH = [OTHERS[2], OTHERS[10], EAGER[5]]  # the other precisions and shapes meet each kind of policy once
CASES = [(case,) for case in OF_LLAMA + OTHERS + EAGER + QWEN + OF_GPT2]


def setup_of(name, precision="fp32", attention="sdpa", policy="none"):
    return TrainSetup(SHAPES[name], precision, "sgd", 3, 160, policy, attention)


@cache
def plain_run(name, precision, attention):
    setup = setup_of(name, precision, attention)
    return run_of(setup, build_model(setup, "cpu"), "cpu")


@pytest.mark.parametrize("case", by_night(CASES, OF_LLAMA + ONE_EACH), ids="-".join)
def test_saved_bytes_peak_and_flops(case):
    *same, policy = case
    run, predicted = plain_run(*same), budget.train(setup_of(*case))
    with checkpointed(run.model, policy):
        measured = measure.step(run.step, run.model, run.optimizer, warmup=0)
        flops = flops_of(run.step)
    assert predicted.saved_bytes == measured.saved_bytes
    assert predicted.peak_bytes == pytest.approx(measured.peak_bytes, rel=0.01)
    in_forward = predicted.peak.at is Point.END_OF_FORWARD
    assert measured.peak.at is (Phase.FORWARD if in_forward else Phase.BACKWARD)
    assert predicted.flops.total == flops


def test_the_peak_moves_from_the_loss_to_a_layer():
    peaks = {policy: budget.train(setup_of("llama", policy=policy)).peak for policy in POLICIES}
    for policy in ("none", "first:2", "module:attention"):
        assert peaks[policy].at is Point.LOSS
    for policy, layer in (("full", 0), ("nested:3", 0), ("every:2", 1), ("selective", 4)):
        assert (peaks[policy].at, peaks[policy].layer) == (Point.LAYER, layer)


def test_the_peak_can_lie_in_the_middle():
    """Of nested segments 1-3 and 4-5 the end of the first: most boundaries, and the gradients of two layers."""
    predicted, _ = agree(replace(setup_of("llama", policy="nested:3"), micro_batch=8), real=True, peak=0.002)
    assert predicted.peak.name == "backward of layer 3"
    assert (predicted.peak.at, predicted.peak.layer) == (Point.LAYER, 2)


def test_on_cuda_the_statistics_of_a_norm_stay_fp32_and_on_a_cpu_they_do_not():
    setup = setup_of("gpt2", "bf16")
    measured = measure.training_step(setup, "cpu")
    spared = 2 * (2048 - 1024)  # mean and rstd of 480 tokens, 4 bytes each on CUDA and 2 here, in whole blocks
    assert budget.train(setup).saved_bytes - measured.saved_bytes == (2 * 5 + 1) * spared


ON_CUDA = ("selective:attention", "module:mlp", "nested:3", "offload:inputs")


@pytest.mark.parametrize("precision", by_night(["autocast-bf16", "fp32"], ["autocast-bf16"]))
@pytest.mark.parametrize("policy", by_night([*ON_CUDA, "full", "selective", "module:attention", "first:2"], ON_CUDA))
def test_on_cuda_as_the_trace_tells_it(policy, precision):
    """With the workspaces of cuBLASLt, a MiB for each thread that multiplies and adds a bias."""
    agree(setup_of("gpt2", precision, policy=policy), "a100-80gb", peak={"abs": 2**15})


def test_one_layer_of_llama_2_7b_by_hand():
    setup = llama_7b(checkpointing="selective")
    tokens, h, f = 2048, 4096, 11_008
    products = 2 * tokens * (5 * h + 2 * f)  # q, k, v, o, down; gate and up
    attention = tokens * (2 * h + 4 * 32)
    assert budget.train(setup).kept_bytes == 32 * (2 * tokens * h + products + attention)


def test_flops_of_llama_2_7b_by_hand():
    flops = {policy: budget.step_flops(llama_7b(checkpointing=policy)) for policy in ("full", "selective:matmuls")}
    tokens, h, f = 2048, 4096, 11_008
    kernel, down = 4 * tokens**2 * h, 2 * tokens * h * f
    layer = 2 * tokens * (4 * h * h + 3 * h * f) + kernel
    head = 2 * tokens * h * 32_000
    assert flops["full"].forward == 32 * layer + head
    assert flops["full"].backward == 2 * flops["full"].forward + 32 * kernel // 2
    assert flops["full"] == budget.train(llama_7b(checkpointing="full")).flops
    assert flops["full"].recomputed == 32 * (layer - down)
    assert flops["selective:matmuls"].recomputed == 32 * kernel
    assert round(flops["full"].ratio, 3) == 1.257


def test_a_recomputed_segment_runs_all_but_its_last_product():
    def extra(policy):
        return budget.step_flops(setup_of("llama", policy=policy)).recomputed

    down = 2 * 480 * 64 * 176
    assert extra("every:5") - extra("full") == 4 * down
    assert extra("every:2") - extra("full") == 2 * down  # of segments of 2, 2 and 1
    assert extra("none") == extra("selective") == 0


def test_gemma_runs_the_last_product_again_because_a_norm_reads_it():
    def parts(policy):
        setup = TrainSetup("gemma-2-9b", attention="eager", checkpointing=policy, sequence=128)
        return budget.step_flops(setup), setup.model.layers[0].mlp.linears[-1]

    flops, down = parts("full")
    assert flops.forward - flops.recomputed == 2 * 128 * 256_000 * 3584  # all but lm_head
    assert parts("module:mlp")[0].recomputed == 42 * 2 * 128 * 2 * down.weights


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["full", "nested:2", pytest.param("sqrt-n", marks=pytest.mark.all)])
def test_segments_around_whole_layers_are_what_the_technique_makes(policy, monkeypatch):
    setup = setup_of("qwen3", policy=policy)
    instruments = (lambda: measure.training_step(setup, "cpu"), lambda: trace.train(setup, on="cpu"))
    own = [instrument().peak_bytes for instrument in instruments]
    monkeypatch.setattr(steps, "whole_layers", lambda segments: False)
    assert [instrument().peak_bytes for instrument in instruments] == own


def test_a_technique_is_handed_the_model_and_the_policy_where_no_segments_do(monkeypatch):
    seen = []
    monkeypatch.setattr(steps, "registered", lambda kind: lambda *given: seen.append((kind, *given)))
    for policy in ("none", "full", "selective"):
        training_run(setup_of("llama", policy=policy), "cpu")
    [(kind, model, policy)] = seen
    assert (kind, policy) == ("checkpointing", "selective")
    assert isinstance(model, torch.nn.Module)


def test_measured_and_traced_agree_where_activations_are_offloaded_and_the_budget_refuses():
    setup = setup_of("llama", policy="offload")
    measured, traced = measure.training_step(setup, "cpu"), trace.train(setup, on="cpu")
    assert traced.peak_bytes - measured.peak_bytes == 4096  # the batch of 480 tokens, made before the step
    assert traced.measured.saved_bytes == measured.saved_bytes
    with pytest.raises(WorkbookError, match="workbook trace train --checkpointing offload"):
        budget.train(setup)
    assert budget.step_flops(setup).recomputed == 0


@pytest.mark.parametrize("adapter", [None, Adapter("lora", 8), Adapter("dora", 8)], ids=str)
def test_rows_and_passes_take_as_many_flops_as_when_each_is_counted(adapter):
    """DoRA's norms multiply weights alone, once for all rows of a micro-batch."""
    setup = TrainSetup("llama-3.2-1b", "bf16", micro_batch=3, sequence=64, checkpointing="full", adapter=adapter)
    counted, one = _Products(setup), step_flops(replace(setup, micro_batches=2))
    assert (one.forward, one.backward) == (2 * counted.flops, 2 * counted.backward_flops)
    assert one.recomputed == 2 * counted.flops_again > 0
