"""The training runs that are ready to measure: they are what their setup says, and they learn."""

from dataclasses import replace

import pytest
import torch

from helpers.catalog import TrainSetup, WorkbookError
from helpers.catalog.split import Split
from helpers.memory import measure
from helpers.memory.measure import steps
from tests.memory.configs import SMALL

SETUP = TrainSetup("tiny-llama", "fp32", "adamw-fused", 1, 32)


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("precision", ["fp32", "bf16", "autocast-bf16", "megatron-bf16"])
def test_the_model_is_the_catalogue_s_in_the_dtype_of_its_recipe(name, precision):
    setup = TrainSetup(SMALL[name], precision, sequence=32, attention="eager" if name == "gemma2" else "sdpa")
    model = steps.build_model(setup, "cpu")
    assert sum(p.numel() for p in model.parameters()) == setup.model.parameters
    assert {p.element_size() for p in model.parameters()} == {setup.precision_recipe.weight_bytes}
    assert model.training
    assert not [m.p for m in model.modules() if isinstance(m, torch.nn.Dropout) and m.p]


def test_an_attention_that_transformers_does_not_have_is_told():
    with pytest.raises(WorkbookError, match="pass attention='eager'"):
        steps.training_run(TrainSetup(SMALL["gemma2"], "fp32", "adamw-fused", 1, 32), "cpu")


def test_a_model_without_a_closed_form_is_measured_all_the_same():
    experts = {
        "model_type": "mixtral",
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_local_experts": 4,
        "vocab_size": 200,
    }
    setup = TrainSetup(experts, "bf16", "adamw-fused", 1, 32)
    measured = measure.training_step(setup, "cpu")
    assert measured.parts["parameters"] == pytest.approx(2 * setup.model.parameters, rel=0.05)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "autocast-bf16", "megatron-bf16"])
def test_a_step_moves_the_weights_and_frees_the_gradients(precision):
    run = steps.training_run(replace(SETUP, precision=precision), "cpu")
    before = [p.detach().clone() for p in run.model.parameters()]
    for _ in range(8):
        run.step()
    moved = [not torch.equal(b, p) for b, p in zip(before, run.model.parameters(), strict=True)]
    assert any(moved)
    assert all(p.grad is None for p in run.model.parameters())


@pytest.mark.parametrize("checkpointing", ["full", "every:2", "every:3"])
def test_checkpointing_changes_no_gradient(checkpointing):
    def gradients(setup):
        run = steps.training_run(setup, "cpu")
        ids = torch.arange(32)[None]
        run.model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
        return [p.grad for p in run.model.parameters()]

    for plain, again in zip(gradients(SETUP), gradients(replace(SETUP, checkpointing=checkpointing)), strict=True):
        torch.testing.assert_close(plain, again)


def test_megatron_s_masters_are_fp32_and_steer_the_bf16_weights():
    run = steps.training_run(replace(SETUP, precision="megatron-bf16"), "cpu")
    run.step()
    masters = run.optimizer.param_groups[0]["params"]
    assert {m.dtype for m in masters} == {torch.float32}
    for parameter, master in zip(run.model.parameters(), masters, strict=True):
        assert torch.equal(parameter, master.to(torch.bfloat16))
        assert not master.grad.any()


@pytest.mark.parametrize(
    ("change", "phrase"),
    [
        ({"split": Split(2)}, "2 ranks"),
        ({"split": Split(zero=1)}, "ZeRO stage 1"),
        ({"model": "llama-2-70b"}, "this run needs about"),
        ({"model": "mixtral-8x7b"}, "this run needs about"),
    ],
)
def test_what_cannot_run_here_is_refused_before_it_is_built(change, phrase):
    with pytest.raises(WorkbookError, match=phrase):
        steps.training_run(replace(SETUP, **change), "cpu")


def test_a_model_without_a_list_of_layers_cannot_be_checkpointed_by_us():
    with pytest.raises(WorkbookError, match="no list of 4 layers"):
        steps.layer_list(torch.nn.Linear(1, 1), 4)


def test_the_matrices_of_scores_of_an_eager_step_are_found():
    """One for each layer, kept for its backward, and two while the last layer's gradients are made."""
    heads, layers, tokens = 4, 2, 192
    config = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": layers}
    config |= {"num_attention_heads": heads, "num_key_value_heads": 2, "vocab_size": 200}
    setup = TrainSetup(config, "fp32", "adamw-fused", 1, tokens, attention="eager")
    plain, told = (
        measure.training_step(setup, "cpu", part_of=part_of)
        for part_of in (None, lambda block: "scores" if block.shape[-2:] == (tokens, tokens) else None)
    )
    assert told.parts["scores"] == (layers + 2) * heads * tokens**2 * 4
    assert told.peak_bytes == plain.peak_bytes
