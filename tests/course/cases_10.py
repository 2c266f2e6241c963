"""What ranks run for tests/course/test_prose_causes_10.py: an MLP cut by hand, by DTensor and sharded by FSDP2."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import pipelining
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel, parallelize_module
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaMLP

from helpers.memory.measure import Collectives
from helpers.memory.meter import FreshMeter

SMALL = LlamaConfig(hidden_size=64, intermediate_size=128)
LINES = {"gate_proj": ColwiseParallel(), "up_proj": ColwiseParallel(), "down_proj": RowwiseParallel()}
ONE_SUM = PrepareModuleInput(input_layouts=(Replicate(),), desired_input_layouts=(Replicate(),))


def whole_mlp() -> LlamaMLP:
    torch.manual_seed(0)
    return LlamaMLP(SMALL)


def second_of(cut: str, enters: bool) -> tuple[float, float, int]:
    """How far result and gradient of x are from the whole MLP's, and collectives of a forward pass.

    `cut` is how the middle reaches `down`: "inputs" sums what each rank's part of it gives, "outputs" gathers it.
    """
    mlp, x, ranks, rank = whole_mlp(), torch.randn(8, 64).requires_grad_(), dist.get_world_size(), dist.get_rank()
    (expected,) = torch.autograd.grad(mlp(x).square().sum(), x)
    entered = _Entered.apply(x) if enters else x
    gate, up = (one.weight.chunk(ranks)[rank] for one in (mlp.gate_proj, mlp.up_proj))
    middle = nn.functional.silu(entered @ gate.T) * (entered @ up.T)
    with Collectives() as sent:
        if cut == "inputs":
            y = _Summed.apply(middle @ mlp.down_proj.weight.chunk(ranks, dim=1)[rank].T)
        else:
            middle = torch.cat(_gathered(middle), -1)
            y = torch.cat(_gathered(middle @ mlp.down_proj.weight.chunk(ranks)[rank].T), -1)
    off = (y - mlp(x)).abs().max().item()
    if cut != "inputs":
        return off, 0.0, len(sent.calls)
    (found,) = torch.autograd.grad(y.square().sum(), x)
    return off, (found - expected).abs().max().item(), len(sent.calls)


def _gathered(x: torch.Tensor) -> list[torch.Tensor]:
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x.detach().contiguous())
    return parts


class _Entered(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        whole = gradient.clone()
        dist.all_reduce(whole)
        return whole


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, part):
        whole = part.clone()
        dist.all_reduce(whole)
        return whole

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def planned(one_sum: bool) -> tuple[int, int]:
    """Sums forward and backward by DTensor's plan, with the line that shares an input or without it."""
    plan = LINES | ({"": ONE_SUM} if one_sum else {})
    mlp = parallelize_module(whole_mlp(), init_device_mesh("cpu", (dist.get_world_size(),)), plan)
    x = torch.randn(8, 64).requires_grad_()
    with Collectives() as forward:
        loss = mlp(x).sum()
    with Collectives() as backward:
        loss.backward()
    return len(forward.calls), len(backward.calls)


def on_two_dimensions() -> tuple[int, int]:
    """Of the MLP's weights, what one of 2 x 2 ranks holds, and all: TP's plan, then FSDP2 on the other dimension."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    mlp = whole_mlp()
    whole = sum(weight.numel() for weight in mlp.parameters())
    parallelize_module(mlp, mesh["tp"], LINES)
    fully_shard(mlp, mesh=mesh["dp"])
    mlp(torch.randn(8, 64)).sum().backward()
    return sum(weight.to_local().numel() for weight in mlp.parameters()), whole


def by_lines(lines: str) -> tuple[float, float, int, int, int]:
    """A small Llama's loss alone, and after `lines` on its `model`; what this rank holds; all in matrices, in norms."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 256}
    model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2))
    ids = torch.randint(0, 256, (2, 16), generator=torch.Generator().manual_seed(1))
    alone = model(input_ids=ids, labels=ids).loss.item()
    by_rank = [sum(one.numel() for one in model.parameters() if (one.dim() == 1) == norm) for norm in (False, True)]
    exec(lines, {**globals(), "MixedPrecisionPolicy": MixedPrecisionPolicy, "model": model})
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    return alone, loss.item(), sum(one.to_local().numel() for one in model.parameters()), *by_rank


def sharded_sends(tokens: int, micro_batches: int) -> int:
    """Bytes that FSDP2 sends in a step of so many micro-batches of so many tokens."""
    mlp = fully_shard(whole_mlp(), mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    with Collectives() as sent:
        for _ in range(micro_batches):
            mlp(torch.randn(tokens, 64)).sum().backward()
    return sent.traffic.sent_bytes


def staged(name: str, micro_batches: int, rows: int = 64) -> tuple[int, int]:
    """The peak beside weights and gradients, and bytes sent, on this stage; `rows` in a micro-batch."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    layers = [nn.Sequential(nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 128)) for _ in range(2)]
    stage = pipelining.PipelineStage(nn.Sequential(*layers), rank, ranks, torch.device("cpu"))
    schedule = getattr(pipelining, f"Schedule{name}")(stage, micro_batches, loss_fn=nn.functional.mse_loss)
    given = {"target": torch.zeros(rows * micro_batches, 128)} if rank == ranks - 1 else {}
    inputs = () if rank else (torch.ones(rows * micro_batches, 128),)
    for _ in range(2):  # gradients exist from the second step on
        with FreshMeter() as meter, Collectives() as sent:
            schedule.step(*inputs, **given)
        meter.stop()
    return meter.peak_bytes, sent.traffic.sent_bytes
