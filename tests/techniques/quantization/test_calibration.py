"""What calibration collects, against the same sums over every input kept."""

import copy

import pytest
import torch

from helpers.catalog import WorkbookError
from helpers.techniques.quantization import dense_linears
from helpers.techniques.quantization.calibration import InputStatistics, decoder_layers, layer_by_layer, output_error
from tests.techniques.quantization.tiny import correlated_inputs, tiny_llama, token_batches


@torch.no_grad()
def inputs_of(model, name):
    """Every input of one linear layer, over all batches, by a hook on the plain model."""
    kept = []
    hook = model.get_submodule(name).register_forward_pre_hook(lambda _, args: kept.append(args[0].flatten(0, 1)))
    for batch in token_batches():
        model(batch)
    hook.remove()
    return torch.cat(kept)


def zero_the_output(layer):
    """The crudest quantization: the layer adds nothing any more."""
    layer.self_attn.o_proj.weight.data.zero_()
    layer.mlp.down_proj.weight.data.zero_()


@pytest.mark.parametrize("follow", [True, False])
def test_sums_are_those_of_the_inputs_in_the_plain_model(follow):
    model = tiny_llama()
    for step in layer_by_layer(model, token_batches(), follow):
        for name, seen in step.observe(keep_tokens=50).items():
            x = inputs_of(model, f"{step.name}.{name}")
            assert seen.tokens == len(x) == 120
            torch.testing.assert_close(seen.hessian, x.T @ x / len(x))
            torch.testing.assert_close(seen.mean_abs, x.abs().mean(0))
            torch.testing.assert_close(seen.max_abs, x.abs().amax(0))
            torch.testing.assert_close(seen.inputs, x[:50])


def test_a_following_layer_is_fed_by_the_changed_ones():
    changed = copy.deepcopy(tiny_llama())
    for step in layer_by_layer(changed, token_batches()):
        last = step.observe()["mlp.down_proj"]
        zero_the_output(step.layer)
    whole = copy.deepcopy(tiny_llama())
    zero_the_output(whole.model.layers[0])
    x = inputs_of(whole, "model.layers.1.mlp.down_proj")
    torch.testing.assert_close(last.hessian, x.T @ x / len(x))


def test_without_follow_a_layer_is_fed_by_the_model_as_it_was():
    changed = copy.deepcopy(tiny_llama())
    for step in layer_by_layer(changed, token_batches(), follow=False):
        last = step.observe()["mlp.down_proj"]
        zero_the_output(step.layer)
    x = inputs_of(tiny_llama(), "model.layers.1.mlp.down_proj")
    torch.testing.assert_close(last.hessian, x.T @ x / len(x))


def test_no_hook_stays_behind():
    model = copy.deepcopy(tiny_llama())
    for step in layer_by_layer(model, token_batches()):
        step.observe()
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_every_layer_and_linear_is_met_once_in_order():
    names = [f"{step.name}.{name}" for step in layer_by_layer(tiny_llama(), token_batches()) for name in step.observe()]
    assert names == list(dense_linears(tiny_llama()))
    assert list(decoder_layers(tiny_llama())) == ["model.layers.0", "model.layers.1"]


def test_output_error_is_the_mean_over_tokens():
    x, delta = correlated_inputs(), torch.randn(5, 24)
    direct = (x @ delta.T).square().sum(1).mean()
    assert output_error(delta, x.T @ x / len(x)) == pytest.approx(float(direct), rel=1e-5)


def infinite():
    InputStatistics(4).add(torch.full((1, 4), float("inf")))


BAD = [
    (lambda: list(layer_by_layer(tiny_llama(), [])), "calibration batches"),
    (lambda: list(layer_by_layer(tiny_llama(), [torch.rand(2, 5)])), "calibration batches"),
    (lambda: list(layer_by_layer(tiny_llama(), [torch.tensor([1, 2])])), "calibration batches"),
    (lambda: list(layer_by_layer(tiny_llama(), [torch.empty(2, 0, dtype=torch.long)])), "calibration batches"),
    (lambda: list(layer_by_layer(copy.deepcopy(tiny_llama()).train(), token_batches())), "training mode"),
    (lambda: decoder_layers(torch.nn.Linear(2, 2)), "no list of decoder layers"),
    (infinite, "not finite"),
]


@pytest.mark.parametrize(("call", "what"), BAD)
def test_bad_input(call, what):
    with pytest.raises(WorkbookError) as caught:
        call()
    assert what in caught.value.what
