"""Models, inputs and runs for the ranks, and for the one process that they are compared with. Imported on the ranks."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor.parallel import loss_parallel
from torch.nn.functional import cross_entropy

from helpers.memory.measure import rank_step
from helpers.memory.measure.ranks import Collectives
from helpers.techniques import parallel

ROWS, TOKENS = 3, 8
# vocabulary 301 and FFN 51 divide by neither two nor four
KINDS = {
    "plain": {},
    "tied": {"tie_word_embeddings": True},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "one kv head": {"num_key_value_heads": 1},
    "two kv heads": {"num_key_value_heads": 2, "attention_bias": True},
    "no groups": {"num_attention_heads": 4, "num_key_value_heads": 4},
    "even": {"intermediate_size": 52},
    "even tied": {"intermediate_size": 52, "tie_word_embeddings": True},
    "even biases": {"intermediate_size": 52, "attention_bias": True, "mlp_bias": True},
    "six heads": {"num_attention_heads": 6, "num_key_value_heads": 2},
}


def build(kind: str = "plain", dtype: torch.dtype = torch.float64) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"vocab_size": 301, "hidden_size": 24, "intermediate_size": 51, "num_hidden_layers": 2, "head_dim": 6}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(**{**sizes, **heads, **KINDS[kind]}))
    with torch.no_grad():
        for parameter in model.parameters():  # so that biases are not zero, nor all norms one
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.to(dtype)


def ids(rows: int = ROWS, tokens: int = TOKENS) -> torch.Tensor:
    return torch.randint(0, 301, (rows, tokens), generator=torch.Generator().manual_seed(1))


def loss_of(model: nn.Module, rows: torch.Tensor) -> torch.Tensor:
    """In the model's own precision: Transformers computes its loss in FP32."""
    logits = model(input_ids=rows).logits[:, :-1]
    return cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())


def alone(kind: str) -> tuple[float, dict[str, torch.Tensor]]:
    """Loss and gradients of one process that has the whole model."""
    model = build(kind)
    loss = loss_of(model, ids())
    loss.backward()
    return loss.item(), {name: p.grad for name, p in model.named_parameters()}


def scrambled(kind: str) -> nn.Module:
    """The model, its weights lost on every rank but the first, whose weights all must get."""
    model = build(kind)
    if dist.get_rank():
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
    return model


def together(kind: str, sequence: bool) -> tuple[float, dict[str, torch.Tensor]]:
    """The same, split over all ranks: this rank's gradients by the names that they have in the split model."""
    model = parallel.split(scrambled(kind), sequence=sequence)
    loss = model(ids())
    loss.backward()
    return loss.item(), {name: p.grad for name, p in model.named_parameters()}


def split_name(name: str) -> str:
    """The split model's name for one of a Llama's parameters."""
    ends = {"model.embed_tokens.weight": "embedding.weight", "lm_head.weight": "head.weight"}
    name = ends.get(name, name.removeprefix("model."))
    return name.replace("norm.weight", "norm.norm.weight")


def masked_labels() -> torch.Tensor:
    labels = ids().clone()
    labels[:, 4:] = -100
    labels[0] = -100
    return labels


def alone_with_labels() -> float:
    logits = build()(input_ids=ids()).logits[:, :-1]
    return cross_entropy(logits.flatten(0, 1), masked_labels()[:, 1:].flatten()).item()


def with_labels() -> float:
    return parallel.split(build())(ids(), masked_labels()).item()


def large(model: nn.Module) -> nn.Module:
    with torch.no_grad():
        model.lm_head.weight.mul_(1e4)
    return model


def large_logits_alone() -> float:
    return loss_of(large(build()), ids()).item()


def large_logits() -> float:
    return parallel.split(large(build()))(ids()).item()


def uneven_tokens() -> None:
    parallel.split(build(), sequence=True)(ids(tokens=7))


def by_dtensor(kind: str, **options) -> tuple[float, dict[str, torch.Tensor]]:
    """Loss and whole gradients of PyTorch's DTensor, under the names of the whole model."""
    from helpers.techniques.parallel import dtensor

    model = dtensor.DTensorModel(build(kind), parallel.mesh(tensor=dist.get_world_size()), **options)
    with loss_parallel():
        loss = model(ids())
        loss.backward()
    gradients = {name.removeprefix("model."): dtensor.whole(p.grad) for name, p in model.named_parameters()}
    return dtensor.whole(loss).item(), gradients


def counted(loss_of_model, model) -> tuple[dict, dict]:
    """(forward, backward): of each kind the payloads, sorted, with the ranks that took part."""
    with loss_parallel():  # which changes nothing for a model whose logits are plain tensors
        with Collectives() as forward:
            loss = loss_of_model(model)
        with Collectives() as backward:
            loss.backward()
    return calls_of(forward.traffic), calls_of(backward.traffic)


def calls_of(traffic) -> list[tuple[str, int, int]]:
    return sorted((call.kind, call.payload_bytes, call.ranks) for call in traffic.calls)
