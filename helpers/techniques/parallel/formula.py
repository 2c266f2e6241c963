"""What one rank of a split model holds, and what it sends in a forward and in a backward pass. Integers, no torch.

Linear layers are divided by columns and rows, attention by heads, both tables by words, as the modules beside this one
do; norms and the biases of row-parallel layers are whole on every rank. (vLLM's way of serving, in
`memory.serve.tensor_parallel`, rounds otherwise.) With sequence parallelism each rank has a part of the tokens between
divided layers, where all ranks would otherwise hold the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

from ...catalog.errors import WorkbookError, require_number, require_whole
from ...catalog.layers import Attention, Layer, Linear
from ...catalog.shape import ModelShape
from ...memory.step.decoders.linears import ROWS
from ...memory.step.ranks.zero import Collective, Traffic

COLUMNS = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
AGREEMENT_BYTES = 16  # two whole numbers, by which ranks see before a forward whether they were given the same


@dataclass(frozen=True)
class PassTraffic:
    """What every rank's collectives carry in one forward, and in its backward."""

    forward: Traffic
    backward: Traffic

    @property
    def step(self) -> Traffic:
        return Traffic(self.forward.calls + self.backward.calls)


def part_of(size: int, ranks: int, rank: int) -> slice:
    """Rank `rank`'s part of `size` rows or columns. Parts differ by one where `size` does not divide.

    >>> [part_of(301, 4, rank) for rank in (0, 1, 3)]
    [slice(0, 76, None), slice(76, 151, None), slice(226, 301, None)]
    """
    if size < ranks:
        do = f"divide it over {size} ranks or fewer"
        raise WorkbookError(f"{ranks} ranks cannot share {size}", "something for every rank", do)
    least, over = divmod(size, ranks)
    start = rank * least + min(rank, over)
    return slice(start, start + least + (rank < over))


def shared(heads: int, kv_heads: int, ranks: int) -> bool:
    """Whether each rank gets whole KV heads and all query heads that read them, or a KV head and some of its own.

    >>> [ranks for ranks in (1, 2, 3, 4, 6) if shared(6, 2, ranks)]
    [1, 2, 6]
    """
    return ranks <= kv_heads or (heads % ranks == 0 and ranks % kv_heads == 0)


