"""The number formats that a KV cache is kept in, and what a model must be like for one. No torch."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from .errors import WorkbookError, unknown_name
from .formats import NumberFormat, number_format
from .layers import Attention

if TYPE_CHECKING:
    from .shape import ModelShape

_PLAIN = ("fp32", "fp16", "bf16", "fp8-e4m3", "fp8-e5m2")
_GGML = ("q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")  # what --cache-type-k of llama.cpp takes besides
_PER_HEAD = {"int8-per-head": 8, "int4-per-head": 4}
KV_FORMATS = (*_PLAIN, "nvfp4", *_GGML, *_PER_HEAD)
SHORT = {"int8": "int8-per-head", "int4": "int4-per-head", "fp8": "fp8-e4m3", "fp8_e4m3": "fp8-e4m3", "f16": "fp16"}
SHORT |= {"fp8_e5m2": "fp8-e5m2", "float16": "fp16", "bfloat16": "bf16", "auto": "bf16"}  # as engines spell them
KV_OF_ENGINES = {  # --kv-cache-dtype of vLLM and SGLang, --cache-type-k of llama.cpp
    "vllm": ("fp32", "fp16", "bf16", "nvfp4", *_PER_HEAD, "fp8-e5m2", "fp8-e4m3"),
    "sglang": ("fp32", "fp16", "bf16", "fp8-e5m2", "fp8-e4m3"),
    "llama.cpp": ("fp32", "fp16", "bf16", *reversed(_GGML)),
}
HEAD_SCALE_BITS = 32  # scale and zero point in FP16, or one FP32


def kv_name(name: object) -> str:
    """The name in KV_FORMATS that `name` stands for; WorkbookError for none.

    >>> kv_name("Q8_0"), kv_name("int8")
    ('q8_0', 'int8-per-head')
    """
    wanted = name.lower() if isinstance(name, str) else ""
    wanted = SHORT.get(wanted, wanted)
    if wanted not in KV_FORMATS:
        raise unknown_name("KV cache format", name, KV_FORMATS)
    return wanted


def cache_format(name: str, model: ModelShape) -> NumberFormat:
    """How the cache of `model` keeps its values in the format `name`, scales included.

    The blocks of llama.cpp (values and a scale in FP16; `src/llama-context.cpp` asks that they divide a head's values)
    and of NVFP4 (16 values and a scale in FP8, TensorRT-LLM and vLLM) lie in a head's K or V. "int8-per-head" and
    "int4-per-head" keep 32 bits beside each head's K and V of each token: scale and zero point in FP16 in LMDeploy
    (`quant_policy` 8 and 4), one FP32 in vLLM's `int8_per_token_head`. Raises WorkbookError where a head's values are
    no multiple of the block, and for a latent, which has no heads, in the last two.

    >>> from .models import model
    >>> cache_format("q8_0", model("llama-3-8b")).storage_bytes(2048), cache_format("int8", model("llama-3-8b")).name
    (2176, 'int8-per-head')
    """
    name = kv_name(name)
    rows = {_row(layer.attention): layer.attention for layer in model.layers if layer.attention.kv_values_per_token}
    if name in _PER_HEAD:
        return _per_head(name, model, rows)
    entry = number_format(name)
    for row in sorted(row for row in rows if entry.block_values and row % entry.block_values):
        what = f"a KV cache in {name}, in blocks of {entry.block_values}, for {model.name}, which caches {row} values"
        raise WorkbookError(
            what, "a block that divides a head's values", "choose bf16 or fp8-e4m3, which have no blocks"
        )
    return entry


def _row(attention: Attention) -> int:
    """Values of one K or V of one token, or of its latent: what a block may not cross."""
    return attention.kv_values_per_token if attention.mla else attention.head_dim


def _per_head(name: str, model: ModelShape, rows: dict[int, Attention]) -> NumberFormat:
    if any(attention.mla for attention in rows.values()):
        what = f"a KV cache in {name} for {model.name}, whose cache is a latent without heads"
        raise WorkbookError(what, "a format without a scale for each head", "choose fp8-e4m3 or q8_0")
    if len(rows) > 1:
        what = f"a KV cache in {name} for {model.name}, whose heads have {' and '.join(map(str, sorted(rows)))} values"
        raise WorkbookError(what, "heads of one width", "choose fp8-e4m3 or q8_0")
    width = next(iter(rows), 1)
    return replace(
        number_format("bf16"),
        name=name,
        value_bits=_PER_HEAD[name],
        scale="32 bits per head of a token: scale and zero point in FP16, or one FP32",
        source="LMDeploy, quant_policy 8 and 4; vLLM, --kv-cache-dtype int8_per_token_head",
        block_values=width,
        scale_bits=HEAD_SCALE_BITS,
        quantized=True,
    )
