"""Planted outliers: the same function, other activations."""

import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

from helpers.catalog import WorkbookError
from helpers.small_lm import plant
from helpers.small_lm.model import untrained


@pytest.fixture(scope="module")
def model():
    """Not trained, but with the zeros of its start replaced, so that every layer matters."""
    made = untrained(0).eval()
    with torch.no_grad():
        for layer in made.model.layers:
            layer.self_attn.o_proj.weight.normal_(std=0.05)
            layer.mlp.down_proj.weight.normal_(std=0.05)
    return made


@pytest.fixture(scope="module")
def ids():
    return torch.arange(2, 130)[None]


def inputs_of(model, name, ids):
    """The largest magnitude in each channel that module `name` reads."""
    seen = []
    handle = model.get_submodule(name).register_forward_pre_hook(lambda _, args: seen.append(args[0].detach()))
    with torch.no_grad():
        model(ids)
    handle.remove()
    return seen[0].abs().amax((0, 1))


def test_the_function_is_kept(model, ids):
    with torch.no_grad():
        torch.testing.assert_close(plant(model)(ids).logits, model(ids).logits, atol=1e-4, rtol=0)


@pytest.mark.parametrize("reader", ["model.layers.0.self_attn.q_proj", "model.layers.3.mlp.up_proj"])
def test_the_channels_stand_out(model, ids, reader):
    before, after = inputs_of(model, reader, ids), inputs_of(plant(model, channels=[3, 100]), reader, ids)
    ratio = after / before
    assert ratio[[3, 100]].tolist() == pytest.approx([100, 100], rel=1e-3)
    others = [channel for channel in range(192) if channel not in (3, 100)]
    torch.testing.assert_close(after[others], before[others], atol=1e-4, rtol=1e-4)


def test_the_given_model_is_left_alone(model):
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    plant(model)
    assert all(torch.equal(before[name], weight) for name, weight in model.state_dict().items())


def planted_channels(model):
    return (model.model.layers[0].input_layernorm.weight.abs() > 50).nonzero().flatten().tolist()


def test_the_seed_chooses(model):
    assert planted_channels(plant(model, channels=4)) == planted_channels(plant(model, channels=4))
    assert planted_channels(plant(model, channels=4)) != planted_channels(plant(model, channels=4, seed=1))
    assert len(planted_channels(plant(model, channels=192))) == 192
    assert planted_channels(plant(model, channels=[7])) == [7]


@pytest.mark.parametrize(
    "bad",
    [{"channels": bad} for bad in (0, 193, [], [192], [-1], [1, 1], True, "2", 2.0)]
    + [{"factor": bad} for bad in (0, -1, float("inf"), float("nan"), "100", True)],
)
def test_bad_arguments(model, bad):
    with pytest.raises(WorkbookError):
        plant(model, **bad)


def test_models_it_cannot_rescale(model):
    """A quantized linear keeps codes: dividing its columns would not be exact, if it had any."""
    packed = untrained(0)
    packed.model.layers[2].mlp.up_proj = nn.Identity()
    for unfit in (GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=8, n_head=1, vocab_size=16)), nn.Linear(2, 2), packed):
        with pytest.raises(WorkbookError):
            plant(unfit)
