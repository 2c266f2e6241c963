"""What one rank holds and reads under tensor parallelism, divided as vLLM divides a model. Integers, no torch.

Query and KV heads, columns and rows of the linear layers, and rows of the vocabulary's tables are divided. Fewer KV
heads than ranks are held more than once, with the weights that make them. Whole on every rank: norms, biases, routers,
position tables, and of latent attention the projections down to the latent, and the latent itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from ...catalog.errors import WorkbookError, require_whole
from ...catalog.formats import number_format
from ...catalog.layers import Attention, LinearGroup
from ...catalog.serve_setup import ServeSetup
from ...catalog.shape import ModelShape
from .reads import decode_bytes
from .serving import serve
from .weights import KEPT, layer_bytes, weight_bytes

KEY_OR_VALUE = ("k_proj", "v_proj")
FUSED = ("qkv_proj", "c_attn")
WHOLE = ("q_a_proj", "kv_a_proj_with_mqa", "wq_b", "wk", "weights_proj")  # the last three are an indexer's
MAX_RANKS = 2**10


def rank_shape(model: ModelShape, ranks: int) -> ModelShape:
    """`model` with the KV heads that one of `ranks` caches, for `kv_values` and `cache_bytes`; other fields untouched.

    WorkbookError where heads cannot be divided, and for a family known only to Transformers.

    >>> from helpers.catalog import model
    >>> [rank_shape(model("llama-3-8b"), ranks).kv_heads for ranks in (1, 2, 8, 16)]
    [8, 4, 1, 1]
    """
    require_divisible(model, ranks)
    if ranks == 1:
        return model
    layers = (replace(layer, attention=_on_a_rank(layer.attention, ranks)) for layer in model.layers)
    return replace(model, layers=tuple(layers))


def rank_weight_bytes(setup: ServeSetup, ranks: int) -> int:
    """Bytes of the weights on one of `ranks`, each matrix rounded up; all of `budget.weight_bytes` on one.

    Llama-3-8B in BF16 on two: 8,030,527,488, the 7.48 GiB that vLLM logs. Qwen2.5-7B on 8 holds 4 KV heads twice.
    """
    require_divisible(setup.model, ranks)
    total = weight_bytes(setup)
    if ranks == 1:
        return total
    table = _table_bytes(setup, setup.model.vocab * setup.model.embedding_width)
    rest, held = total - table, _up(table, ranks)
    for group, attention, count in _linears(setup.model):
        size = layer_bytes(setup, group)
        part, of = rank_share(group, attention, ranks)
        rest -= count * size
        held += count * _up(size * part, of)
    return rest + held


def rank_read_bytes(setup: ServeSetup, ranks: int) -> int:
    """Bytes of weights that a decode step must read on one of `ranks`: `budget.decode_bytes` without the cache.

    Llama-3-8B in BF16, one user, two ranks: 7,505,195,008; the rows of the embedding that nobody asked for stay.
    """
    require_divisible(setup.model, ranks)
    unread = weight_bytes(setup) + serve(setup).held["kv_cache"] - decode_bytes(setup)
    if ranks == 1:
        return weight_bytes(setup) - unread
    positions = min(unread, _table_bytes(setup, setup.model.learned_positions * setup.model.hidden))
    return rank_weight_bytes(setup, ranks) - positions - (unread - positions) // ranks


def _linears(model: ModelShape) -> Iterator[tuple[LinearGroup, Attention, int]]:
    """Every linear layer, equal ones together, with its layer's attention; head and projections with the first's."""
    for layer, times in Counter(model.layers).items():
        yield from ((group, layer.attention, times * group.count) for group in layer.linears())
    outside = (group for group in model.linears() if group.part in ("lm_head", "projections"))
    yield from ((group, model.layers[0].attention, group.count) for group in outside)


def _on_a_rank(attention: Attention, ranks: int) -> Attention:
    """Its KV heads on one rank, and of a recurrent layer the heads of its states; a latent stays whole."""
    if delta := attention.delta:
        heads = (max(1, delta.key_heads // ranks), delta.value_heads // ranks)
        return replace(attention, delta=replace(delta, key_heads=heads[0], value_heads=heads[1]))
    return attention if attention.mla else replace(attention, kv_heads=max(1, attention.kv_heads // ranks))


def rank_share(group: LinearGroup, attention: Attention, ranks: int) -> tuple[int, int]:
    """The share of a weight that one rank holds, as numerator and denominator."""
    heads, kv_heads = attention.heads, attention.kv_heads
    mine = max(1, kv_heads // ranks)
    if group.part != "attention":
        return 1, ranks
    if group.linear.name in WHOLE:
        return 1, 1
    if group.linear.name in KEY_OR_VALUE:
        return mine, kv_heads
    return (heads // ranks + 2 * mine, heads + 2 * kv_heads) if group.linear.name in FUSED else (1, ranks)


def _table_bytes(setup: ServeSetup, values: int) -> int:
    """A table of embeddings or positions: not quantized with the linear layers."""
    rule = number_format(setup.weights)
    return (number_format(KEPT) if rule.linears_only else rule).storage_bytes(values)


def require_divisible(model: ModelShape, ranks: int) -> None:
    require_whole("tensor_parallel", ranks, most=MAX_RANKS, do="pass tensor_parallel=1 for one GPU")
    if ranks > 1 and model.counted:
        what = f"how the family {model.family!r} is divided over ranks is not known"
        raise WorkbookError(what, "a family with a closed form in helpers.catalog.families", "pass tensor_parallel=1")
    if not _divides(model, ranks):
        able = [count for count in range(1, model.heads + 1) if _divides(model, count)]
        raise WorkbookError(
            f"{model.name} has {model.heads} query heads and {model.kv_heads} KV heads, which "
            f"{ranks} ranks cannot share evenly",
            f"tensor_parallel of {', '.join(map(str, able))}",
            f"pass tensor_parallel={max(count for count in able if count < ranks)}",
        )


def _divides(model: ModelShape, ranks: int) -> bool:
    """vLLM's own condition: whole query heads on each rank, and KV heads divided evenly or repeated evenly."""
    used = {_heads(layer.attention) for layer in model.layers}
    return all(heads % ranks == 0 and (kv % ranks == 0 or ranks % kv == 0) for heads, kv in used)


def _heads(one: Attention) -> tuple[int, int]:
    """Heads that are divided, and those that they share; of a recurrent layer, heads of its states and of its keys."""
    if one.delta:
        return one.delta.value_heads, one.delta.key_heads
    return one.heads, one.heads if one.mla else one.kv_heads


def _up(value: int, by: int) -> int:
    return -(-value // by)
