"""What an operator returns, remembered: a model's layers ask for the same shapes again and again.

A fake mode finds out by running the operator's rule for shapes, and its own cache takes most of a trace's time to look
up. Here only operators are remembered that change nothing and return one tensor, new or a view of their first argument,
asked with plain fake tensors.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import cache
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor


class Made(NamedTuple):
    """A result: its size and stride in elements, and where it begins if it is a view of the first argument."""

    size: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    offset: int | None


class Shapes:
    """Results by operator and arguments, of one fake mode."""

    def __init__(self) -> None:
        self.known: dict[Hashable, Made] = {}

    def call(self, func: Any, args: tuple, kwargs: dict) -> Any:
        """`func(*args, **kwargs)`, or a tensor like the one that it returned to such arguments before."""
        key = _key(func, args, kwargs) if _changes_nothing(func) else None
        if key is not None and (made := self.known.get(key)):
            return _like(made, args)
        result = func(*args, **kwargs)
        if key is not None and (made := _made(result, args)):
            self.known[key] = made
        return result


def _like(made: Made, args: tuple) -> FakeTensor:
    mode = next(one.fake_mode for one in args if type(one) is FakeTensor)
    with torch._C._DisableTorchDispatch():
        if made.offset is None:
            inner = torch.empty_strided(made.size, made.stride, dtype=made.dtype, device="meta")
        else:
            inner = torch.empty(0, dtype=made.dtype, device="meta")
            inner.set_(args[0].untyped_storage(), made.offset, made.size, made.stride)
    return FakeTensor(mode, inner, made.device)


@cache
def _changes_nothing(func: Any) -> bool:
    """Whether an operator returns one tensor and writes to none of its arguments."""
    schema = getattr(func, "_schema", None)
    if schema is None or len(schema.returns) != 1 or str(schema.returns[0].type) != "Tensor":
        return False
    return not any(one.alias_info and one.alias_info.is_write for one in (*schema.arguments, *schema.returns))


def _key(func: Any, args: tuple, kwargs: dict) -> Hashable | None:
    """What the shape of a result depends on; None where an argument is nothing that is known here."""
    parts: list[Hashable] = [func]
    tensors = 0
    for value in (*args, *kwargs.values()):
        if type(value) is FakeTensor:
            if value.constant is not None or not _is_plain(value):
                return None
            tensors += 1
            parts.append((value.size(), value.stride(), value.storage_offset(), value.dtype, value.fake_device))
        elif isinstance(value, list | tuple):
            if not all(isinstance(one, int) for one in value):
                return None
            parts.append(tuple(value))
        elif value is None or isinstance(value, bool | int | float | str | torch.dtype):
            parts.append((type(value), value))
        elif isinstance(value, torch.device | torch.layout | torch.memory_format):
            parts.append(value)
        else:
            return None
    return (*parts, *kwargs) if tensors else None


def _made(result: Any, args: tuple) -> Made | None:
    """What to remember of a result: of `_unsafe_view` the schema does not say that it is a view."""
    if type(result) is not FakeTensor or result.constant is not None or not _is_plain(result):
        return None
    storage = result.untyped_storage()._cdata
    shared = [at for at, one in enumerate(args) if _storage_of(one) == storage]
    if any(result is one for one in args) or shared not in ([], [0]):
        return None
    offset = int(result.storage_offset()) if shared else None
    return Made(result.size(), result.stride(), result.dtype, result.fake_device, offset)


def _storage_of(value: object) -> int | None:
    return value.untyped_storage()._cdata if isinstance(value, torch.Tensor) else None


def _is_plain(tensor: FakeTensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_quantized and not tensor.is_conj() and not tensor.is_neg()
