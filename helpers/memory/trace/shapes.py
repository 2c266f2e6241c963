"""What an operator returns, remembered: a model's layers ask for the same shapes again and again.

A fake mode finds out by running the operator's rule for shapes, and its own cache takes most of a trace's time to look
up. Here only operators are remembered that return one new tensor and touch nothing else, asked with plain fake tensors.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import cache
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

Made = tuple[torch.Size, tuple[int, ...], torch.dtype, torch.device]


class Shapes:
    """Results by operator and arguments, of one fake mode."""

    def __init__(self) -> None:
        self.known: dict[Hashable, Made] = {}

    def call(self, func: Any, args: tuple, kwargs: dict) -> Any:
        """`func(*args, **kwargs)`, or a new tensor like the one that it returned to such arguments before."""
        key = _key(func, args, kwargs) if _makes_one(func) else None
        if key is not None and (made := self.known.get(key)):
            mode = next(one.fake_mode for one in args if type(one) is FakeTensor)
            return _like(made, mode)
        result = func(*args, **kwargs)
        if key is not None and _is_new(result, args):
            self.known[key] = result.size(), result.stride(), result.dtype, result.fake_device
        return result


def _like(made: Made, mode: Any) -> FakeTensor:
    size, stride, dtype, device = made
    with torch._C._DisableTorchDispatch():
        inner = torch.empty_strided(size, stride, dtype=dtype, device="meta")
    return FakeTensor(mode, inner, device)


@cache
def _makes_one(func: Any) -> bool:
    """Whether an operator returns one tensor that is no view, and changes none of its arguments."""
    schema = getattr(func, "_schema", None)
    if schema is None or len(schema.returns) != 1 or str(schema.returns[0].type) != "Tensor":
        return False
    return not any(one.alias_info for one in (*schema.arguments, *schema.returns))


def _key(func: Any, args: tuple, kwargs: dict) -> Hashable | None:
    """What the shape of a result depends on; None where an argument is nothing that is known here."""
    parts: list[Hashable] = [func]
    tensors = 0
    for value in (*args, *kwargs.values()):
        if type(value) is FakeTensor:
            if value.constant is not None or not _is_plain(value):
                return None
            tensors += 1
            parts.append((value.size(), value.stride(), value.dtype))
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


def _is_new(result: Any, args: tuple) -> bool:
    """Whether a result has its own storage: of `_unsafe_view` the schema does not say that it has its argument's."""
    if type(result) is not FakeTensor or result.constant is not None or not _is_plain(result):
        return False
    storages = {one.untyped_storage()._cdata for one in args if isinstance(one, torch.Tensor)}
    return result.untyped_storage()._cdata not in storages


def _is_plain(tensor: FakeTensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_quantized and not tensor.is_conj() and not tensor.is_neg()
