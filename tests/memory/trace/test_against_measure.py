"""The trace against real CPU steps: equal to the byte. (`test_witness` holds the meter itself against the profiler.)"""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from helpers.catalog import TrainSetup
from helpers.memory import measure, rounded, trace

SETUPS = [
    pytest.param(TrainSetup(model, micro_batch=2, sequence=64, **how), marks=lanes)
    for model, how, *lanes in [
        ("tiny-llama", {"precision": "fp32"}),
        ("tiny-llama", {"precision": "bf16", "optimizer": "adamw-fused"}, pytest.mark.all),
        ("tiny-llama", {"precision": "fp32", "attention": "eager"}, pytest.mark.all),
        ("tiny-llama", {"precision": "bf16", "checkpointing": "full"}),
        ("tiny-llama", {"precision": "fp32", "checkpointing": "every:2", "optimizer": "sgd-momentum"}),
        ("tiny-llama", {"precision": "autocast-bf16"}),
        ("tiny-llama", {"precision": "autocast-bf16", "micro_batches": 3}),
        ("tiny-llama", {"precision": "megatron-bf16", "micro_batches": 2}, pytest.mark.all),
        ("tiny-llama", {"precision": "megatron-bf16"}, pytest.mark.all),
        ("tiny-llama", {"precision": "torchao-fp8", "optimizer": "sgd"}),
        ("tiny-llama", {"precision": "torchao-fp8", "checkpointing": "full", "micro_batches": 2}, pytest.mark.all),
        ("tiny-llama", {"precision": "fp32", "optimizer": "adafactor"}),
        ("tiny-gpt2", {"precision": "fp32"}, pytest.mark.all),
        ("tiny-gpt2", {"precision": "bf16", "attention": "eager", "optimizer": "adamw-fused"}),
        ("tiny-qwen3", {"precision": "fp32", "checkpointing": "full"}, pytest.mark.all),
        ("tiny-qwen3", {"precision": "bf16", "attention": "eager"}),
        ("tiny-qwen3", {"precision": "fp32", "optimizer": "adamw-8bit"}, pytest.mark.all),
    ]
]


def told(setup):
    names = ("precision", "optimizer", "checkpointing", "attention", "micro_batches")
    return "-".join([setup.model.name, *(str(getattr(setup, name)) for name in names)])


def batch_bytes(found):
    """The batch is made before the step: the trace sees it at once, the meter only if an operator returns it."""
    return sum(block.size_bytes for block in found.at_peak if block.phase == "load" and block.category == "workspace")


@pytest.mark.parametrize("setup", SETUPS, ids=told)
def test_a_step_is_traced_to_the_byte(setup):
    if setup.precision == "torchao-fp8":
        pytest.importorskip("torchao")
    found, real = trace.train(setup, on="cpu"), measure.training_step(setup)
    batch = rounded(8 * setup.micro_batch * setup.sequence)
    assert found.peak_bytes - real.peak_bytes in (0, batch)
    assert found.peak.name == real.peak.name
    assert found.parts["parameters"] == real.parts["parameters"]
    assert real.saved_bytes - found.measured.saved_bytes in (0, batch)


EXPERTS = {
    "model_type": "mixtral",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "num_local_experts": 4,
}


@pytest.mark.parametrize("precision", ["bf16", "fp32", "autocast-bf16"])
def test_experts_are_traced_as_they_are_measured(precision):
    setup = TrainSetup(EXPERTS, precision=precision, micro_batch=2, sequence=64)
    found, real = trace.train(setup, on="cpu"), measure.training_step(setup)
    assert 0 <= found.peak_bytes - real.peak_bytes <= 2048  # of 20 MB: where each expert's tokens begin
    assert found.parts["gradients"] == real.parts["gradients"]


class Dropping(nn.Module):
    """A block with dropout in training mode, and a policy for what its checkpoint keeps."""

    def __init__(self, policy=None):
        super().__init__()
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)
        self.policy = policy

    def body(self, x):
        return self.down(nn.functional.dropout(nn.functional.gelu(self.up(x)), 0.1, self.training))

    def forward(self, x):
        if self.policy is None:
            return self.body(x)
        return checkpoint(
            self.body, x, use_reentrant=False, context_fn=lambda: create_selective_checkpoint_contexts(self.policy)
        )


def keep_products(ctx, op, *args, **kwargs):
    kept = op in (torch.ops.aten.addmm.default, torch.ops.aten.mm.default)
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


@pytest.mark.parametrize("policy", [None, keep_products], ids=["dropout", "dropout, selective checkpointing"])
def test_dropout_and_selective_checkpointing_are_traced_to_the_byte(policy):
    def prepared():
        model = nn.Sequential(*(Dropping(policy) for _ in range(3)))
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        x = torch.ones(32, 64)

        def step():
            model(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        return step, model, optimizer

    real = measure.step(*prepared())
    with trace.fake("cpu"):
        found = trace.record(*prepared())
    assert found.peak_bytes - batch_bytes(found) == real.peak_bytes


@pytest.mark.parametrize("setup", SETUPS[:3], ids=told)
def test_another_sequence_is_another_trace(setup):
    shorter = replace(setup, sequence=32)
    assert trace.train(shorter, on="cpu").peak_bytes < trace.train(setup, on="cpu").peak_bytes
