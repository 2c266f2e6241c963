"""A frozen base in 4 bits without values: the tensors that bitsandbytes keeps of a model, for QLoRA to train on."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import nn

from ...catalog.errors import WorkbookError, unknown_name
from ...catalog.setup import TrainSetup
from ..measure.steps import build_model

if TYPE_CHECKING:
    from .record import Session

BASES = {"nf4": False, "nf4-dq": True}  # by name: whether the scales are quantized too
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
BLOCK, SUPERBLOCK = 64, 256
DYNAMIC_MAP_BYTES = 4 * 256  # name2qmap["dynamic"] in bitsandbytes/functional.py: one for all layers, made at the first


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
            raise WorkbookError(
                "an int8 base cannot be traced: LLM.int8() looks for outliers in the activations",
                ", ".join(BASES),
                "measure it for real: helpers.memory.measure.step",
            )
        for kind, name, known in (("4-bit base", self.weights, BASES), ("dtype of a base", self.dtype, DTYPES)):
            if not isinstance(name, str) or name not in known:
                raise unknown_name(kind, name, known)


def base_on_meta(setup: TrainSetup, base: QuantizedBase) -> nn.Module:
    """The model of `setup` with its linear layers replaced as Transformers replaces them; nothing is allocated."""
    if setup.precision == "megatron-bf16":
        raise WorkbookError(
            "megatron-bf16 with a quantized base",
            "bf16 or autocast-bf16",
            "pass precision='bf16': what is frozen needs no master copy",
        )
    return in_4_bits(build_model(replace(setup, precision="bf16"), "meta"), base)


def in_4_bits(model: nn.Module, base: QuantizedBase) -> nn.Module:
    """Any Transformers model on the meta device, made such a base. Needs bitsandbytes; raises WorkbookError.

    `without_memory` then gives each weight what bitsandbytes keeps of it.
    """
    _require_bitsandbytes()
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
    model.is_loaded_in_4bit = True
    return model.train()


def prepare(model: nn.Module, base: QuantizedBase, session: Session) -> None:
    """What happens to a base between loading it and giving it adapters, inside `fake()`."""
    if session.device == "cuda" and BASES[base.weights]:
        session.meter.hold(DYNAMIC_MAP_BYTES, "bitsandbytes: levels of an 8-bit scale")
    if base.prepared:
        from peft import prepare_model_for_kbit_training

        prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)


def is_unpacked(tensor: torch.Tensor) -> bool:
    """Whether this is a weight that bitsandbytes would quantize on its way to a device."""
    return getattr(tensor, "quant_type", None) is not None and not tensor.bnb_quantized


def packed(weight: torch.Tensor) -> nn.Parameter:
    """What `Params4bit._quantize` leaves of `weight`, which comes to the device whole; inside a fake mode.

    In the order of bitsandbytes' `quantize_4bit` and of its CUDA kernels. A plain parameter with Params4bit's
    attributes: fake tensors do not take that class.
    """
    from bitsandbytes.functional import QuantState

    whole = torch.empty(weight.shape, dtype=weight.dtype)
    blocks = -(-whole.numel() // BLOCK)
    absmax = torch.empty(blocks)
    new = nn.Parameter(torch.empty((whole.numel() + 1) // 2, 1, dtype=torch.uint8), requires_grad=False)
    code, nested = torch.empty(16), {}
    if weight.compress_statistics:
        offset = absmax.mean()
        centred = absmax - offset
        scales = QuantState(
            absmax=torch.empty(-(-blocks // SUPERBLOCK)),
            code=torch.empty(256),
            blocksize=SUPERBLOCK,
            dtype=torch.float32,
        )
        absmax = torch.empty_like(centred, dtype=torch.uint8)
        nested = {"offset": offset, "state2": scales}
    new.quant_state = QuantState(
        absmax=absmax,
        shape=weight.shape,
        code=code,
        blocksize=BLOCK,
        dtype=weight.dtype,
        quant_type=weight.quant_type,
        **nested,
    )
    new.quant_type, new.compress_statistics = weight.quant_type, weight.compress_statistics
    new.blocksize, new.bnb_quantized = BLOCK, True
    return new


@contextlib.contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def quiet_import() -> Iterator[None]:
    """For importing bitsandbytes, or peft, which does: what it says about kernels that it does not find is no news."""
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def _require_bitsandbytes() -> None:
    try:
        with quiet_import():
            import bitsandbytes  # noqa: F401
    except ImportError:
        raise WorkbookError(
            "a 4-bit base is traced through bitsandbytes, which is not installed",
            "the package bitsandbytes",
            "pip install --no-deps bitsandbytes",
        ) from None
