"""Three small decoders with random weights, GPT-2's with dropout on, and steps to measure them by."""

from functools import cache

import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from helpers.catalog.policies import PER_LAYER
from helpers.memory import measure, trace
from helpers.memory.meter.meter import Meter
from helpers.memory.meter.watch import adopt
from helpers.techniques.checkpointing import checkpointed, flops_of

VOCABULARY = 61
LAYERS = 5
NAMES = ("llama", "gpt2", "qwen3")
POLICIES = (*PER_LAYER, "every:2", "sqrt-n", "first:3", "nested:2", "recursive")
IDS_BYTES = 1024  # the batch of `measured_and_traced`: the trace sees it being made, the meter starts later


@cache
def decoder(name):
    """Five layers of width 32, in training mode. Its weights are not to be changed."""
    torch.manual_seed(0)
    same = {
        "hidden_size": 32,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 96,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 64,
    }
    if name == "llama":
        model = LlamaForCausalLM(LlamaConfig(**same))
    elif name == "qwen3":
        model = Qwen3ForCausalLM(Qwen3Config(**same, head_dim=8))
    else:
        model = GPT2LMHeadModel(
            GPT2Config(
                n_embd=32,
                n_layer=LAYERS,
                n_head=4,
                vocab_size=VOCABULARY,
                n_positions=64,
                bos_token_id=0,
                eos_token_id=0,
            )
        )
    model.loss_type = "ForCausalLM"
    return model.train()


def forward_of(model, rows=3, tokens=32):
    ids = torch.randint(VOCABULARY, (rows, tokens), generator=torch.Generator().manual_seed(1))
    return lambda: model(input_ids=ids, labels=ids, use_cache=False).loss


def gradients(model, forward, seed=7):
    """Loss and gradients of one step, by parameter, and what the random state says afterwards."""
    torch.manual_seed(seed)
    model.zero_grad(set_to_none=True)
    loss = forward()
    loss.backward()
    found = [p.grad for p in model.parameters()]
    model.zero_grad(set_to_none=True)
    return [loss.detach(), *found, torch.rand(3)]


def saved_bytes(model, forward):
    """Bytes alive at the end of forward, less those at its start: what any engine kept, however it keeps it."""
    with Meter() as meter:
        adopt(meter, model, None)
        before = meter.live_bytes
        loss = forward()
        saved = meter.live_bytes - before
    meter.stop()
    del loss
    return saved


def peak_bytes(model, forward):
    """The most alive at once in forward and backward, without parameters and without gradients of parameters."""
    model.zero_grad(set_to_none=True)
    with Meter() as meter:
        adopt(meter, model, None)
        before = meter.live_bytes
        forward().backward()
        meter.relabel((p.grad for p in model.parameters() if p.grad is not None), "gradients")
    meter.stop()
    model.zero_grad(set_to_none=True)
    live, most = 0, 0
    for event in meter.events:
        live += event.sign * event.block.size_bytes * (event.block.category != "gradients")
        most = max(most, live)
    return most - before


def flops_with(model, step, policy):
    """FLOPs of `step()`, a forward and backward of `model`, without checkpointing, and under `policy`."""
    plain = flops_of(step)
    with checkpointed(model, policy):
        return plain, flops_of(step)


def measured_and_traced(name, policy):
    """One step of a new decoder, run for real, and run on fake tensors: two Measurements of the same."""
    config = decoder(name).config

    def step_under(instrument):
        model = type(decoder(name))(config).train()
        model.loss_type = "ForCausalLM"
        ids = torch.zeros(3, 32, dtype=torch.long)
        with checkpointed(model, policy):
            return instrument(lambda: model(input_ids=ids, labels=ids, use_cache=False).loss.backward(), model)

    real = step_under(measure.step)
    with trace.fake("cpu"):
        return real, step_under(trace.record).measured


class Block(nn.Module):
    """A residual MLP with dropout, for chains without embeddings and logits."""

    def __init__(self, width=32, hidden=96, dropout=0.1):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        return x + self.dropout(self.down(nn.functional.gelu(self.up(self.norm(x)))))


def chain(layers=6, **how):
    torch.manual_seed(0)
    return nn.Sequential(*(Block(**how) for _ in range(layers)))
