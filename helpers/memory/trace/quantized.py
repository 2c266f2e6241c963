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
from ...catalog.setup import TrainSetup
from ..measure.steps import build_model

BASES = {"nf4": False, "nf4-dq": True}  # by name: whether the scales are quantized too
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
BLOCK, SUPERBLOCK = 64, 256


@dataclass(frozen=True)
class QuantizedBase:
    """A base as `from_pretrained` loads it with `BitsAndBytesConfig(load_in_4bit=True)`: linear layers in `weights`.

    `dtype` is that of everything else, and bnb_4bit_compute_dtype: "fp16" on a T4, which has no BF16. `prepared` says
    that it went through peft's `prepare_model_for_kbit_training`, which casts what is not quantized, the embedding and
    the head too, to FP32: then hidden states are FP32 as well. Checkpointing is the setup's to choose, although that
    function turns it on unless told otherwise. Raises WorkbookError.
    """

    weights: str = "nf4-dq"
    dtype: str = "bf16"
    prepared: bool = True

    def __post_init__(self) -> None:
        if self.weights == "int8":
            what = "an int8 base cannot be traced: LLM.int8() looks for outliers in the activations"
            raise WorkbookError(what, ", ".join(BASES), "measure it for real: helpers.memory.measure.step")
        require_name("4-bit base", self.weights, BASES)
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
    config = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_compute_dtype=dtype,
        bnb_4bit_use_double_quant=BASES[base.weights],
    )
    with _default_dtype(dtype):  # for the biases, which the replacement makes anew
        model = replace_with_bnb_linear(model, get_keys_to_not_convert(model), config)
    model.is_loaded_in_4bit = True  # type: ignore[assignment] # Transformers' flag on the module, no submodule
    return model.train()


def in_16_bits(model: nn.Module, dtype: str) -> nn.Module:
    """`model` on the meta device with FP16 in place of BF16, where `dtype` says so."""
    for parameter in model.parameters() if dtype == "fp16" else ():
        if parameter.dtype == torch.bfloat16:
            parameter.data = parameter.data.to(torch.float16)
    return model


def is_unpacked(tensor: torch.Tensor) -> bool:
    """Whether this is a weight that bitsandbytes would quantize on its way to a device."""
    return getattr(tensor, "quant_type", None) is not None and not getattr(tensor, "bnb_quantized", False)


def packed(weight: Any) -> nn.Parameter:
    """What `Params4bit._quantize` leaves of `weight`, which comes to the device whole; inside a fake mode.

    In the order of bitsandbytes' `quantize_4bit` and of its CUDA kernels. A plain parameter with Params4bit's
    attributes: fake tensors do not take that class.
    """
    from bitsandbytes.functional import QuantState

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
