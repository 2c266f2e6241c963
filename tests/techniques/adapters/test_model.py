"""Adapters in the small model: what is trained, what is frozen, equal to peft's model, merged and back."""

import logging
import math
import sys

import pytest
import torch

from helpers.catalog import WorkbookError
from helpers.small_lm import load
from helpers.techniques.adapters import FrozenNF4Linear, adapt, adapters_of, engines, merge, unmerge
from helpers.techniques.quantization import model_bytes, replace_linears
from helpers.techniques.quantization.engines import bitsandbytes_4bit

ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
QV = ("q_proj", "v_proj")


@pytest.fixture(autouse=True)
def _quiet():
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def model(dtype=torch.float32):
    return load().model.to(dtype).train()


def ids(words=64):
    return torch.randint(0, 416, (1, words), generator=torch.Generator().manual_seed(0))


def logits(model):
    return model(input_ids=ids(), use_cache=False).logits


@pytest.mark.parametrize(
    ("kind", "targets", "values"),
    [
        ("lora", QV, 20_480),  # 4 layers x 8 x (192 + 192 + 192 + 64)
        ("dora", QV, 21_504),  # and 192 + 64 lengths a layer
        ("lora", ALL, 4 * 8 * (2 * 384 + 2 * 256 + 3 * 704)),
        ("dora", ALL, 4 * (8 * (2 * 384 + 2 * 256 + 3 * 704) + 2 * 192 + 2 * 64 + 2 * 512 + 192)),
    ],
)
def test_trained_values(kind, targets, values):
    adapted = adapt(model(), 8, targets, kind)
    assert adapted.trained_values == values
    assert all(parameter.dtype == torch.float32 for parameter in adapted.trainable)
    frozen = [name for name, p in adapted.model.named_parameters() if not p.requires_grad]
    assert len(frozen) == 39  # all that the model had


