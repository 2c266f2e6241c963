"""The format that a checkpoint ships in, as the `quantization_config` of its config.json says."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress

from .errors import WorkbookError
from .formats import GGUF, NUMBER_FORMATS, number_format
from .gguf_header import of_types
from .shape import ModelShape
from .unquantized import marked, require_readable

SHIPPED = "shipped"  # stands for the checkpoint's own format, wherever weights are in one
PLAIN = "bf16"  # of a checkpoint that is not quantized; FP16 is the same to memory
LEFT_OUT = (SHIPPED,)  # as `ServeSetup.skipped`: the linear layers that the checkpoint itself leaves in 16 bits
# In 16 bits, by the word of each tool
_KEYS = ("modules_to_not_convert", "llm_int8_skip_modules", "ignored_layers", "ignore", "exclude_modules")


def shipped(model: ModelShape) -> tuple[str, tuple[str, ...] | None]:
    """The name of the format, and LEFT_OUT where the config names linear layers that stay in 16 bits.

    WorkbookError where the config says something that is not understood: bytes would be a guess.

    >>> from helpers.catalog import model
    >>> shipped(model("gpt-oss-20b")), shipped(model("llama-3-8b"))
    (('mxfp4', None), ('bf16', None))
    """
    if model.stored:
        return GGUF.name, None
    found = model.config.get("quantization_config")
    if not found:
        return PLAIN, None
    if not isinstance(found, Mapping):
        raise _not_understood(model, f"a quantization_config that is {found!r:.60}")
    method, weights = _method(found), ""
    with suppress(TypeError, AttributeError):  # a value of a type that no tool writes
        weights = _METHODS[method](found) if method in _METHODS else ""
    if weights not in NUMBER_FORMATS:
        raise _not_understood(model, _said(method, found))
    try:
        patterns, _ = left_out_rules(model.config)
    except ValueError as problem:
        raise _not_understood(model, str(problem)) from None
    if method == "mxfp4":  # OpenAI's, which leaves out all but the experts without being told
        return weights, None
    named = patterns or _targets(found) or number_format(weights).experts_only
    return weights, LEFT_OUT if named else None


def with_left_out(model: ModelShape) -> ModelShape:
    """`model` with the linear layers marked that its quantized checkpoint leaves in 16 bits."""
    with suppress(ValueError):  # which `shipped` tells whoever asks for the format
        return marked(model, *left_out_rules(model.config))
    return model


def left_out_rules(config: Mapping[str, object]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The patterns of what a config leaves out, and of what alone it quantizes, as `unquantized` reads them.

    ValueError where it has them in a form of its own.
    """
    found = config.get("quantization_config")
    if not isinstance(found, Mapping) or _method(found) == "mxfp4":
        return (), ()
    patterns, targets = tuple(_patterns(found)), _targets(found)
    for pattern in (*patterns, *targets):
        require_readable(pattern)
    return patterns, targets


def fp8_block(model: ModelShape) -> tuple[int, int] | None:
    """Outputs and inputs that share an FP32 scale in a checkpoint in FP8; None where a weight has one.

    `weight_block_size` of the config: [128, 128] in DeepSeek-V3 and Qwen3's FP8. They are weight_scale_inv.
    """
    found = model.config.get("quantization_config")
    block = found.get("weight_block_size") if isinstance(found, Mapping) else None
    match block:
        case [int(outputs), int(inputs)] if outputs > 0 and inputs > 0:
            return outputs, inputs
    return None


def told(model: ModelShape, weights: str) -> str:
    """How a quantized checkpoint ships, in words: 'MXFP4 experts, BF16 rest'."""
    if model.stored:
        sizes = ((name, size / 2**30) for name, size in of_types(model.stored))
        return ", ".join(f"{name.upper()} {size:.2f} GiB" for name, size in sizes if size >= 0.005) or "GGUF"
    groups = [one for one in model.linears() if one.part != "lm_head" and not one.linear.kept]
    alone = number_format(weights).experts_only or {one.part for one in groups} == {"experts"}
    experts = alone and model.has_experts
    return f"{weights.upper()} {'experts' if experts else 'linear layers'}, {PLAIN.upper()} rest"


