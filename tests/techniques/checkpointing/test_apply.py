"""Policies in real models: the same gradients, fewer bytes, and the model as it was afterwards."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from helpers.catalog import WorkbookError
from helpers.techniques.checkpointing import PolicySegment, apply, checkpointed, decoder_layers, layout
from helpers.techniques.checkpointing.function import checkpoint_by_function, checkpoint_by_hooks
from tests.techniques.checkpointing.models import (
    IDS_BYTES,
    LAYERS,
    NAMES,
    POLICIES,
    chain,
    decoder,
    forward_of,
    gradients,
    measured_and_traced,
    saved_bytes,
)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("policy", POLICIES)
def test_gradients_and_random_numbers_are_those_without_checkpointing(name, policy):
    """To the bit: GPT-2 drops activations at random, and the recomputation drops the same ones."""
    model = decoder(name)
    forward = forward_of(model)
    plain = gradients(model, forward)
    with checkpointed(model, policy):
        found = gradients(model, forward)
    assert all(torch.equal(a, b) for a, b in zip(plain, found, strict=True))


def test_without_the_random_state_dropout_drops_other_values():
    """The check above can fail: an engine that does not restore the state has other gradients."""
    model = decoder("gpt2")
    forward = forward_of(model)

    def forgetful(run, hidden):
        return torch.utils.checkpoint.checkpoint(run, hidden, use_reentrant=False, preserve_rng_state=False)

    plain = gradients(model, forward)
    with checkpointed(model, "full", engine=forgetful):
        found = gradients(model, forward)
    assert torch.equal(plain[0], found[0])
    assert not all(torch.allclose(a, b) for a, b in zip(plain, found, strict=True))


@pytest.mark.parametrize("policy", ["full", "every:2", "nested:2"])
@pytest.mark.parametrize("ours", [checkpoint_by_function, checkpoint_by_hooks])
@pytest.mark.parametrize("name", NAMES)
def test_checkpoints_written_by_hand_do_the_same_in_a_decoder(name, ours, policy):
    model = decoder(name)
    forward = forward_of(model)
    plain = gradients(model, forward)
    with checkpointed(model, policy, engine=ours):
        found = gradients(model, forward)
        kept = saved_bytes(model, forward)
    with checkpointed(model, policy):
        real = saved_bytes(model, forward)
    assert all(torch.equal(a, b) for a, b in zip(plain, found, strict=True))
    if ours is checkpoint_by_function or policy != "nested:2":  # hooks hold the inputs of inner frames
        assert kept == real


@pytest.mark.parametrize("name", NAMES)
def test_what_stays_after_forward_falls_in_the_order_of_the_policies(name):
    model = decoder(name)
    forward = forward_of(model)
    kept = {}
    for policy in POLICIES:
        with checkpointed(model, policy):
            kept[policy] = saved_bytes(model, forward)
    boundary = 3 * 32 * 32 * 4
    assert kept["full"] - kept["every:2"] == 2 * boundary == kept["full"] - kept["nested:2"]
    assert kept["every:2"] == kept["sqrt-n"] + boundary == kept["recursive"] + boundary
    assert kept["full"] < kept["selective:matmuls"] <= kept["selective"] < kept["none"]
    if name == "gpt2":  # with dropout a CPU has no attention kernel, only its formula: products and a softmax
        assert (kept["selective:attention"], kept["selective:matmuls"]) == (kept["full"], kept["selective"])
    else:
        assert kept["full"] < kept["selective:attention"] < kept["selective:matmuls"] < kept["selective"]
    assert kept["full"] < kept["first:3"] < kept["none"]
    assert kept["full"] < kept["module:mlp"] < kept["none"]
    assert kept["full"] < kept["module:attention"] < kept["none"]
    assert kept["offload:inputs"] < kept["full"]


def test_a_trace_without_memory_says_the_same_to_the_byte():
    """All policies and all three models are traced in tests/slow."""
    for policy in ("selective", "offload"):
        real, found = measured_and_traced("llama", policy)
        assert real.saved_bytes == found.saved_bytes
        assert found.peak_bytes - real.peak_bytes in (0, IDS_BYTES)


def test_hooks_on_saved_tensors_miss_what_selective_checkpointing_keeps():
    model = decoder("llama")
    forward = forward_of(model)
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    seen = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    with checkpointed(model, "selective"):
        with saved_tensors_hooks(pack, lambda x: x):
            loss = forward()  # alive: a freed storage's address could be another's
        del loss
        assert saved_bytes(model, forward) > 1.5 * sum(seen.values())


def test_names_and_forwards_are_as_before():
    model = decoder("llama")
    names, forwards = list(model.state_dict()), [vars(m).get("forward") for m in model.modules()]
    with checkpointed(model, "nested:2"):
        assert list(model.state_dict()) == names
        with checkpointed(model, "module:mlp"):
            pass
        assert sum("forward" in vars(layer) for layer in decoder_layers(model)) == LAYERS
    assert [vars(m).get("forward") for m in model.modules()] == forwards


def test_nothing_is_left_when_a_policy_fails_half_way():
    model = chain(3)
    with pytest.raises(WorkbookError, match="Block has no attention: it has norm, up, down, dropout"):
        apply(model, [PolicySegment(0, 1), PolicySegment(1, 2, "module:attention"), PolicySegment(2, 3)])
    assert not any("forward" in vars(module) for module in model)


def test_layers_of_one_segment_keep_their_own_arguments():
    class Scaled(nn.Module):
        def forward(self, x, factor, shift=0.0):
            return x * factor + shift

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(Scaled() for _ in range(4))

        def forward(self, x):
            for at, layer in enumerate(self.layers):
                x = layer(x, float(at + 1), shift=torch.tensor(10.0 * at))
            return x

    model, x = Model(), torch.ones(2, requires_grad=True)
    expected = model(x)
    for policy in ("every:3", "recursive"):
        with checkpointed(model, policy):
            found = model(x)
        assert torch.equal(found, expected)
        assert torch.autograd.grad(found.sum(), x)[0].tolist() == [24.0, 24.0]


def test_a_model_can_be_used_for_inference_meanwhile():
    model = chain()
    x = torch.randn(4, 32)
    with torch.no_grad():
        expected = model.eval()(x)
        for policy in ("every:2", "selective", "offload", "recursive"):
            with checkpointed(model, policy):
                assert torch.equal(model(x), expected)


@pytest.mark.parametrize(
    ("model", "policy", "phrase"),
    [
        (nn.Linear(2, 2), "full", "Linear has no list of layers"),
        (nn.Sequential(nn.ReLU()), "module:mlp", "ReLU has no mlp: it has no children"),
        (chain(2), [PolicySegment(0, 1)], "segments 0 full"),
        (chain(2), [PolicySegment(0, 2), PolicySegment(1, 2)], "segments 0-1 full, 1 full"),
        (chain(2), "fulll", "unknown checkpointing policy 'fulll'"),
        (chain(2), [PolicySegment(0, 2, "selective")], "a segment of 2 layers under 'selective'"),
        (chain(1), [PolicySegment(0, 1, "offlaod")], "unknown checkpointing policy 'offlaod'"),
    ],
)
def test_what_cannot_be_applied_is_told(model, policy, phrase):
    with pytest.raises(WorkbookError, match=phrase):
        apply(model, policy)


def test_a_cache_and_a_tuple_are_refused():
    cache = SimpleNamespace(get_seq_length=lambda: 3)
    model = chain(1)
    with checkpointed(model, "full"), pytest.raises(WorkbookError, match="appended twice"):
        model[0](torch.ones(1, 32), past_key_values=cache)

    class Two(nn.Module):
        def forward(self, x):
            return x, x

    pair = nn.Sequential(Two(), Two())
    with checkpointed(pair, layout("every:2", 2)), pytest.raises(WorkbookError, match="returns a tuple"):
        pair(torch.ones(2, requires_grad=True))
