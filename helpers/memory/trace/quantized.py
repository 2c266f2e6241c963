"""What bitsandbytes keeps of a frozen base in 4 bits, without values: for QLoRA to train on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import torch
from torch import nn

from ...catalog.errors import WorkbookError, require_name, require_package
from ...catalog.train_setup import TrainSetup
from ..measure.steps import build_model

BASES = {"nf4": False, "nf4-dq": True, "int8": False}  # by name: whether the scales are quantized too
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
BLOCK, SUPERBLOCK = 64, 256


@dataclass(frozen=True)
class QuantizedBase:
    """A base as `from_pretrained` loads it with `BitsAndBytesConfig(load_in_4bit=True)`: linear layers in `weights`.

    "int8" is `load_in_8bit=True`, traced as if no activation were an outlier.

    `dtype` is that of everything else, and bnb_4bit_compute_dtype: "fp16" on a T4, which has no BF16. `prepared` says
    that it went through peft's `prepare_model_for_kbit_training`, which casts what is not quantized, the embedding and
    the head too, to FP32: then hidden states are FP32 as well. Checkpointing is the setup's to choose, although that
    function turns it on unless told otherwise. Raises WorkbookError.
    """

    weights: str = "nf4-dq"
    dtype: str = "bf16"
    prepared: bool = True

    def __post_init__(self) -> None:
        require_name("quantized base", self.weights, BASES)
        require_name("dtype of a base", self.dtype, DTYPES)


def base_on_meta(setup: TrainSetup, base: QuantizedBase) -> nn.Module:
    """The model of `setup` with its linear layers replaced as Transformers replaces them; nothing is allocated."""
    if setup.precision == "megatron-bf16":
        do = "pass precision='bf16': what is frozen needs no master copy"
        raise WorkbookError("megatron-bf16 with a quantized base", "bf16 or autocast-bf16", do)
    return in_4_bits(build_model(replace(setup, precision="bf16"), "meta"), base)


def in_4_bits(model: nn.Module, base: QuantizedBase) -> nn.Module:
    """Any Transformers model on the meta device, made such a base. Needs bitsandbytes; raises WorkbookError.

    `without_memory` then gives each weight what bitsandbytes keeps of it.
    """
    require_package("bitsandbytes", "the trace of a 4-bit base")
    from transformers import BitsAndBytesConfig
    from transformers.integrations.bitsandbytes import replace_with_bnb_linear
    from transformers.quantizers.base import get_keys_to_not_convert

    dtype = DTYPES[base.dtype]
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    eight = base.weights == "int8"
    config = BitsAndBytesConfig(
        load_in_8bit=eight,
        load_in_4bit=not eight,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_compute_dtype=dtype,
        bnb_4bit_use_double_quant=BASES[base.weights],
    )
    with _default_dtype(dtype):  # for the biases, which the replacement makes anew
        model = replace_with_bnb_linear(model, get_keys_to_not_convert(model), config)
    setattr(model, f"is_loaded_in_{8 if eight else 4}bit", True)  # Transformers' flag
    return model.train()


def in_16_bits(model: nn.Module, dtype: str) -> nn.Module:
    """`model` on the meta device with FP16 in place of BF16, where `dtype` says so."""
    for parameter in model.parameters() if dtype == "fp16" else ():
        if parameter.dtype == torch.bfloat16:
            parameter.data = parameter.data.to(torch.float16)
    return model


def is_unpacked(tensor: torch.Tensor) -> bool:
    """Whether this is a weight that bitsandbytes would quantize on its way to a device."""
    if getattr(tensor, "quant_type", None) is not None:
        return not getattr(tensor, "bnb_quantized", False)
    return getattr(tensor, "has_fp16_weights", None) is False and tensor.dtype != torch.int8


def packed_bytes(weight: torch.Tensor) -> float:
    """Of one value, without scales."""
    return 0.5 if getattr(weight, "quant_type", None) is not None else 1


def _in_8_bits(weight: Any) -> nn.Parameter:
    """What `Int8Params._quantize` leaves: a code for each value, and an FP32 scale for each row. It reads FP16."""
    half = torch.empty(weight.shape, dtype=weight.dtype).to(torch.float16)
    scales = torch.empty(len(half))
    new: Any = nn.Parameter(torch.empty(half.shape, dtype=torch.int8), requires_grad=False)
    new.CB, new.SCB, new.has_fp16_weights = new.data, scales, False
    return new


def packed(weight: Any) -> nn.Parameter:
    """What `Params4bit._quantize` leaves of `weight`, which comes to the device whole; inside a fake mode.

    In the order of bitsandbytes' `quantize_4bit` and of its CUDA kernels. A plain parameter with Params4bit's
    attributes: fake tensors do not take that class.
    """
    from bitsandbytes.functional import QuantState

    if getattr(weight, "quant_type", None) is None:
        return _in_8_bits(weight)
    whole = torch.empty(weight.shape, dtype=weight.dtype)
    blocks = -(-whole.numel() // BLOCK)
    absmax = torch.empty(blocks)
    new: Any = nn.Parameter(torch.empty((whole.numel() + 1) // 2, 1, dtype=torch.uint8), requires_grad=False)
    code = torch.empty(16)
    nested: dict[str, object] = {}
    if weight.compress_statistics:
        offset = absmax.mean()
        centred = absmax - offset
        superblocks = torch.empty(-(-blocks // SUPERBLOCK))
        scales = QuantState(superblocks, code=torch.empty(256), blocksize=SUPERBLOCK, dtype=torch.float32)
        absmax = torch.empty_like(centred, dtype=torch.uint8)
        nested = {"offset": offset, "state2": scales}
    form = {"shape": weight.shape, "dtype": weight.dtype, "quant_type": weight.quant_type, "blocksize": BLOCK}
    new.quant_state = QuantState(absmax, code=code, **form, **nested)
    new.quant_type, new.compress_statistics = weight.quant_type, weight.compress_statistics
    new.blocksize, new.bnb_quantized = BLOCK, True
    return new


@contextlib.contextmanager
def without_outliers(cuda: bool) -> Iterator[None]:
    """LLM.int8() as if no activation exceeded the threshold: how many columns do, only values tell.

    On CUDA it is MatMul8bitLt, which looks for them all the same; a CPU decodes the weight and multiplies.
    """
    from bitsandbytes.autograd import _functions

    def quantized(x: torch.Tensor, threshold: float = 0.0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """int8_vectorwise_quant in bitsandbytes/backends/cuda/ops.py."""
        scales, codes = torch.empty(x.numel() // x.shape[-1]), torch.empty(x.shape, dtype=torch.int8)
        if threshold:
            outliers = x.abs() >= threshold  # noqa: F841 - held to the end
        return codes, scales, None

    def multiplied(x: torch.Tensor, codes: torch.Tensor, weight: torch.Tensor, *rest: Any) -> tuple[Any, Any]:
        scales, of_weight, _, bias = rest
        product = torch.ops.bitsandbytes.int8_scaled_mm.default
        return product(codes, weight, scales, of_weight, bias=bias, dtype=x.dtype), x.new_empty(0)

    with contextlib.ExitStack() as stack:
        if cuda:
            stack.enter_context(mock.patch.object(_functions.F, "int8_vectorwise_quant", quantized))
            stack.enter_context(mock.patch.object(torch.ops.bitsandbytes, "int8_mixed_scaled_mm", multiplied))
            stack.enter_context(mock.patch.object(_functions, "MatMul8bitFp", _functions.MatMul8bitLt))
            stack.enter_context(mock.patch.object(_functions.logger, "warning"))  # of each cast to FP16
        yield


@contextlib.contextmanager
def decoded_for_dora() -> Iterator[None]:
    """peft's DoRA reads the base's weight, and knows bitsandbytes' by its class, which fake tensors do not take.

    It copies the layer first, for FSDP's sake: here the layer itself does.
    """
    from bitsandbytes.functional import dequantize_4bit

    def decoded(layer: nn.Module) -> torch.Tensor:
        weight: Any = layer.weight
        state = getattr(weight, "quant_state", None)
        return weight if state is None else dequantize_4bit(weight.data, state)

    dora = "peft.tuners.lora.dora"
    with mock.patch(f"{dora}.dequantize_module_weight", decoded), mock.patch(f"{dora}.deepcopy", lambda layer: layer):
        yield


@contextlib.contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