def _method(found: Mapping) -> str:
    in_bits = found.get("load_in_4bit") or found.get("load_in_8bit")
    return str(found.get("quant_method") or ("bitsandbytes" if in_bits else "")).lower()


def _said(method: str, found: Mapping) -> str:
    keys = ("bits", "group_size", "fmt", "format", "quant_algo", "quant_type")
    return ", ".join(
        (f"quant_method {method or None!r}", *(f"{key} {found[key]!s:.60}" for key in keys if key in found))
    )


def _fp8(found: Mapping) -> str:
    """DeepSeek's and Qwen's in blocks of 128 x 128, too: `fp8_block` has their size."""
    return f"fp8-{str(found.get('fmt') or 'e4m3').removeprefix('float8_').removesuffix('fn')}"


def _grouped(found: Mapping, library: Mapping[tuple[object, object], str]) -> str:
    size = found.get("bits", found.get("w_bit", 4)), found.get("group_size", found.get("q_group_size", 128))
    return library.get(size, f"int{size[0]}-g{size[1]}")


def _gptq(found: Mapping) -> str:
    """GPTQModel's `dynamic` leaves layers out behind "-:"; other bits for some, behind "+:", are not understood."""
    rules = found.get("dynamic") or {}
    if not isinstance(rules, Mapping) or not all(str(rule).startswith("-:") for rule in rules):
        return ""
    return _grouped(found, {(4, 128): "gptq-int4", (8, 128): "gptq-int8"})


def _auto_round(found: Mapping) -> str:
    """Intel's, packed as GPTQ packs; a layer of its own in `extra_config` is left out if it has 16 bits or more."""
    others = (found.get("extra_config") or {}).values()
    bits = (one.get("bits", found.get("bits")) for one in others)
    return "" if any(one not in (16, 32, found.get("bits")) for one in bits) else _grouped(found, {})


def _bitsandbytes(found: Mapping) -> str:
    """FP4, its default, has NF4's bytes; NF4 is what people load."""
    if found.get("load_in_8bit"):
        return "int8"
    four_bits = "nf4-dq" if found.get("bnb_4bit_use_double_quant") else "nf4"
    return four_bits if found.get("load_in_4bit") else ""


def _compressed_tensors(found: Mapping) -> str:
    """Of all its groups, if they are of one format. FP8's scales for each row, of 2 or 4 bytes, are not counted."""
    groups = [one.get("weights") for one in _config_groups(found)]
    formats = {_scheme(one) if isinstance(one, Mapping) else "" for one in groups}
    return formats.pop() if len(formats) == 1 else ""


_FLOATS: dict[object, str] = {
    (8, None): "fp8-e4m3",
    (8, 32): "mxfp8",
    (4, 16): "nvfp4",
    (4, 32): "mxfp4",
}  # by bits, group


def _scheme(weights: Mapping) -> str:
    """llm-compressor's schemes: W4A16, W8A16, W8A8, FP8, NVFP4 and MXFP4, by what they say of a weight."""
    kind, bits, group = weights.get("type"), weights.get("num_bits"), weights.get("group_size")
    if kind == "float":
        return _FLOATS.get((bits, group or None), "")
    if group in (None, 0, -1):  # one scale for a row
        return "w8a8" if bits == 8 and weights.get("symmetric", True) else ""
    return f"w{bits}a16-g{group}" if weights.get("symmetric", True) else f"int{bits}-g{group}"


