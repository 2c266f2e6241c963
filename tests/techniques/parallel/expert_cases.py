"""A Mixtral block on the ranks, and in the one process that it is compared with. Imported on the ranks."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from helpers.techniques import parallel
from tests.techniques.parallel.split_cases import build, calls_of, counted


def moe(experts: int = 8) -> nn.Module:
    from transformers import MixtralConfig
    from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock

    torch.manual_seed(0)
    sizes = {"hidden_size": 12, "intermediate_size": 10, "num_local_experts": experts, "num_experts_per_tok": 2}
    block = MixtralSparseMoeBlock(MixtralConfig(**sizes))
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.normal_()
    return block.double()


def tokens_of(rank: int, tokens: int = 20) -> torch.Tensor:
    return torch.randn(2, tokens // 2, 12, generator=torch.Generator().manual_seed(rank), dtype=torch.float64)


def moe_alone(ranks: int) -> tuple[float, list[torch.Tensor], torch.Tensor]:
    """All ranks' tokens in one process, by Transformers' own code: loss, gradients of weights, and of the inputs."""
    block, x = moe(), torch.stack([tokens_of(rank) for rank in range(ranks)]).requires_grad_()
    loss = block(x.flatten(0, 1)).square().mean()
    loss.backward()
    return loss.item(), [block.gate.weight.grad, block.experts.gate_up_proj.grad, block.experts.down_proj.grad], x.grad


def moe_together(factor: float) -> tuple[float, list[torch.Tensor], torch.Tensor, int]:
    """This rank's part of it, and how many assignments were dropped."""
    block = parallel.ExpertParallel(moe(), capacity_factor=factor)
    x = tokens_of(dist.get_rank()).requires_grad_()
    loss = block(x).square().mean()
    loss.backward()
    parallel.average_expert_gradients(block, dist.group.WORLD)
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    gradients = [block.router.weight.grad, block.gate_up.grad, block.down.grad]
    return mean.item() / dist.get_world_size(), gradients, x.grad / dist.get_world_size(), block.dropped


def moe_output(factor: float) -> tuple[torch.Tensor, int]:
    block = parallel.ExpertParallel(moe(), capacity_factor=factor)
    return block(tokens_of(dist.get_rank())).detach(), block.dropped


def moe_with_drops(rank: int, room: int) -> tuple[torch.Tensor, int]:
    """One rank's tokens in one process, expert by expert in a loop, each taking its first `room` assignments."""
    block, x = moe(), tokens_of(rank).flatten(0, 1)
    _, weights, chosen = block.gate(x)
    out, taken, dropped = torch.zeros_like(x), [0] * 8, 0
    for token in range(len(x)):
        for weight, expert in zip(weights[token], chosen[token].tolist(), strict=True):
            if taken[expert] == room:
                dropped += 1
                continue
            taken[expert] += 1
            gate, up = (block.experts.gate_up_proj[expert] @ x[token]).chunk(2)
            answer = block.experts.down_proj[expert] @ (nn.functional.silu(gate) * up)
            out[token] += weight * answer
    return out.view(2, -1, 12).detach(), dropped


def moe_traffic(factor: float) -> tuple[list, list, int]:
    """(calls forward, calls backward, bytes of parameters held)."""
    block = parallel.ExpertParallel(moe(), capacity_factor=factor)
    forward, backward = counted(lambda block: block(tokens_of(dist.get_rank()).requires_grad_()).square().mean(), block)
    return forward, backward, sum(p.nbytes for p in block.parameters())


def moe_of(experts: int) -> None:
    parallel.ExpertParallel(moe(experts))


def moe_uneven_tokens() -> None:
    parallel.ExpertParallel(moe())(tokens_of(0, 20 + 40 * dist.get_rank()))


def mixtral() -> nn.Module:
    from transformers import MixtralConfig, MixtralForCausalLM

    torch.manual_seed(0)
    sizes = {"vocab_size": 37, "hidden_size": 12, "intermediate_size": 10, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "num_local_experts": 8, "num_experts_per_tok": 2}
    config = MixtralConfig(**sizes, **heads, experts_implementation="eager")  # the others know no FP64
    model = MixtralForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():  # so that norms are not one, and routers not undecided
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return model.double()


def ids_of(rank: int) -> torch.Tensor:
    return torch.randint(0, 37, (2, 9), generator=torch.Generator().manual_seed(rank))


def model_alone(ranks: int) -> tuple[float, dict[str, torch.Tensor]]:
    """All ranks' rows in one process, by Transformers' own code: loss, and gradients by name."""
    model, ids = mixtral(), torch.cat([ids_of(rank) for rank in range(ranks)])
    logits = model(input_ids=ids).logits[:, :-1]
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    return loss.item(), {name: p.grad for name, p in model.named_parameters()}


def model_together(factor: float) -> tuple[float, dict[str, torch.Tensor], list[int]]:
    """This rank's part of it, its weights lost on every rank but the first: mean loss, gradients, and drops."""
    model = mixtral()
    if dist.get_rank():
        nn.utils.vector_to_parameters(
            torch.zeros(sum(p.numel() for p in model.parameters())).double(), model.parameters()
        )
    part = parallel.split_experts(model, capacity_factor=factor)
    loss = part(ids_of(dist.get_rank()))
    loss.backward()
    part.average_gradients()
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    return mean.item() / dist.get_world_size(), {name: p.grad for name, p in part.named_parameters()}, part.dropped


def model_traffic(factor: float) -> tuple[dict[str, int], list, list]:
    """(bytes held after a step, calls forward, calls from there to averaged gradients)."""
    from helpers.memory.measure import Collectives, held

    part = parallel.split_experts(mixtral(), capacity_factor=factor)
    with Collectives() as forward:
        loss = part(ids_of(dist.get_rank()))
    with Collectives() as backward:
        loss.backward()
        part.average_gradients()
    return dict(held(part.holds())), calls_of(forward.traffic), calls_of(backward.traffic)


def llama_of_experts() -> None:
    parallel.split_experts(build())


def different_factors() -> None:
    parallel.split_experts(mixtral(), capacity_factor=1 + dist.get_rank())
