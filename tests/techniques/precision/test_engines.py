"""torchao's float8 training beside one scaled by hand; Transformer Engine, and what is said where it is missing."""

import contextlib
import importlib.util
import sys
from types import SimpleNamespace

import pytest
import torch

from helpers.catalog import WorkbookError
from helpers.techniques import precision
from helpers.techniques.precision import engines

needs_torchao = pytest.mark.skipif(not importlib.util.find_spec("torchao"), reason="torchao is not installed")


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(32, 48, bias=False), torch.nn.ReLU(), torch.nn.Linear(48, 16))


def without(monkeypatch, *packages):
    for name in packages:
        monkeypatch.setitem(sys.modules, name, None)


@needs_torchao
@pytest.mark.parametrize("recipe", engines.RECIPES)
def test_torchao_trains_and_is_near_what_it_replaces(recipe):
    plain, model = network(), engines.torchao_float8(network(), recipe)
    x = torch.randn(64, 32)
    assert {type(model[0]).__name__, type(model[2]).__name__} == {"Float8Linear"}
    assert 0 < ((model(x) - plain(x)).norm() / plain(x).norm()).item() < 0.1
    model(x).square().mean().backward()
    plain(x).square().mean().backward()
    error = (model[0].weight.grad - plain[0].weight.grad).norm() / plain[0].weight.grad.norm()
    assert 0 < error.item() < 0.15


@needs_torchao
def test_torchaos_forward_is_ours():
    """One scale for each tensor, both operands E4M3."""
    layer, x = network()[0], torch.randn(64, 32)
    scales = [tensor.detach().abs().max() / 448 for tensor in (x, layer.weight)]
    codes = [precision.rounded(one / scale, "fp8-e4m3") for one, scale in zip((x, layer.weight), scales, strict=True)]
    ours = codes[0] @ codes[1].T * scales[0] * scales[1]
    model = engines.torchao_float8(torch.nn.Sequential(layer))
    torch.testing.assert_close(model(x), ours, rtol=1e-5, atol=1e-5)


@needs_torchao
def test_the_head_and_odd_sizes_stay():
    model = network().append(torch.nn.Linear(16, 10))
    model.get_output_embeddings = lambda: model[0]
    engines.torchao_float8(model)
    assert [type(layer).__name__ for layer in model] == ["Linear", "ReLU", "Float8Linear", "Linear"]


def test_without_torchao(monkeypatch):
    without(monkeypatch, "torchao", "torchao.float8")
    with pytest.raises(WorkbookError, match="torchao cannot be imported"):
        engines.torchao_float8(network())


def test_without_transformer_engine(monkeypatch):
    without(monkeypatch, "transformer_engine", "transformer_engine.pytorch")
    for call in (lambda: engines.transformer_engine(network()), engines.transformer_engine_steps):
        with pytest.raises(WorkbookError, match="transformer_engine cannot be imported"):
            call()


@pytest.mark.parametrize("name", ["autocast", "fp8_autocast"])
def test_the_context_by_its_new_name_and_by_its_old_one(monkeypatch, name):
    """Not the real engine: a stand-in that shows what is passed."""
    called = {}

    def context(**how):
        called.update(how)
        return contextlib.nullcontext()

    recipe = SimpleNamespace(DelayedScaling=lambda **how: how)
    monkeypatch.setitem(sys.modules, "transformer_engine.pytorch", SimpleNamespace(**{name: context}))
    monkeypatch.setitem(sys.modules, "transformer_engine.common.recipe", recipe)
    with engines.transformer_engine_steps(history=4, margin=1):
        pass
    assert called.pop("enabled")
    assert list(called.values()) == [{"margin": 1, "amax_history_len": 4, "amax_compute_algo": "max"}]


def test_without_a_gpu_transformer_engine_says_what_to_use(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformer_engine.pytorch", SimpleNamespace())
    monkeypatch.setattr(engines, "has_fp8", lambda: False)
    with pytest.raises(WorkbookError, match="no GPU with FP8"):
        engines.transformer_engine(network())


def test_a_layer_of_an_odd_size_is_told_before_accelerate_stops_at_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformer_engine.pytorch", SimpleNamespace())
    monkeypatch.setattr(engines, "has_fp8", lambda: True)
    with pytest.raises(WorkbookError, match=r"0 has a weight of shape \[10, 32\]\n.*16 divides"):
        engines.transformer_engine(torch.nn.Sequential(torch.nn.Linear(32, 10)))


@needs_torchao
@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: engines.torchao_float8(network(), "delayed"), "delayed"),
        (lambda: engines.transformer_engine_steps(history=0), "history"),
    ],
)
def test_bad_input_is_told(call, says):
    with pytest.raises(WorkbookError, match=says):
        call()