def _modelopt(found: Mapping) -> str:
    algorithm, group = str(found.get("quant_algo") or "").upper(), found.get("group_size", 128)
    if not algorithm and found.get("config_groups"):
        return _compressed_tensors(found)
    names = {"FP8": "fp8-e4m3", "FP8_PB_WO": "fp8-e4m3", "FP8_PER_CHANNEL_PER_TOKEN": "fp8-e4m3", "MXFP8": "mxfp8"}
    names |= dict.fromkeys(("NVFP4", "NVFP4_AWQ", "W4A16_NVFP4"), "nvfp4")
    return (names | {"W4A16_AWQ": f"w4a16-g{group}", "W8A8_SQ_PER_CHANNEL": "w8a8"}).get(algorithm, "")


def _torchao(found: Mapping) -> str:
    """By the name of its old functions or of today's configs; a config for each module is not understood."""
    kind, data = found.get("quant_type"), found.get("quant_type_kwargs") or {}
    if isinstance(kind, Mapping):
        default = kind.get("default")
        kind, data = (default.get("_type"), default.get("_data") or {}) if isinstance(default, Mapping) else ("", {})
    name = re.sub(r"config$|_", "", str(kind).lower())
    if name == "int4weightonly":
        return f"torchao-int4-g{data.get('group_size', 128)}"
    rows = ("int8weightonly", "int8dynamicactivationint8weight")
    floats = ("float8weightonly", "float8dynamicactivationfloat8weight", "float8staticactivationfloat8weight")
    nvfp4 = ("nvfp4weightonly", "nvfp4dynamicactivationnvfp4weight", "nvfp4inference")
    return (dict.fromkeys(rows, "w8a8") | dict.fromkeys(floats, "fp8-e4m3") | dict.fromkeys(nvfp4, "nvfp4")).get(
        name, ""
    )


_METHODS: dict[str, Callable[[Mapping], str]] = {
    "fp8": _fp8,
    "fbgemm_fp8": _fp8,
    "mxfp4": lambda found: "mxfp4",
    "awq": lambda found: _grouped(found, {(4, 128): "awq-int4"}),
    "gptq": _gptq,
    "auto-round": _auto_round,
    "bitsandbytes": _bitsandbytes,
    "compressed-tensors": _compressed_tensors,
    "modelopt": _modelopt,
    "torchao": _torchao,
}


def _config_groups(found: Mapping) -> tuple[Mapping, ...]:
    groups = found.get("config_groups")
    return tuple(one for one in groups.values() if isinstance(one, Mapping)) if isinstance(groups, Mapping) else ()


def _targets(found: Mapping) -> tuple[str, ...]:
    """The modules that compressed-tensors' groups or GPTQ's blocks name; none where "Linear" stands for all of them."""
    named = [target for one in _config_groups(found) for target in _listed(one, "targets")]
    blocks = found.get("modules_in_block_to_quantize") or []
    if not isinstance(blocks, list):
        raise ValueError(f"modules_in_block_to_quantize that is {blocks!r:.60}")
    for block in blocks:
        named += block if isinstance(block, list) else [block]
    return () if "Linear" in named else tuple(map(str, named))


def _patterns(found: Mapping) -> Iterator[str]:
    """What the config leaves out, by the word of each tool."""
    for key in _KEYS:
        yield from _listed(found, key)
    for key in ("dynamic", "extra_config"):
        rules = found.get(key)
        if isinstance(rules, Mapping):
            yield from (name for name, one in rules.items() if name.startswith("-:") or _is_16_bits(one))


def _is_16_bits(rule: object) -> bool:
    return isinstance(rule, Mapping) and rule.get("bits") in (16, 32)


def _listed(found: Mapping, key: str) -> tuple[str, ...]:
    listed = found.get(key) or ()
    if isinstance(listed, str) or not isinstance(listed, Iterable):
        raise ValueError(f"{key} that is {listed!r:.60}")
    return tuple(map(str, listed))


def _not_understood(model: ModelShape, what: str) -> WorkbookError:
    expected = f"a quantization_config of {', '.join(_METHODS)}, with one format in all of the model"
    do = f"say the format, as in --weights int4-g128, in Python weights='int4-g128'; {PLAIN} is the model dequantized"
    return WorkbookError(f"{model.name} ships with {what}, whose bytes are not known here", expected, do)
