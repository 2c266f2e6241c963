"""Measured costs, and what they predict: to the byte and to the FLOP for chains that are run for real."""

from functools import partial

import pytest
import torch
from torch import nn

from helpers.catalog import TrainSetup, WorkbookError
from helpers.memory import trace
from helpers.memory.measure.steps import build_model
from helpers.memory.trace.fake import without_memory
from helpers.techniques.checkpointing import checkpointed, flops_of, layer_costs, layout, least_bytes, price, solve
from tests.techniques.checkpointing.models import chain, decoder, flops_with, forward_of, gradients, peak_bytes

PRICED = (
    "none",
    "full",
    "every:2",
    "every:4",
    "sqrt-n",
    "first:2",
    "nested:2",
    "nested:3",
    "recursive",
    "selective",
    "selective:matmuls",
)
X = torch.randn(16, 32)


class Ends(torch.autograd.Function):
    """A loss that keeps nothing of its input, so that only the chain is measured."""

    @staticmethod
    def forward(ctx, x):
        ctx.shape = x.shape
        return x.new_zeros(())

    @staticmethod
    def backward(ctx, grad):
        return torch.ones(ctx.shape)


def step_of(model):
    source = torch.zeros((), requires_grad=True)
    return lambda: Ends.apply(model(X + source))


@pytest.mark.parametrize("policy", PRICED)
def test_the_price_of_a_policy_is_what_a_run_costs(policy):
    model = chain(7, dropout=0.1)
    found = price(layer_costs(model, lambda: model(X)), layout(policy, 7))
    with checkpointed(model, policy):
        measured = peak_bytes(model, step_of(model))
    assert measured - found.peak_bytes == 2 * 512  # the loss and its gradient
    plain_flops, flops = flops_with(model, lambda: step_of(model)().backward(), policy)
    assert flops - plain_flops == found.recompute_flops


@pytest.mark.parametrize("name", ["llama", "gpt2", "qwen3"])
def test_solved_plans_hold_in_a_decoder(name):
    """To the FLOP, and to the byte but for what lies outside the layers: rotary tables, the last norm, logits."""
    model = decoder(name)
    layers = layer_costs(model, forward_of(model))
    forward = forward_of(model)
    plain = gradients(model, forward)
    base = price(layers, layout("none", len(layers)))
    base_peak, base_flops = peak_bytes(model, forward), flops_of(lambda: forward().backward())
    outside_bytes = base_peak - base.peak_bytes
    assert outside_bytes < 32 * 1024
    for part in (0, 1, 3):
        budget = least_bytes(layers) + (base.peak_bytes - least_bytes(layers)) * part // 4
        plan = solve(layers, budget)
        with checkpointed(model, plan.segments):
            found = gradients(model, forward)
            peak, flops = peak_bytes(model, forward), flops_of(lambda: forward().backward())
        assert all(torch.equal(a, b) for a, b in zip(plain, found, strict=True))
        assert flops - base_flops == plan.price.recompute_flops
        assert 0 <= peak - plan.price.peak_bytes <= outside_bytes + 512
    model.zero_grad(set_to_none=True)


def test_layers_that_look_alike_are_measured_once_and_others_not():
    model = nn.Sequential(*chain(2), nn.Linear(32, 64), nn.Linear(64, 32))
    layers = layer_costs(model, lambda: model(X))
    assert layers[0] is layers[1]
    assert layers[2].forward_flops == layers[3].forward_flops == 2 * 16 * 32 * 64
    assert (layers[2].input_bytes, layers[3].input_bytes) == (2048, 4096)
    assert layers[2].saved_bytes == layers[2].input_bytes
    assert layers[2].keeps_input
    assert layers[2].choices["full"].recompute_flops == 0  # backward of a linear layer needs its input alone


def test_measuring_leaves_gradients_and_forwards_as_they_were():
    model = chain(2)
    step_of(model)().backward()
    before = [p.grad for p in model.parameters()]
    layer_costs(model, lambda: model(X))
    assert all(p.grad is old for p, old in zip(model.parameters(), before, strict=True))
    assert not any("forward" in vars(layer) or layer._forward_pre_hooks for layer in model)


def test_a_7b_model_is_measured_without_memory():
    setup = TrainSetup("llama-2-7b", precision="bf16", sequence=2048)
    model = build_model(setup, "meta")
    with trace.fake("cpu") as session:
        without_memory(model, session.mode)
        ids = torch.zeros(1, 2048, dtype=torch.long)
        layers = layer_costs(model, lambda: model(input_ids=ids, use_cache=False), choices=())
    tokens, hidden, ffn = 2048, 4096, 11008
    assert len(layers) == 32
    assert layers[0].input_bytes == 2 * tokens * hidden
    forward = 2 * tokens * (4 * hidden**2 + 3 * hidden * ffn) + 4 * tokens**2 * hidden
    assert layers[0].forward_flops == forward
    assert layers[0].choices["full"].recompute_flops == forward - 2 * tokens * hidden * ffn  # down_proj stays undone


def test_the_bill_of_a_decoder_is_not_one_extra_forward():
    """Full checkpointing: embeddings, lm_head and each layer's last product are not computed again."""
    model = decoder("llama")
    plain_flops, flops = flops_with(model, lambda: forward_of(model)().backward(), "full")
    model.zero_grad(set_to_none=True)
    assert 1.15 < flops / plain_flops < 4 / 3


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_attention_has_flops_on_a_cpu_whatever_heads_share_keys(kv_heads):
    q, k = (torch.randn(1, heads, 32, 8, requires_grad=True) for heads in (4, kv_heads))
    attend = partial(nn.functional.scaled_dot_product_attention, is_causal=True, enable_gqa=True)
    counted = flops_of(lambda: attend(q, k, k).sum().backward())
    forward = 4 * 4 * 32 * 32 * 8
    assert counted == forward + 5 * forward // 2


def test_a_layer_without_a_hidden_state_is_told():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(2, 2)])

        def forward(self, x):
            return self.layers[0](input=x)

    model = Model()
    with pytest.raises(WorkbookError, match="called without a hidden state"):
        layer_costs(model, lambda: model(torch.ones(1, 2)))
    assert not model.layers[0]._forward_pre_hooks
