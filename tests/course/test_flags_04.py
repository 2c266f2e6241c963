"""What chapter 04 tells to write is there in the installed libraries, and does what its line is priced as."""

from __future__ import annotations

import inspect
from dataclasses import fields

import pytest
import torch
from transformers import TrainingArguments

from helpers.catalog.optimizers import OPTIMIZERS
from helpers.course import notebook as nb
from tests.house.tree import ROOT


@pytest.fixture(scope="module")
def told() -> str:
    (path,) = (ROOT / "notebooks").glob("04_*.ipynb")
    (source,) = [one.source for one in nb.read(path).cells if one.id == "04-do-table"]
    return source


def test_trainer_has_the_flags_and_passes_the_rounding_on(told):
    names = {field.name for field in fields(TrainingArguments)}
    assert names >= {"bf16", "fp16", "optim", "optim_args", "logging_nan_inf_filter"}
    source = inspect.getsource(pytest.importorskip("transformers.trainer_optimizer"))
    assert "bf16_stochastic_round" in source
    assert 'optim="adamw_torch_8bit", optim_args="bf16_stochastic_round=True"' in told
    assert TrainingArguments("x", optim="adamw_torch_8bit", report_to="none", use_cpu=True).optim == "adamw_torch_8bit"


@pytest.mark.parametrize("stochastic", [False, True])
def test_torchaos_8_bit_averages_are_as_priced_and_round_by_chance(stochastic):
    """On a CPU without its compiler, which the optimizer wants for its speed."""
    optim = pytest.importorskip("torchao.optim")
    weight = torch.nn.Parameter(torch.ones(256, 256, dtype=torch.bfloat16))
    optimizer = optim.AdamW8bit([weight], lr=1e-3, weight_decay=0, bf16_stochastic_round=stochastic)
    with torch.compiler.set_stance("force_eager"):
        for _ in range(3):
            weight.grad = torch.ones_like(weight)
            optimizer.step()
    states = [value for state in optimizer.state.values() for value in state.values()]
    kept = sum(one.codes.nbytes + one.scale.nbytes for one in states if hasattr(one, "codes"))
    assert kept == OPTIMIZERS["adamw-8bit"].state_bytes((256, 256), 2)
    assert (weight != 1).any() == stochastic
    assert weight.float().mean().item() == pytest.approx(0.997 if stochastic else 1, abs=3e-4)


def test_a_scaler_refuses_weights_in_fp16():
    model, scaler = torch.nn.Linear(2, 2).half(), torch.amp.GradScaler("cpu")
    scaler.scale(model(torch.ones(1, 2).half()).sum()).backward()
    with pytest.raises(ValueError, match="unscale FP16 gradients"):
        scaler.step(torch.optim.AdamW(model.parameters()))


def test_fsdp2_and_accelerate_have_the_lines(told):
    from torch.distributed.fsdp import MixedPrecisionPolicy

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    assert (policy.param_dtype, policy.reduce_dtype) == (torch.bfloat16, torch.float32)
    source = inspect.getsource(pytest.importorskip("accelerate.utils.fsdp_utils"))
    assert "param.data = param.data.to(torch.float32)" in source
    assert "casts weights that you loaded in BF16 to FP32" in told


def test_torchao_converts_linear_layers_and_leaves_their_weights():
    float8 = pytest.importorskip("torchao.float8")
    model = torch.nn.Sequential(torch.nn.Linear(64, 64, bias=False)).bfloat16()
    config = float8.Float8LinearConfig(emulate=True)
    float8.convert_to_float8_training(model, config=config)
    assert type(model[0]).__name__ == "Float8Linear"
    assert model[0].weight.dtype == torch.bfloat16
