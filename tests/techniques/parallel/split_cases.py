"""Models, inputs and runs for the ranks, and for the one process that they are compared with. Imported on the ranks."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor.parallel import loss_parallel
from torch.nn.functional import cross_entropy

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
    "uneven heads": {"hidden_size": 30, "num_attention_heads": 10, "num_key_value_heads": 5, "attention_bias": True},
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


def small(**options) -> tuple[object, list, list]:
    """The workbook's small model, split: (parameters and gradients held, calls forward, calls backward)."""
    from helpers.memory.measure import held
    from helpers.small_lm import load

    model = parallel.split(load().model, **options)
    forward, backward = counted(lambda model: model(words()), model)
    return held(model.holds()), forward, backward


def small_by_dtensor(**options) -> tuple[object, list, list]:
    from helpers.memory.measure import held
    from helpers.small_lm import load
    from helpers.techniques.parallel import dtensor

    model = dtensor.DTensorModel(load().model, parallel.mesh(tensor=dist.get_world_size()), **options)
    forward, backward = counted(lambda model: model(words()), model)
    return held(model.holds()), forward, backward


def words(rows: int = 2, tokens: int = 16) -> torch.Tensor:
    return torch.arange(rows * tokens).view(rows, tokens)


def bytes_and_calls(kind: str, sequence: bool) -> tuple[object, list, list]:
    from helpers.memory.measure import held

    model = parallel.split(build(kind), sequence=sequence)
    forward, backward = counted(lambda model: model(ids()), model)
    return held(model.holds()), forward, backward


def saved_bytes(sequence: bool, rows: int = 2, tokens: int = 64) -> int:
    """What a forward of the small model leaves for its backward, on this rank."""
    from helpers.memory.meter import Meter
    from helpers.small_lm import load

    model = parallel.split(load().model, sequence=sequence)
    model(words(1, tokens))  # tables that are made once
    with Meter() as meter:
        loss = model(words(rows, tokens))  # noqa: F841 - keeps what was saved alive
        return meter.live_bytes


def different_models() -> None:
    parallel.split(build("tied" if dist.get_rank() == 1 else "one kv head"))


def without_biases_on_one() -> None:
    parallel.split(build("plain" if dist.get_rank() else "biases"))


def of_another_family() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    parallel.split(GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=11)))


def with_eager_attention() -> None:
    model = build()
    model.set_attn_implementation("eager")
    parallel.split(model)


def frozen() -> list[str]:
    """Names of the parameters that have gradients where all but the norms are frozen."""
    model = build("two kv heads")
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("norm" in name)
    part = parallel.split(model, sequence=True)
    part(ids()).backward()
    return [name for name, parameter in part.named_parameters() if parameter.grad is not None]


def different_meshes() -> None:
    parallel.mesh(**({"data": 2, "tensor": 2} if dist.get_rank() else {"data": 4, "tensor": 1}))


def mesh_of(**sizes) -> None:
    parallel.mesh(**sizes)


def different_inputs() -> None:
    parallel.split(build())(ids(tokens=8 + 4 * dist.get_rank()))


def equally_many_other_ids() -> None:
    parallel.split(build())(ids().flip(dist.get_rank() % 2))


def on_a_mesh(sequence: bool) -> tuple[float, dict[str, torch.Tensor], int]:
    """Two by two: each pair shares a model and sees half of the rows; (mean loss, gradients, rank in its pair)."""
    mesh = parallel.mesh(data=2, tensor=2)
    tensor, data = mesh.get_group("tensor"), mesh.get_group("data")
    model = parallel.split(build("tied"), tensor, sequence=sequence)
    loss = model(ids(rows=4).chunk(2)[data.rank()])
    loss.backward()
    parallel.average_gradients(model, data)
    mean = loss.detach().clone()
    dist.all_reduce(mean, group=data)
    return mean.item() / 2, {name: p.grad for name, p in model.named_parameters()}, tensor.rank()


def alone_on_four_rows(kind: str) -> tuple[float, dict[str, torch.Tensor]]:
    model = build(kind)
    loss = loss_of(model, ids(rows=4))
    loss.backward()
    return loss.item(), {name: p.grad for name, p in model.named_parameters()}


def by_transformers() -> tuple[float, int, list, list]:
    """(loss, bytes of a rank's parameters, calls forward, calls backward) of Transformers' own tensor parallelism."""
    from helpers.small_lm.model import CHECKPOINT
    from helpers.techniques.parallel import dtensor

    model = dtensor.load_by_transformers(CHECKPOINT, dist.get_world_size())
    losses = []

    def loss_of_model(model):
        losses.append(model(input_ids=words(), labels=words()).loss)
        return losses[0]

    forward, backward = counted(loss_of_model, model)
    return losses[0].item(), sum(dtensor.local(p).nbytes for p in model.parameters()), forward, backward


def small_loss() -> float:
    from helpers.small_lm import load

    return parallel.split(load().model)(words()).item()


def small_alone() -> float:
    from helpers.small_lm import load

    return load().model(input_ids=words(), labels=words()).loss.item()
