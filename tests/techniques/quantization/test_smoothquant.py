"""SmoothQuant moves ranges and no values: the function stays, the largest activations fall."""

import copy
import doctest

import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    OPTConfig,
    OPTForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from helpers.catalog import WorkbookError
from helpers.small_lm import plant
from helpers.techniques.quantization import Grid, Int8Linear, replace_linears
from helpers.techniques.quantization import smoothquant as module
from helpers.techniques.quantization.awq import awq
from helpers.techniques.quantization.calibration import layer_by_layer
from helpers.techniques.quantization.smoothquant import NORM_PAIRS, fold, smooth, smoothing_scale
from tests.techniques.quantization.tiny import damage, logits, tiny_llama, token_batches


def qwen2():
    """Like Llama, with biases on q, k and v, which must not be scaled."""
    torch.manual_seed(0)
    config = Qwen2Config(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=48,
        vocab_size=61,
    )
    model = Qwen2ForCausalLM(config).eval().requires_grad_(False)
    for layer in model.model.layers:
        layer.self_attn.k_proj.bias.normal_()
    return model


def ranges(model):
    """Of each linear layer behind a norm: the largest input and weight of each channel."""
    found = {}
    for step in layer_by_layer(model, token_batches()):
        seen = step.observe()
        for names in NORM_PAIRS.values():
            weights = torch.cat([step.layer.get_submodule(name).weight for name in names])
            found[step.name, names[0]] = seen[names[0]].max_abs, weights.abs().amax(0)
    return found


@pytest.mark.parametrize("alpha", [0.0, 0.5, 0.85, 1.0])
@pytest.mark.parametrize("make", [tiny_llama, lambda: plant(tiny_llama()), qwen2], ids=["llama", "planted", "biases"])
def test_the_function_is_preserved_and_the_model_left_alone(make, alpha):
    model = make()
    before, weight = logits(model), model.model.layers[0].self_attn.q_proj.weight.clone()
    smoothed = smooth(model, token_batches(), alpha)
    torch.testing.assert_close(logits(smoothed), before, rtol=1e-3, atol=1e-4)
    assert torch.equal(model.model.layers[0].self_attn.q_proj.weight, weight)
    assert not torch.equal(smoothed.model.layers[0].self_attn.q_proj.weight, weight)


def test_with_alpha_one_half_inputs_and_weights_get_the_same_range():
    for inputs, weights in ranges(smooth(plant(tiny_llama()), token_batches())).values():
        torch.testing.assert_close(inputs, weights, rtol=1e-3, atol=1e-5)


def test_with_alpha_one_all_inputs_have_the_range_one():
    for inputs, _ in ranges(smooth(plant(tiny_llama()), token_batches(), alpha=1.0)).values():
        torch.testing.assert_close(inputs, torch.ones_like(inputs), rtol=1e-3, atol=1e-5)


def test_it_repairs_what_planted_outliers_break_in_w8a8():
    planted = plant(tiny_llama())
    naive, smoothed = (
        damage(replace_linears(model, Int8Linear.of)) for model in (planted, smooth(planted, token_batches(4)))
    )
    assert smoothed < 0.2 * naive


def test_fold_scales_a_linear_producer_with_its_bias():
    torch.manual_seed(0)
    up, down, scale = torch.nn.Linear(6, 8), torch.nn.Linear(8, 5), torch.rand(8) + 0.5
    x = torch.randn(10, 6)
    before, middle = down(up(x)), up(x)
    fold(up, [down], scale)
    torch.testing.assert_close(up(x), middle / scale)
    torch.testing.assert_close(down(up(x)), before)


def gemma():
    config = Gemma2Config(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        intermediate_size=48,
        vocab_size=61,
    )
    return Gemma2ForCausalLM(config).eval()


def gpt2():
    return GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=61)).eval()


def opt():
    """Linear layers, but with other names."""
    config = OPTConfig(
        hidden_size=32, ffn_dim=48, num_hidden_layers=2, num_attention_heads=4, vocab_size=61, word_embed_proj_dim=32
    )
    return OPTForCausalLM(config).eval()


def test_a_norm_that_adds_one_to_its_weight_is_refused_and_left_as_it_was():
    norm = gemma().model.layers[0].input_layernorm
    torch.nn.init.normal_(norm.weight)
    before = copy.deepcopy(norm.weight)
    with pytest.raises(WorkbookError) as caught:
        fold(norm, [], torch.full((32,), 3.0))
    assert "does not scale with its weight" in caught.value.what
    torch.testing.assert_close(norm.weight, before)


BAD = [
    (lambda: smooth(tiny_llama(), token_batches(), alpha=1.5), "alpha is 1.5"),
    (lambda: smooth(tiny_llama(), token_batches(), alpha=float("nan")), "alpha is nan"),
    (lambda: smooth(gemma(), token_batches()), "does not scale with its weight"),
    (lambda: smooth(gpt2(), token_batches()), "no linear layer"),
    (lambda: smooth(opt(), token_batches()), "OPTDecoderLayer has no input_layernorm"),
    (lambda: awq(opt(), token_batches(), Grid(3, 16)), "OPTDecoderLayer has no self_attn.o_proj"),
    (lambda: smooth(tiny_llama(), []), "calibration batches"),
]


@pytest.mark.parametrize(("call", "what"), BAD)
def test_bad_input(call, what):
    with pytest.raises(WorkbookError) as caught:
        call()
    assert what in caught.value.what


def test_a_channel_without_input_or_weight_stays_finite():
    scale = smoothing_scale(torch.tensor([0.0, 1.0, 0.0]), torch.tensor([1.0, 0.0, 0.0]))
    assert scale.isfinite().all()
    assert (scale > 0).all()


def test_the_worked_number():
    assert doctest.testmod(module, extraglobs={"torch": torch}) == (0, 1)
