"""Weights on one rank of an engine, tensor by tensor, as the caching allocator holds them. Integers, no torch.

Derived from vLLM 0.19 (model_executor/models, layers/linear.py, layers/vocab_parallel_embedding.py): q, k and v are one
tensor, gate and up another, experts are stacked; tensor parallel ranks divide heads, columns, rows and the vocabulary,
which is padded to a multiple of 64; embedding and head stand on the first and the last stage of a pipeline. A table of
rotary cosines and sines for every position is loaded with them, and latent attention keeps the two halves of kv_b_proj
once more. Each tensor is a segment of its own, so that what a segment has beyond it counts, where it is not split.

    rank_weight_bytes(ServeSetup("llama-3.1-8b"))             # 14.99 GiB, as vLLM logs on one card
    rank_weight_bytes(ServeSetup("llama-3.1-8b"), 1, 4)       # 4.26 GiB: the first of four stages
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from ....catalog.errors import WorkbookError
from ....catalog.formats import number_format
from ....catalog.layers import Layer, Linear, LinearGroup
from ....catalog.serve_setup import ServeSetup
from ....catalog.shape import ModelShape
from ...breakdown import rounded
from ..rank_weights import rank_share, require_divisible
from ..serving import unsplit
from ..weights import is_quantized, scale_bytes, weight_bytes

FUSED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"), ("q_a_proj", "kv_a_proj_with_mqa"))
VOCABULARY = 64  # DEFAULT_VOCAB_PADDING_SIZE
# Of gpt-oss' experts, 1,440 wide on each of two ranks, vLLM's kernels hold 1,536; on one card 2,880 stay as they are.
PADDED_FORMAT, PADDED_COLUMNS = "mxfp4", 128
LONGER = ("yarn", "deepseek_yarn", "linear", "dynamic")  # kinds of scaling whose table has factor x positions
FP32, SIXTEEN_BITS = 4, 2

Sizes = Iterator[tuple[int, int]]  # bytes of a tensor, and how many there are


def value_bytes(setup: ServeSetup) -> int:
    """Of what is not quantized, and of activations: FP32 of a model in FP32, else 16 bits."""
    return FP32 if setup.weights == "fp32" else SIXTEEN_BITS


def rank_weight_bytes(setup: ServeSetup, tensor: int = 1, pipeline: int = 1, stage: int = 0) -> int:
    """Bytes that "Model loading took" on a rank of `stage`.

    Qwen2.5-7B on one card: 14.25 GiB, of which 56 MiB are ends of segments. Raises WorkbookError where heads cannot
    be divided, and for a family known only to Transformers.
    """
    require_divisible(setup.model, tensor)
    if setup.model.counted:
        return _counted(setup, pipeline)
    tensors = _tensors(setup, tensor, stage_layers(setup.model, pipeline, stage), stage == 0, stage == pipeline - 1)
    return sum(count * (rounded(size) + unsplit(rounded(size))) for size, count in tensors if size)


def _counted(setup: ServeSetup, pipeline: int) -> int:
    """All weights of a model that is known to Transformers alone, without what ends of segments add."""
    if pipeline > 1:
        what = f"which tensors of {setup.model.name} stand on a stage is not known here"
        raise WorkbookError(what, "a family with a closed form in helpers.catalog.families", "pass pipeline=1")
    return weight_bytes(setup) + sum(value_bytes(setup) * size for size in rope_tables(setup.model))


def stage_layers(model: ModelShape, pipeline: int, stage: int) -> tuple[Layer, ...]:
    """The layers of one stage; what is left over goes to the last but one and those before it (get_pp_indices).

    >>> from helpers.catalog import model
    >>> [len(stage_layers(model("qwen2.5-7b"), 3, stage)) for stage in range(3)]
    [9, 10, 9]
    """
    each, left = divmod(len(model.layers), pipeline)
    counts = [each + (pipeline - 1 - left <= at < pipeline - 1) for at in range(pipeline)]
    start = sum(counts[:stage])
    return model.layers[start : start + counts[stage]]


def padded_vocabulary(model: ModelShape) -> int:
    return -(-model.vocab // VOCABULARY) * VOCABULARY


def _tensors(setup: ServeSetup, tensor: int, layers: Iterable[Layer], first: bool, last: bool) -> Sizes:
    """Of every tensor on a rank: bytes and count."""
    model, width = setup.model, value_bytes(setup)
    table = width * -(-padded_vocabulary(model) // tensor) * model.embedding_width
    yield table, first + (last and not (model.tied and first))
    yield width * model.learned_positions * model.hidden, int(first)
    yield width * model.final_norm_parameters, int(last)
    yield -(-SIXTEEN_BITS * model.parameters_beside // tensor), int(first)  # towers in one, divided as the layers are
    for linear in model.projections:
        yield width * linear.parameters, int(first)
    for size in rope_tables(model):
        yield width * size, 1
    for layer, times in Counter(layers).items():
        yield from ((size, times * count) for size, count in _layer(setup, layer, tensor))


def _layer(setup: ServeSetup, layer: Layer, tensor: int) -> Sizes:
    width, attention, mlp = value_bytes(setup), layer.attention, layer.mlp
    waiting = list(layer.linears())
    while waiting:
        names = next((names for names in FUSED if waiting[0].linear.name in names), ())
        together = [one for one in waiting if one is waiting[0] or (one.linear.name in names and one.part != "experts")]
        waiting = [one for one in waiting if all(one is not other for other in together)]
        yield from _weight(setup, layer, together, tensor)
    for length in (*layer.norm_vectors, *attention.norm_vectors):
        yield width * length, 1
    yield width * mlp.router_parameters, 1
    yield width * (attention.heads // tensor if attention.sinks else 0), 1
    if attention.mla:
        a_head = (attention.mla.qk_nope_head_dim, attention.mla.v_head_dim)
        for dim in a_head:
            yield SIXTEEN_BITS * attention.heads // tensor * dim * attention.mla.kv_lora_rank, 1
    if attention.delta:
        yield from ((-(-width * _product(shape) // tensor), 1) for shape in attention.delta.tensors())


def _weight(setup: ServeSetup, layer: Layer, together: list[LinearGroup], tensor: int) -> Sizes:
    """One matrix, or several in one tensor: its values, its scales, its biases."""
    rule = number_format(setup.weights)
    plain = number_format("bf16") if rule.linears_only else rule
    values = scales = biases = 0
    for group in together:
        linear = _padded(setup, group, tensor)
        part, of = rank_share(group, layer.attention, tensor)
        held = rule if is_quantized(setup, group) else plain
        copies = group.count if group.part == "experts" else 1
        values += copies * held.packed_bytes(-(-linear.weights * part // of))
        scales += copies * -(-scale_bytes(setup, held, linear) * part // of)
        biases += copies * value_bytes(setup) * (-(-linear.outputs * part // of) if linear.bias else 0)
    yield from ((values, 1), (scales, 1), (biases, 1))


def _padded(setup: ServeSetup, group: LinearGroup, tensor: int) -> Linear:
    """An expert's matrix with the columns that its kernel adds on each rank."""
    linear = group.linear
    if group.part != "experts" or tensor == 1 or setup.weights != PADDED_FORMAT:
        return linear
    by = tensor * PADDED_COLUMNS
    if linear.name == "down_proj":
        return Linear(linear.name, -(-linear.inputs // by) * by, linear.outputs, linear.bias)
    return Linear(linear.name, linear.inputs, -(-linear.outputs // (2 * by)) * 2 * by, linear.bias)


def rope_tables(model: ModelShape) -> Iterator[int]:
    """Values of each table of cosines and sines: one for each kind of rotation in the model.

    Gemma 3 has two: windows see the plain positions, the others 8 times as many. 131,072 x 128 in Llama-3.1-8B.
    """
    if model.learned_positions:
        return
    attention, config = model.layers[0].attention, model.config
    share = config.get("partial_rotary_factor")
    part = share if isinstance(share, int | float) and 0 < share <= 1 else 1
    rotary = attention.mla.qk_rope_head_dim if attention.mla else int(attention.head_dim * part)
    found = config.get("rope_scaling") or config.get("rope_parameters")
    scaling = found if isinstance(found, Mapping) else {}
    in_fp32 = attention.mla is not None and _kind(scaling) in ("yarn", "deepseek_yarn")  # DeepSeek's own rotation
    yield round(rotary * _positions(model, scaling)) * (FP32 // SIXTEEN_BITS if in_fp32 else 1)
    if model.family == "gemma3_text":
        yield rotary * model.max_positions


def longest_context(model: ModelShape) -> int:
    """Tokens that a sequence may have, as vLLM reads it in the config, scaled positions too; 0 where none says it.

    >>> from helpers.catalog.models import model
    >>> longest_context(model("llama-3.1-8b"))
    131072
    """
    found = model.config.get("rope_scaling") or model.config.get("rope_parameters")
    scaling = found if isinstance(found, Mapping) else {}
    scaled = 0 if _kind(scaling) == "longrope" else int(_positions(model, scaling))
    return max(model.max_positions, scaled) if model.max_positions else 0


def require_positions(name: str, model: ModelShape, context: int) -> None:
    """WorkbookError for a context beyond the model's positions, with which an engine does not start."""
    most = longest_context(model)
    if most and context > most:
        what = f"a context of {context:,} tokens with {name}, and {model.name} has {most:,} positions"
        expected = f"at most {most:,}: {name} does not start with more (max_position_embeddings)"
        raise WorkbookError(what, expected, f"pass {most} or less (--context {most})")


def _positions(model: ModelShape, scaling: Mapping) -> float:
    """How many positions a table has; of Phi-3's two, short and long, both."""
    kind, factor = _kind(scaling), scaling.get("factor")
    original = scaling.get("original_max_position_embeddings", model.config.get("original_max_position_embeddings"))
    start = original if isinstance(original, int) else 0
    if kind == "longrope":
        return model.max_positions + start
    if kind in LONGER and isinstance(factor, int | float):
        return factor * (start or model.max_positions)
    return model.max_positions


def _kind(scaling: Mapping) -> object:
    return scaling.get("rope_type", scaling.get("type"))


def _product(shape: tuple[int, ...]) -> int:
    total = 1
    for length in shape:
        total *= length
    return total
