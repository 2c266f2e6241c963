"""The two runs of chapter 04 on a model of two layers: what is computed, not what is learnt (tests/slow has that)."""

import copy

import pytest
import torch

from helpers.techniques.precision import BF16Adam, LossScaler
from helpers.techniques.precision.finetuning import finetune, moved, rounded_to_2_bits
from tests.techniques.quantization.tiny import token_batches


@pytest.fixture
def model():
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=61, max_position_embeddings=64, **sizes))


def test_four_levels_for_each_64_weights_and_none_is_zero(model):
    made = rounded_to_2_bits(model)
    weight, before = (one.lm_head.weight for one in (made, model))
    for group, whole in zip(weight.reshape(-1, 64), before.reshape(-1, 64), strict=True):
        levels = torch.tensor([-0.75, -0.25, 0.25, 0.75]) * whole.abs().max()
        assert all((levels - value).abs().min() < 1e-6 for value in group)
        assert (group - whole).abs().max() <= whole.abs().max() / 4 + 1e-6
    assert torch.equal(made.model.norm.weight, model.model.norm.weight)
    assert moved(made, model) > 0.8  # all but the embedding and the norms
    assert moved(model, copy.deepcopy(model)) == 0


def test_plain_steps_are_torchs(model):
    other, batches = copy.deepcopy(model), token_batches(3)
    finetune(model, batches, torch.optim.SGD(model.parameters(), lr=0.1))
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    for ids in batches:
        optimizer.zero_grad()
        other(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
    for weight, expected in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(weight, expected)


def test_a_share_of_the_loss_and_as_much_more_rate_are_the_same_step(model):
    """1,024 is a power of two: no digit changes."""
    other, batches = copy.deepcopy(model), token_batches(2)
    finetune(model, batches, torch.optim.SGD(model.parameters(), lr=0.1))
    scaled = torch.optim.SGD(other.parameters(), lr=0.1 * 1024)
    finetune(other, batches, scaled, LossScaler(2.0**6), micro_batches=1024)
    for weight, expected in zip(other.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(weight, expected)


def test_in_fp16_without_a_scale_gradients_vanish(model):
    shares = {}
    for name, scaler in (("plain", None), ("scaled", LossScaler())):
        one = copy.deepcopy(model)
        how = {"autocast": torch.float16, "micro_batches": 2**12}
        shares[name] = finetune(one, token_batches(1), torch.optim.SGD(one.parameters(), lr=0.1), scaler, **how)
    assert shares["plain"] > shares["scaled"] + 0.2


def test_weights_in_bf16_are_trained_as_they_are(model):
    start = copy.deepcopy(model)
    model.bfloat16()
    finetune(model, token_batches(1), BF16Adam(model.parameters(), lr=1e-2, keep="master"))
    assert moved(model, start) > 0.5
