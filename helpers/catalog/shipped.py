"""The format that a checkpoint ships in, as the `quantization_config` of its config.json says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from .errors import WorkbookError
from .formats import NUMBER_FORMATS, NumberFormat, number_format
from .layers import LINEAR_PARTS
from .shape import ModelShape

SHIPPED = "shipped"  # stands for the checkpoint's own format, wherever weights are in one
PLAIN = "bf16"  # of a checkpoint that is not quantized; FP16 is the same to memory
_LEFT_OUT = ("modules_to_not_convert", "llm_int8_skip_modules", "ignored_layers")  # in 16 bits, by each tool's word
_PARTS = {"self_attn": "attention", "block_sparse_moe": "experts"}


def shipped(model: ModelShape) -> tuple[str, tuple[str, ...] | None]:
    """The name of the format, and the linear layers left in 16 bits beside those that its tool always leaves.

    WorkbookError where the config says something that is not understood: bytes would be a guess.

    >>> from helpers.catalog import model
    >>> shipped(model("gpt-oss-20b")), shipped(model("llama-3-8b"))
    (('mxfp4', None), ('bf16', None))
    """
    found = model.config.get("quantization_config")
    if not found:
        return PLAIN, None
    if not isinstance(found, Mapping):
        raise _not_understood(model, f"a quantization_config that is {found!r:.60}")
    in_bits = found.get("load_in_4bit") or found.get("load_in_8bit")
    method = str(found.get("quant_method") or ("bitsandbytes" if in_bits else "")).lower()
    weights = _METHODS[method](found) if method in _METHODS else ""
    if weights not in NUMBER_FORMATS:
        sizes = (f"{key} {found[key]}" for key in ("bits", "group_size", "fmt") if key in found)
        raise _not_understood(model, ", ".join((f"quant_method {method or None!r}", *sizes)))
    return weights, _left_out(model, found, number_format(weights))


def told(model: ModelShape, weights: str) -> str:
    """How a quantized checkpoint ships, in words: 'MXFP4 experts, BF16 rest'."""
    experts = number_format(weights).experts_only and any(layer.mlp.experts for layer in model.layers)
    return f"{weights.upper()} {'experts' if experts else 'linear layers'}, {PLAIN.upper()} rest"


def _fp8(found: Mapping) -> str:
    """DeepSeek's and Qwen's in blocks of 128 x 128, too: an FP32 for each is 0.02 % more, and not counted."""
    return f"fp8-{found.get('fmt', 'e4m3')}"


def _grouped(found: Mapping, library: Mapping[tuple[object, object], str]) -> str:
    size = found.get("bits", found.get("w_bit", 4)), found.get("group_size", found.get("q_group_size", 128))
    return library.get(size, f"int{size[0]}-g{size[1]}")


def _bitsandbytes(found: Mapping) -> str:
    """FP4, its default, has NF4's bytes; NF4 is what people load."""
    if found.get("load_in_8bit"):
        return "int8"
    four_bits = "nf4-dq" if found.get("bnb_4bit_use_double_quant") else "nf4"
    return four_bits if found.get("load_in_4bit") else ""


_METHODS: dict[str, Callable[[Mapping], str]] = {
    "fp8": _fp8,
    "mxfp4": lambda found: "mxfp4",
    "awq": lambda found: _grouped(found, {(4, 128): "awq-int4"}),
    "gptq": lambda found: _grouped(found, {(4, 128): "gptq-int4", (8, 128): "gptq-int8"}),
    "bitsandbytes": _bitsandbytes,
}


def _left_out(model: ModelShape, found: Mapping, rule: NumberFormat) -> tuple[str, ...] | None:
    """Of the modules that the config names, the linear layers; where they are all those of their name.

    "model.layers.0.mlp.gate" is a router and no linear layer here. A q_proj that is left out in some layers only has no
    word in `ServeSetup.skipped`.
    """
    if rule.experts_only:  # which leaves out all the others without being told
        return None
    linears = dict.fromkeys((*LINEAR_PARTS, *(group.linear.name for group in model.linears())))
    layers: dict[str, set[str]] = {}
    for path in _names(model, found):
        *within, last = path.split(".")
        name = _PARTS.get(last, last)
        if name in linears and name not in rule.keeps:
            layers.setdefault(name, set()).add(next((step for step in within if step.isdigit()), ""))
    for name, numbers in layers.items():
        if "" not in numbers and len(numbers) < len(model.layers):
            raise _not_understood(model, f"{name} in 16 bits in {len(numbers)} of {len(model.layers)} layers")
    return (*rule.keeps, *layers) if layers else None


def _names(model: ModelShape, found: Mapping) -> Iterator[str]:
    for key in _LEFT_OUT:
        listed = found.get(key) or ()
        if isinstance(listed, str) or not isinstance(listed, Iterable):
            raise _not_understood(model, f"{key} that is {listed!r:.60}")
        yield from map(str, listed)


def _not_understood(model: ModelShape, what: str) -> WorkbookError:
    expected = f"a quantization_config of {', '.join(_METHODS)}, with layers left out by name in all of the model"
    do = f"say the format, as in --weights int4-g128, in Python weights='int4-g128'; {PLAIN} is the model dequantized"
    return WorkbookError(f"{model.name} ships with {what}, whose bytes are not known here", expected, do)
