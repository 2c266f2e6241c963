"""What each kernel reads and writes, counted as PyTorch dispatches it: the bytes an uncached machine would move.

A view moves nothing. Anything else reads its tensor arguments once, each distinct element once (an expanded tensor is
small), and writes its results. In-place operators read what they change, unless they only overwrite it. FLOPs are
those of `torch.utils.flop_counter`, which knows matrix products, convolutions and attention.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from ..meter.leaves import leaves
from ..meter.meter import wraps_others
from ..work import Work

_aten = torch.ops.aten
FLOPS = flop_registry | {  # attention on a CPU is one kernel that the registry does not list
    _aten._scaled_dot_product_flash_attention_for_cpu: flop_registry[_aten._scaled_dot_product_flash_attention]
}
OVERWRITES = {_aten.copy_, _aten.fill_, _aten.zero_, _aten.normal_, _aten.uniform_}
PLACES = {_aten.index_put_, _aten.index_copy_, _aten.index_add_, _aten.scatter_}  # rows, not the whole target
LOOKS_UP = {_aten.embedding, _aten.index_select, _aten.gather, _aten.index, _aten.take}  # reads rows, not the table
MOVES_NOTHING = {_aten.empty, _aten.empty_like, _aten.empty_strided, _aten.new_empty, _aten.new_empty_strided}


class Traffic(TorchDispatchMode):
    """Counts while it is active: `kernels` is a list of (name, Work), `bytes` and `flops` are their sums.

    >>> x = torch.zeros(1000)
    >>> with Traffic() as moved:
    ...     y = (x * 2).add_(1)
    >>> [(name, work.bytes) for name, work in moved.kernels]
    [('mul', 8000), ('add_', 8000)]
    """

    def __init__(self) -> None:
        super().__init__()
        self.kernels: list[tuple[str, Work]] = []

    @property
    def bytes(self) -> int:
        return sum(work.bytes for _, work in self.kernels)

    @property
    def flops(self) -> int:
        return sum(work.flops for _, work in self.kernels)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None) -> Any:
        if wraps_others(types):
            return NotImplemented
        kwargs = kwargs or {}
        if torch.is_inference_mode_enabled():
            with self:  # composite operators arrive whole there: take them apart, as autograd does elsewhere
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        result = func(*args, **kwargs)
        if func._overloadpacket not in MOVES_NOTHING:
            call = _Call(func, args, kwargs, result)
            read_bytes, written_bytes = call.moved()
            if read_bytes + written_bytes:
                self.kernels.append((call.packet.__name__, Work(call.flops, read_bytes, written_bytes)))
        return result


class _Call:
    """One operator call: which of its tensors it reads and which it writes."""

    def __init__(self, func: Any, args: tuple, kwargs: dict, result: Any) -> None:
        self.packet, self.args, self.kwargs, self.result = func._overloadpacket, args, kwargs, result
        named = list(zip(func._schema.arguments, args, strict=False))
        named += [(one, kwargs[one.name]) for one in func._schema.arguments if one.name in kwargs]
        changed = _tensors([value for argument, value in named if self._writes(argument)])
        given = {tensor.untyped_storage()._cdata for tensor in _tensors([value for _, value in named])}
        made = [tensor for tensor in _tensors(result) if tensor.untyped_storage()._cdata not in given]
        self.written = made + changed
        kept = [value for argument, value in named if not self._overwrites(argument)]
        self.read = _tensors(kept) if self.written else []

    def _writes(self, argument: Any) -> bool:
        """A fused optimizer may write its gradients, and does so where it unscales them (fused_adam_utils.cuh)."""
        unscaled = argument.name == "grads" and self.kwargs.get("grad_scale") is None
        return _is_written(argument) and not unscaled

    def _overwrites(self, argument: Any) -> bool:
        """True for `out=` tensors, and for the target of operators that do not look at what was there."""
        return _is_written(argument) and (argument.is_out or self.packet in OVERWRITES)

    def moved(self) -> tuple[int, int]:
        """Bytes read and bytes written; for a lookup or a placement those of the rows, not of the table."""
        read_bytes, written_bytes = _distinct(self.read), _distinct(self.written)
        if self.packet in LOOKS_UP:
            return min(_size(self.read[0]), written_bytes) + _distinct(self.read[1:]), written_bytes
        if self.packet in PLACES:
            target, *others = self.read
            rows = min(_size(target), max(map(_size, others)))
            return _distinct(others) + (rows if self.packet is _aten.index_add_ else 0), rows
        return read_bytes, written_bytes

    @property
    def flops(self) -> int:
        count = FLOPS.get(self.packet)
        return count(*self.args, **self.kwargs, out_val=self.result) if count else 0


def _is_written(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in leaves(value) if isinstance(leaf, torch.Tensor)]


def _distinct(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of several tensors; the same place of the same storage counts once, under whatever shape."""
    places = {(t.untyped_storage()._cdata, t.storage_offset() * t.element_size(), _size(t)) for t in tensors}
    return sum(size for _, _, size in places)


def _size(tensor: torch.Tensor) -> int:
    """Bytes of the distinct elements: a dimension of stride 0 repeats the same ones."""
    distinct = 1
    for length, stride in zip(tensor.shape, tensor.stride(), strict=True):
        distinct *= length if stride or length == 0 else 1
    return distinct * tensor.element_size()
