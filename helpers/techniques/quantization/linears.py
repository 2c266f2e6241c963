"""Linear layers that hold their weight quantized, and models in which they take the place of the dense ones."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import torch.nn.functional as F
from torch import Tensor, nn

from ...catalog.errors import WorkbookError, require_name, require_number, unknown_name
from ...memory.meter.watch import attached_tensors
from .grids import Grid
from .int8 import THRESHOLD, Int8Tensor, llm_int8, w8a8
from .nf4 import NF4Tensor
from .packing import QuantizedTensor, Stored, storage_bytes

OUTPUT_HEAD = "lm_head"


class StoredLinear(nn.Module):
    """A linear layer [in_features] -> [out_features] whose weight lives in buffers, as `Stored` laid it out.

    Dequantize, then multiply: the weight exists densely for the length of a call, in the input's dtype. Nothing here
    is trained, but gradients reach the input. Its state_dict holds the codes and scales under their own names.
    """

    bias: Tensor | None

    def __init__(self, stored: Stored, bias: Tensor | None = None) -> None:
        super().__init__()
        self._kind, self._facts = type(stored), stored.facts
        self.out_features, self.in_features = stored.shape
        for name, tensor in stored.tensors.items():
            self.register_buffer(name, tensor)
        self.register_buffer("bias", None if bias is None else bias.detach())

    @property
    def stored(self) -> Stored:
        """The quantized weight: its `nbytes`, its `dequantize()`."""
        kept = {name: tensor for name, tensor in self._buffers.items() if name != "bias"}
        return self._kind(**kept, **self._facts)

    def forward(self, x: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return F.linear(x, self.stored.dequantize(x.dtype), bias)

    def extra_repr(self) -> str:
        shape = f"in_features={self.in_features}, out_features={self.out_features}"
        return f"{shape}, {self._kind.__name__} of {self.stored.nbytes:,} bytes"


class QuantizedLinear(StoredLinear):
    """A linear layer on a Grid."""

    @classmethod
    def of(cls, linear: nn.Linear, grid: Grid) -> QuantizedLinear:
        """`linear` rounded to the nearest levels of `grid`."""
        return cls(QuantizedTensor.of(linear.weight.detach(), grid), linear.bias)


class NF4Linear(StoredLinear):
    """A linear layer in NF4."""

    @classmethod
    def of(cls, linear: nn.Linear, double_quant: bool = True) -> NF4Linear:
        return cls(NF4Tensor.of(linear.weight.detach(), double_quant), linear.bias)


class Int8Linear(StoredLinear):
    """A linear layer that multiplies in int8: mode "w8a8" quantizes every activation, "llm.int8" all but outliers."""

    def __init__(
        self, stored: Int8Tensor, bias: Tensor | None = None, mode: str = "w8a8", threshold: float = THRESHOLD
    ) -> None:
        require_name("mode", mode, ("w8a8", "llm.int8"))
        do = "pass threshold=6.0, or mode='w8a8'"
        require_number("threshold", threshold, expected="a number above 0", do=do)
        super().__init__(stored, bias)
        self.mode, self.threshold = mode, threshold

    @classmethod
    def of(cls, linear: nn.Linear, mode: str = "w8a8", threshold: float = THRESHOLD) -> Int8Linear:
        return cls(Int8Tensor.of(linear.weight.detach()), linear.bias, mode, threshold)

    def forward(self, x: Tensor) -> Tensor:
        stored = cast(Int8Tensor, self.stored)
        if self.mode == "w8a8":
            return w8a8(x, stored, self.bias)
        return llm_int8(x, stored, self.bias, self.threshold)


def dense_linears(model: nn.Module, skip: tuple[str, ...] = (OUTPUT_HEAD,)) -> dict[str, nn.Linear]:
    """The dense linear layers by their dotted name, without those that have a part of the name in `skip`.

    Without the head those of a decoder are all inside its layers; embeddings and norms are no linear layers.
    """
    parts = {part for name, _ in model.named_modules() for part in name.split(".")}
    for name in skip:
        if name not in parts and name != OUTPUT_HEAD:
            raise unknown_name("module to skip", name, sorted(parts - {""}))
    found = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    kept = {name: module for name, module in found.items() if not set(skip) & set(name.split("."))}
    if not kept:
        do = "pass a dense model (GPT-2's Conv1D is not nn.Linear), and check `skip`"
        raise WorkbookError(f"{type(model).__name__} has no linear layer to replace", "torch.nn.Linear modules", do)
    return kept


def replace_linears(
    model: nn.Module, make: Callable[[nn.Linear], nn.Module], skip: tuple[str, ...] = (OUTPUT_HEAD,)
) -> nn.Module:
    """`model` with `make(linear)` in the place of every linear layer inside its decoder layers; see `swapped`.

    >>> small = replace_linears(model, functools.partial(QuantizedLinear.of, grid=Grid(bits=4)))
    """
    return swapped(model, {name: make(linear) for name, linear in dense_linears(model, skip).items()})


def swapped(model: nn.Module, modules: Mapping[str, nn.Module]) -> nn.Module:
    """A second model with `modules` at their dotted names; `model` stays as it is.

    What is not replaced (embeddings, norms, the head) is shared with `model`, not copied: the new model costs no
    more memory than its new layers, and to train or rescale one of the two, deepcopy it first.
    """
    old = dict(model.named_modules())
    for name, module in modules.items():
        module.train(old[require_name("module", name, sorted(old)[1:])].training)
    memo: dict[int, Any] = {id(old[name]): module for name, module in modules.items()}
    memo |= {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    return copy.deepcopy(model, memo)


def model_bytes(model: nn.Module) -> int:
    """Bytes of the weights as they lie in memory: parameters, persistent buffers, and what bitsandbytes keeps beside.

    Each storage counts once, so tied weights do too. Buffers that a checkpoint does not hold (the rotary frequencies)
    are constants, not weights, and are left out. bitsandbytes hangs its scales on parameters and states, not in
    buffers; they count. On a CPU with BF16 instructions it unfolds them in its first forward pass: ask before.
    """
    return storage_bytes(_weights(model))


def _weights(model: nn.Module) -> Iterator[Tensor]:
    for module in model.modules():
        lasting = (tensor for name, tensor in module._buffers.items() if name not in module._non_persistent_buffers_set)
        for tensor in (*module._parameters.values(), *lasting):
            for weight in () if tensor is None else _unwrapped(tensor):
                yield weight
                yield from attached_tensors(weight)
        state = getattr(module, "state", None)  # the MatmulLtState of a Linear8bitLt
        yield from (value for value in getattr(state, "__dict__", {}).values() if isinstance(value, Tensor))


def _unwrapped(tensor: Tensor) -> Iterator[Tensor]:
    """A tensor, or those inside a wrapper such as torchao's."""
    if not hasattr(tensor, "__tensor_flatten__"):
        yield tensor
        return
    for name in tensor.__tensor_flatten__()[0]:
        yield from _unwrapped(getattr(tensor, name))
