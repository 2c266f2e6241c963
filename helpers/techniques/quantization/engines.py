"""The field's engines on the same weights: what ours is held against, and what to use at work."""

from __future__ import annotations

import inspect
import logging
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from ...catalog.by_transformers import saved_config
from ...catalog.errors import WorkbookError, require_name, require_package
from .int8 import THRESHOLD
from .linears import OUTPUT_HEAD, dense_linears, replace_linears


def bitsandbytes_4bit(
    model: nn.Module, quant_type: str = "nf4", double_quant: bool = True, skip: tuple[str, ...] = (OUTPUT_HEAD,)
) -> nn.Module:
    """`model` with its decoder layers' linear layers as `Linear4bit`; the rest is shared with `model`.

    On a CPU with BF16 instructions (AVX-512) its first forward pass in eval mode unfolds the scales to BF16, and from
    then on it computes in BF16 whatever the input: scores differ a little from those on another CPU.
    """
    bnb = _package("bitsandbytes").nn
    how = {"compress_statistics": double_quant, "quant_type": quant_type}

    def make(linear: nn.Linear) -> nn.Module:
        _require_whole_blocks(linear)
        made = _empty(bnb.Linear4bit, linear, **how)
        made.weight = bnb.Params4bit(linear.weight.detach(), requires_grad=False, module=made, **how)
        return _filled(made, linear)

    return replace_linears(model, make, skip)


def bitsandbytes_8bit(
    model: nn.Module, threshold: float = THRESHOLD, skip: tuple[str, ...] = (OUTPUT_HEAD,)
) -> nn.Module:
    """A second model, in eval mode, whose decoder layers have `Linear8bitLt`; the rest is shared with `model`.

    In training mode bitsandbytes on CPU multiplies dequantized weights, and does not quantize activations at all.
    """
    bnb = _package("bitsandbytes").nn

    def make(linear: nn.Linear) -> nn.Module:
        made = _empty(bnb.Linear8bitLt, linear, has_fp16_weights=False, threshold=threshold)
        host = linear.weight.detach().cpu()  # Int8Params quantizes when it leaves the host, and only then
        made.weight = bnb.Int8Params(host, requires_grad=False, has_fp16_weights=False)
        return _filled(made, linear)

    return replace_linears(model, make, skip).eval()


def from_folder(folder: str | Path, bits: int = 4, double_quant: bool = True, **config: Any) -> nn.Module:
    """A saved causal language model, quantized while it is loaded: the way of a working day.

    Transformers' `BitsAndBytesConfig`, NF4 or LLM.int8(); `config` goes to it (`bnb_4bit_compute_dtype`,
    `llm_int8_skip_modules` …). No dense copy of the whole model exists at any time.
    """
    _package("bitsandbytes")
    if not (Path(folder) / "config.json").is_file():
        expected = "a folder written by model.save_pretrained"
        raise WorkbookError(f"{folder} holds no config.json", expected, "save the model there first")
    _require_four_or_eight(bits)
    transformers = _package("transformers")
    _require_known(config, transformers.BitsAndBytesConfig)
    four = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": double_quant}
    chosen = transformers.BitsAndBytesConfig(**((four if bits == 4 else {"load_in_8bit": True}) | config))
    where = {"": "cuda" if torch.cuda.is_available() else "cpu"}
    how = {"quantization_config": chosen, "device_map": where, "trust_remote_code": False}
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, config=saved_config(folder), **how)
    for module in model.modules():
        if type(module).__name__ == "Linear4bit":
            _require_whole_blocks(module)
    return model.eval()


def torchao_weights(model: nn.Module, bits: int = 8, group: int = 128) -> nn.Module:
    """`model` with torchao's weight-only quantization: int8 per row, or int4 in groups; the head stays as it is.

    Changes and returns `model` itself, as torchao does. With torchao 0.18 int8 runs on a CPU; int4 wants a GPU and the
    package mslk, and is refused without.
    """
    quantization = _package("torchao.quantization")
    _require_four_or_eight(bits)
    chosen = quantization.Int8WeightOnlyConfig() if bits == 8 else quantization.Int4WeightOnlyConfig(group_size=group)
    inside = set(map(id, dense_linears(model).values()))
    try:
        quantization.quantize_(model, chosen, filter_fn=lambda module, name: id(module) in inside)
    except ImportError as missing:
        what, expected = f"torchao's int{bits} does not run here: {missing}", "a GPU, and the package that it names"
        raise WorkbookError(what, expected, "pass bits=8, or use bitsandbytes_4bit") from None
    return model


def _require_four_or_eight(bits: int) -> None:
    if bits not in (4, 8):
        raise WorkbookError(f"bits is {bits!r}", "4 or 8, what these engines have", "pass bits=8")


def _require_known(config: dict[str, Any], kind: type) -> None:
    """Transformers only logs a keyword that it does not know, and quantizes without it."""
    allowed = sorted(set(inspect.signature(kind).parameters) - {"kwargs"})
    for name in config:
        require_name("setting", name, allowed)


def _require_whole_blocks(linear: nn.Linear) -> None:
    """bitsandbytes 0.50 on CPU decodes a row of 96 values with the wrong scales, and asserts on 48 rows."""
    shape = [linear.out_features, linear.in_features]
    if linear.weight.device.type == "cpu" and (shape[0] % 32 or shape[1] % 64):
        what = f"a weight of shape {shape} in bitsandbytes' 4 bits on CPU"
        raise WorkbookError(what, "rows that 32 divides, of values that 64 divides", "use NF4Linear, or a GPU")


def _empty(kind: type[nn.Module], linear: nn.Linear, **how: Any) -> nn.Module:
    """A layer of bitsandbytes with the sizes of `linear`, and nothing in it."""
    return kind(linear.in_features, linear.out_features, linear.bias is not None, **how, device="meta")


def _filled(made: nn.Module, linear: nn.Linear) -> nn.Module:
    """`made` with the bias of `linear`, moved to its device: the move is what quantizes."""
    if linear.bias is not None:
        made.bias = nn.Parameter(linear.bias.detach(), requires_grad=False)
    return made.to(linear.weight.device)


def _package(name: str) -> ModuleType:
    """An engine, imported when it is asked for."""
    # It warns at import and at every call, on some CPUs only: about kernels it could download, and casts to FP16.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    return require_package(name, "this engine")
