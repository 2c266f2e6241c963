"""FSDP2 as a reader writes it, run on real ranks and as one rank without the others. Imported on the ranks."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from helpers.memory.breakdown import rounded
from helpers.memory.measure import held, rank_step
from helpers.memory.meter.meter import local

SHAPE = {"hidden_size": 96, "intermediate_size": 200, "num_hidden_layers": 3, "vocab_size": 301}
HEADS = {"num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 32}
CONFIG = {"model_type": "llama", **SHAPE, "num_hidden_layers": 5, "num_attention_heads": 4, "num_key_value_heads": 2}
CONFIG |= {"head_dim": 32, "vocab_size": 304, "tie_word_embeddings": False}
POLICIES = {"plain": MixedPrecisionPolicy(), "mixed": MixedPrecisionPolicy(torch.bfloat16, torch.float32)}


def sharded(ranks: int, policy: str, reshard: bool, device: str):
    """A Llama of three layers, each sharded and then the rest, built on `device`; with its optimizer."""
    from transformers import LlamaConfig, LlamaForCausalLM

    mesh = init_device_mesh("cpu", (ranks,))
    with torch.device(device):
        model = LlamaForCausalLM(LlamaConfig(**SHAPE, **HEADS))
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=POLICIES[policy], reshard_after_forward=reshard)
    fully_shard(model, mesh=mesh, mp_policy=POLICIES[policy], reshard_after_forward=reshard)
    if device == "meta":
        model.to_empty(device="cpu")
    return model, torch.optim.AdamW(model.parameters(), foreach=True)


def parts_of(model, optimizer) -> dict[str, list[torch.Tensor]]:
    """What this rank holds of it."""
    states = [state for states in optimizer.state.values() for state in states.values()]
    return {
        "parameters": [local(tensor) for tensor in (*model.parameters(), *model.buffers())],
        "gradients": [local(p.grad) for p in model.parameters() if p.grad is not None],
        "optimizer": [local(state) for state in states],
    }


def halves(model, optimizer):
    """The step in two: forward and backward, update and clearing."""

    def backward() -> None:
        ids = torch.zeros(2, 24, dtype=torch.long)
        model(input_ids=ids, labels=ids, use_cache=False).loss.backward()

    def update() -> None:
        optimizer.step()
        optimizer.zero_grad()

    return backward, update


def second_step(policy: str, reshard: bool):
    """What a real rank measures: bytes before the step and after its backward, and the peak."""
    model, optimizer = sharded(dist.get_world_size(), policy, reshard, "cpu")
    backward, update = halves(model, optimizer)
    backward()
    update()
    found = rank_step(backward, update, lambda: parts_of(model, optimizer))
    return dict(found.before), dict(found.after_backward), found.peak_bytes


def second_step_traced(policy: str, reshard: bool):
    """The same inside `fake(ranks=...)`, where another function has opened it."""
    from helpers.memory import trace

    model, optimizer = sharded(dist.get_world_size(), policy, reshard, "meta")
    backward, update = halves(model, optimizer)
    seen = []

    def step() -> None:
        before = held(parts_of(model, optimizer))
        backward()
        seen[:] = before, held(parts_of(model, optimizer))
        update()

    found = trace.record(step, model, optimizer)
    return dict(seen[0]), dict(seen[1]), found.peak_bytes


def peak_of_split(setup):
    """What a real rank measures of the second step of a split run, and what a trace has besides.

    AdamW's counters are made outside of any operator, so the meter leaves them out; and but for a pipeline the batch is
    there before the meter is.
    """
    import gc

    from helpers.memory.meter.meter import FreshMeter
    from helpers.memory.meter.timeline import live_at_peak
    from helpers.memory.trace.split import run_on_rank

    run = run_on_rank(setup)
    meter = FreshMeter()
    meter.adopt((local(tensor) for tensor in (*run.model.parameters(), *run.model.buffers())), "parameters")
    with meter:
        run.step()
        gc.collect()
        first = len(meter.events)
        run.step()
    meter.stop()
    batch = 0 if setup.split.pipeline > 1 else rounded(8 * setup.tokens)
    counters = sum("step" in state for optimizer in run.optimizers for state in optimizer.state.values())
    return sum(block.size_bytes for block in live_at_peak(meter.events, first)) + 512 * counters + batch
