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
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm

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


def norm_before(enters: bool) -> tuple[float, float]:
    """How far the gradients of a norm's weight and of gate are from the whole layer's, of their largest."""
    mlp, norm, x = whole_mlp(), LlamaRMSNorm(64), torch.randn(8, 64)
    ranks, rank = dist.get_world_size(), dist.get_rank()
    read = [norm.weight, mlp.gate_proj.weight]
    expected = torch.autograd.grad((x + mlp(norm(x))).square().sum(), read)
    entered = _Entered.apply(norm(x)) if enters else norm(x)
    gate, up = (one.weight.chunk(ranks)[rank] for one in (mlp.gate_proj, mlp.up_proj))
    middle = nn.functional.silu(entered @ gate.T) * (entered @ up.T)
    y = x + _Summed.apply(middle @ mlp.down_proj.weight.chunk(ranks, dim=1)[rank].T)
    found = torch.autograd.grad(y.square().sum(), read)
    mine = (found[0], expected[0]), tuple(one[1].chunk(ranks)[rank] for one in (found, expected))
    return tuple(((one - other).abs().max() / other.abs().max()).item() for one, other in mine)


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


def small_llama() -> tuple[LlamaForCausalLM, torch.Tensor]:
    """A Llama of two layers, alike on every rank, and two sequences for it."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 256}
    model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2))
    return model, torch.randint(0, 256, (2, 16), generator=torch.Generator().manual_seed(1))


def by_lines(lines: str) -> dict[str, float | str]:
    """A small Llama alone and after `lines` on its `model`: losses, norms, values held, sums forward and backward."""
    model, ids = small_llama()
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    norm = nn.utils.get_total_norm([one.grad for one in model.parameters()])
    model.zero_grad()
    told = {"alone": loss.item(), "norm alone": norm.item()}
    told |= {
        name: sum(one.numel() for one in model.parameters() if (one.dim() == 1) == (name == "norms"))
        for name in ("matrices", "norms")
    }
    exec(lines, {**globals(), "MixedPrecisionPolicy": MixedPrecisionPolicy, "model": model})
    with Collectives() as forward:
        loss = model(input_ids=ids, labels=ids).loss
    with Collectives() as backward:
        loss.backward()
    told |= {"loss": loss.item(), "held": sum(one.to_local().numel() for one in model.parameters())}
    told["sums"] = [len(one.traffic.of("all_reduce").calls) for one in (forward, backward)]
    told["clipping"] = _clipped(model)
    torch.optim.AdamW(model.parameters()).step()
    return told | {"norm": _norm_by_mesh(model)}


def _clipped(model: nn.Module) -> str:
    try:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    except RuntimeError as error:
        return str(error)
    return ""


def _norm_by_mesh(model: nn.Module) -> float:
    meshes: dict[object, list[torch.Tensor]] = {}
    for one in model.parameters():
        meshes.setdefault(one.device_mesh, []).append(one.grad)
    norms = [nn.utils.get_total_norm(gradients).full_tensor() for gradients in meshes.values()]
    return torch.linalg.vector_norm(torch.stack(norms)).item()


def loaded(folder: str, call: str) -> dict[str, float]:
    """A small Llama alone, and as `call` loads it from `folder`: losses, values held and whole, DTensors, sums."""
    from torch.distributed.tensor import DTensor
    from transformers.distributed import DistributedConfig

    model, ids = small_llama()
    told = {"alone": model(input_ids=ids, labels=ids).loss.item()}
    if not dist.get_rank():
        model.save_pretrained(folder)
    dist.barrier()
    model = eval(f"LlamaForCausalLM.{call}", {**globals(), "DistributedConfig": DistributedConfig, "folder": folder})
    model.train()
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    weights = list(model.parameters())
    told |= {"loss": loss.item(), "whole": sum(one.numel() for one in weights)}
    told["held"] = sum(one.to_local().numel() for one in weights if isinstance(one, DTensor))
    return told | {"not cut": sum(not isinstance(one, DTensor) for one in weights)}


def prepared() -> int:
    """Parameters that accelerate's step for TP cuts where a model was loaded whole, with tp_size=2 alone."""
    from accelerate import Accelerator, ParallelismConfig
    from torch.distributed.tensor import DTensor

    ParallelismConfig._validate_accelerator = lambda self, accelerator: None  # it refuses CPUs, and says no more
    accelerator = Accelerator(cpu=True, parallelism_config=ParallelismConfig(tp_size=2))
    (model,) = accelerator._prepare_tp(small_llama()[0])
    return sum(isinstance(one, DTensor) for one in model.parameters())


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