@pytest.mark.parametrize("kind", ["lora", "dora"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_step_equals_pefts(kind, dtype):
    """The same adapters in both models: loss, gradients, and the weights after a step of SGD."""
    pytest.importorskip("peft")
    theirs = engines.peft(model(dtype), 8, QV, kind, alpha=16)
    adapted = adapt(model(dtype), 8, QV, kind, alpha=16)
    references = {name: p for name, p in theirs.named_parameters() if p.requires_grad}
    assert sum(p.numel() for p in references.values()) == adapted.trained_values
    pairs = []
    for name, ours in adapted.model.named_parameters():
        if ours.requires_grad:
            layer, _, tensor = name.rpartition(".")
            ending = {"lora_a": "lora_A.default.weight", "lora_b": "lora_B.default.weight"}
            their_name = ending.get(tensor, "lora_magnitude_vector.default.weight")
            pairs.append((ours, references[f"base_model.model.{layer}.{their_name}"]))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for ours, reference in pairs:
            ours.copy_(reference.add_(0.01 * torch.randn(reference.shape, generator=generator)))
    for network in (adapted.model, theirs):
        network(input_ids=ids(), labels=ids(), use_cache=False).loss.backward()
    for ours, reference in pairs:
        apart = (ours.grad - reference.grad).norm() / reference.grad.norm()
        assert apart < {torch.float32: 1e-4, torch.bfloat16: 5e-2}[dtype]


@pytest.mark.parametrize("kind", ["lora", "dora"])
@pytest.mark.parametrize("base", [None, "nf4-dq"])
def test_merged_it_says_the_same_and_unmerged_again(kind, base):
    adapted = adapt(model(), 8, QV, kind, base)
    torch.manual_seed(0)
    for parameter in adapted.trainable:
        parameter.data += 0.05 * torch.randn_like(parameter)
    with torch.no_grad():
        beside = logits(adapted.model)
        merge(adapted.model)
        merged = logits(adapted.model)
        unmerge(adapted.model)
        again = logits(adapted.model)
    tolerance = 1e-4 if base is None else 0.3  # merging into NF4 rounds
    for found in (merged, again):
        error = (found - beside).norm() / beside.norm()
        assert error < tolerance
        assert base is None or error > 1e-3


@pytest.mark.parametrize(("base", "bits"), [("nf4", 4.5), ("nf4-dq", 4.127)])
def test_bytes_of_a_base_in_four_bits(base, bits):
    """All linear layers but the head become 4 bits, adapted or not: 1,572,864 of 1,734,336 values."""
    adapted = adapt(model(torch.bfloat16), 8, QV, base=base)
    rest = 2 * (1_734_336 - 1_572_864)
    found = model_bytes(adapted.model) - 4 * adapted.trained_values - rest
    assert found == pytest.approx(1_572_864 * bits / 8, rel=2e-3)


@pytest.mark.parametrize("base", [None, "nf4-dq"])
def test_it_learns(base):
    """The last 16 words again and again: the adapters take them in, and the base has not moved."""
    adapted = adapt(model(), 8, ALL, base=base)
    frozen = [p.detach().clone() for p in adapted.model.parameters() if not p.requires_grad]
    optimizer, losses = torch.optim.AdamW(adapted.trainable, lr=1e-2), []
    for _ in range(15):
        loss = adapted.model(input_ids=ids(16), labels=ids(16), use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2
    after = [p for p in adapted.model.parameters() if not p.requires_grad]
    assert all(torch.equal(before, p) for before, p in zip(frozen, after, strict=True))


def test_under_checkpointing_the_gradients_are_the_same():
    found = []
    for recompute in (False, True):
        torch.manual_seed(0)
        adapted = adapt(model(), 8, QV, base="nf4-dq")
        for parameter in adapted.trainable:
            parameter.data += 0.05 * torch.randn_like(parameter)
        if recompute:
            adapted.model.gradient_checkpointing_enable({"use_reentrant": False})
        adapted.model(input_ids=ids(), labels=ids(), use_cache=False).loss.backward()
        found.append([parameter.grad for parameter in adapted.trainable])
    assert all(torch.equal(kept, again) for kept, again in zip(*found, strict=True))


def test_training_mode_goes_into_the_adapters():
    adapted = adapt(load().model, 4, dropout=0.5)
    assert not any(adapter.training for adapter in adapters_of(adapted.model))
    adapted.model.train()
    assert all(adapter.training for adapter in adapters_of(adapted.model))
    assert math.isclose(next(adapters_of(adapted.model)).scale, 1)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: adapt(model(), 8, ("query",)), "did you mean|query"),
        (lambda: adapt(model(), 8, "q_proj"), "targets is 'q_proj'"),
        (lambda: adapt(model(), 8, ()), "targets is"),
        (lambda: adapt(model(), 8, kind="loha"), "loha"),
        (lambda: adapt(model(), 8, base="int4"), "int4"),
        (lambda: adapt(model(), 65), "rank is 65"),
        (lambda: engines.peft(model(), 0), "rank is 0"),
        (lambda: engines.peft(model(), 8, ("query",)), "query"),
        (lambda: engines.peft(model(), 8, kind="ia3"), "ia3"),
    ],
)
def test_bad_input_is_told(call, says):
    with pytest.raises(WorkbookError, match=says):
        call()


def test_on_layers_of_bitsandbytes_peft_is_what_to_use():
    """Their weight is bytes of codes: to add to it, or to measure its rows, would be silently wrong."""
    pytest.importorskip("bitsandbytes")
    pytest.importorskip("peft")
    packed = bitsandbytes_4bit(model())
    with pytest.raises(WorkbookError, match=r"engines\.peft"):
        adapt(packed, 8)
    assert logits(engines.peft(packed, 8)).isfinite().all()


def test_on_a_model_that_is_in_nf4_already():
    again, whole = adapt(replace_linears(model(), FrozenNF4Linear.of), 8), adapt(model(), 8, base="nf4-dq")
    with torch.no_grad():
        assert torch.equal(logits(again.model), logits(whole.model))


def test_without_peft(monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(WorkbookError, match="peft cannot be imported"):
        engines.peft(model(), 8)


def test_a_refused_adapter_leaves_the_model_as_it_was():
    refused = model()
    before = [(name, type(module)) for name, module in refused.named_modules()]
    with pytest.raises(WorkbookError, match="rank is 65"):
        adapt(refused, 65, base="nf4")
    assert [(name, type(module)) for name, module in refused.named_modules()] == before
    assert all(parameter.requires_grad for parameter in refused.parameters())