def heads_of(heads: int, kv_heads: int, ranks: int, rank: int) -> tuple[slice, slice]:
    """Rank `rank`'s query heads, and the KV heads that these read. Parts may differ by a KV head.

    >>> heads_of(9, 3, ranks=2, rank=0)
    (slice(0, 6, None), slice(0, 2, None))
    """
    per_kv = heads // kv_heads
    if ranks <= kv_heads:
        keys = part_of(kv_heads, ranks, rank)
        return slice(keys.start * per_kv, keys.stop * per_kv), keys
    queries = part_of(heads, ranks, rank)
    return queries, slice(queries.start // per_kv, -(-queries.stop // per_kv))


def require_heads(heads: int, kv_heads: int, ranks: int) -> None:
    """WorkbookError where ranks would have unequal pieces of one KV head's group."""
    if not shared(heads, kv_heads, ranks):
        able = [count for count in range(1, heads + 1) if shared(heads, kv_heads, count)]
        raise WorkbookError(
            f"{ranks} ranks cannot share {heads} query heads that read {kv_heads} KV heads",
            f"a number of ranks among {', '.join(map(str, able))}: no more than KV heads, or a multiple of them that "
            f"divides the query heads",
            f"split over {max(count for count in able if count < ranks)} ranks, and use the rest for data parallelism",
        )


def require_experts(experts: int, ranks: int) -> None:
    """WorkbookError unless each rank gets equally many: an all-to-all has pieces of one size."""
    require_whole("ranks", ranks, do="pass ranks=8")
    if experts % ranks:
        able = [count for count in range(1, experts + 1) if experts % count == 0]
        do = f"use {max(count for count in able if count < ranks)} ranks for the experts"
        raise WorkbookError(f"{ranks} ranks cannot share {experts} experts", f"{', '.join(map(str, able))} ranks", do)


def parameter_bytes(model: ModelShape, ranks: int, rank: int = 0, value_bytes: int = 4) -> int:
    """Bytes of the parameters on one rank; its gradients take as many, and Adam's two states twice as many.

    The small model of this workbook in FP32: 6,937,344 on one rank, 3,472,128 on each of two. Of those 6,912 are the
    nine norms, which both have.
    """
    _require_split(model, ranks)
    require_whole("rank", rank, least=0, most=ranks - 1, do="ranks are counted from 0")
    table = _size(part_of(model.vocab, ranks, rank)) * model.hidden
    layers = sum(_layer_values(layer, ranks, rank) for layer in model.layers)
    return value_bytes * ((1 if model.tied else 2) * table + layers + model.final_norm_parameters)


def tensor_traffic(
    model: ModelShape, tokens: int, ranks: int, value_bytes: int = 4, sequence: bool = False
) -> PassTraffic:
    """What splitting over `ranks` sends for `tokens` tokens, all sequences of the micro-batch together.

    Forward: the embedding's and each layer's two results are added over the ranks, and three numbers a token for the
    loss; 16 bytes before it say whether all ranks were given the same ids. Backward: gradients are added where a norm's
    output enters divided layers. The small model, two ranks: 9 all-reduces forward and 9 back, 768 bytes a token each.
    With `sequence` each becomes a reduce-scatter and an all-gather in the other pass, and norms' gradients are added.
    """
    _require_split(model, ranks)
    require_whole("tokens", tokens, do="pass tokens=batch * sequence")
    places = 1 + 2 * len(model.layers)  # exits: the embedding and two a layer; entries: two a layer and the head
    hidden = tokens * model.hidden * value_bytes
    loss = _agreement(ranks) + _calls("all_reduce", 3, tokens * value_bytes, ranks)
    copies = _kv_copies(model, ranks, value_bytes)
    if not sequence:
        sums = _calls("all_reduce", places, hidden, ranks)
        return PassTraffic(Traffic(sums + loss), Traffic(sums + copies))
    turned = _calls("all_gather", places, hidden, ranks) + _calls("reduce_scatter", places, hidden, ranks)
    whole = tuple(Collective("all_reduce", values * value_bytes, ranks) for values in _whole_vectors(model))
    return PassTraffic(Traffic(turned + loss), Traffic(turned + copies + whole))


def capacity(tokens: int, top_k: int, experts: int, factor: float) -> int:
    """How many assignments of one rank's tokens an expert takes: `factor` times an even share, and at least one.

    >>> capacity(tokens=512, top_k=2, experts=8, factor=1.25)
    160
    """
    require_number("capacity_factor", factor, expected="a number above 0", do="capacity_factor=1.25")
    return max(1, ceil(factor * tokens * top_k / experts))


def expert_traffic(layer: Layer, tokens: int, ranks: int, factor: float = 1.25, value_bytes: int = 2) -> PassTraffic:
    """What one layer of experts sends for a rank's own `tokens`: there and back, and in the backward pass once more.

    Slots travel whether they are filled or not. Mixtral-8x7B in BF16 with 4,096 tokens: 8 experts of 1,280 slots, each
    of 8,192 bytes, are 83,886,080 bytes in each of four all-to-alls.
    """
    _require_experts_in(layer)
    require_whole("tokens", tokens, do="pass tokens=batch * sequence, of one rank")
    require_experts(layer.mlp.experts, ranks)
    slots = layer.mlp.experts * capacity(tokens, layer.mlp.experts_per_token, layer.mlp.experts, factor)
    width = layer.mlp.expert_linears[0].inputs
    both = _calls("all_to_all", 2, slots * width * value_bytes, ranks)
    return PassTraffic(Traffic(_agreement(ranks) + both), Traffic(both))


def _require_experts_in(layer: Layer) -> None:
    if not layer.mlp.experts:
        raise WorkbookError("a layer without experts", "one with routed experts", 'model("mixtral-8x7b").layers[0]')


def _layer_values(layer: Layer, ranks: int, rank: int) -> int:
    linears = layer.attention.linears + layer.mlp.linears
    return sum(_linear_values(linear, layer.attention, ranks, rank) for linear in linears) + layer.norm_parameters


def _linear_values(linear: Linear, attention: Attention, ranks: int, rank: int) -> int:
    """Weight and bias of one linear layer on a rank. Heads are whole; they and an MLP's columns may be uneven."""
    queries, keys = heads_of(attention.heads, attention.kv_heads, ranks, rank)
    heads = {"q_proj": queries, "k_proj": keys, "v_proj": keys, "o_proj": queries}.get(linear.name)
    divided = linear.outputs if linear.name in COLUMNS else linear.inputs
    size = _size(heads) * attention.head_dim if heads else _size(part_of(divided, ranks, rank))
    if linear.name in COLUMNS:
        return size * (linear.inputs + linear.bias)
    return size * linear.outputs + linear.bias * linear.outputs


def _kv_copies(model: ModelShape, ranks: int, value_bytes: int) -> tuple[Collective, ...]:
    """Where ranks outnumber KV heads: the gradients of each head's copies are added, weights and biases apart."""
    calls = []
    for layer in model.layers:
        together = ranks // layer.attention.kv_heads
        for linear in layer.attention.linears if together > 1 else ():
            if linear.name in ("k_proj", "v_proj"):
                sizes = [linear.inputs * layer.attention.head_dim] + [layer.attention.head_dim] * linear.bias
                calls += [Collective("all_reduce", size * value_bytes, together) for size in sizes]
    return tuple(calls)


def _whole_vectors(model: ModelShape) -> Iterator[int]:
    """Lengths of the norms and biases that see a part of the tokens with sequence parallelism."""
    for layer in model.layers:
        yield from layer.norm_vectors
        linears = layer.attention.linears + layer.mlp.linears
        yield from (linear.outputs for linear in linears if linear.name in ROWS and linear.bias)
    yield model.final_norm_parameters


def _calls(kind: str, count: int, payload_bytes: int, ranks: int) -> tuple[Collective, ...]:
    return (Collective(kind, payload_bytes, ranks),) * count


def _agreement(ranks: int) -> tuple[Collective, ...]:
    return _calls("all_reduce", 1, AGREEMENT_BYTES, ranks)


def _size(part: slice) -> int:
    return part.stop - part.start


def _require_split(model: ModelShape, ranks: int) -> None:
    require_whole("ranks", ranks, most=2**10, do="pass ranks=2")
    linears = [linear for layer in model.layers for linear in layer.attention.linears + layer.mlp.linears]
    strange = sorted({linear.name for linear in linears} - {*COLUMNS, *ROWS})
    inside = any(layer.attention.norm_vectors or layer.attention.sinks for layer in model.layers)
    if not model.is_dense_decoder or strange or inside or model.learned_positions:
        found = f"the family {model.family!r}" + (f" with {', '.join(strange)}" if strange else "")
        do = "helpers.memory.tensor_parallel knows how vLLM divides more families"
        raise WorkbookError(f"how {found} is divided is not written here", "a dense Llama, Mistral or Qwen2", do)
    require_heads(model.heads, model.kv_heads, ranks)
