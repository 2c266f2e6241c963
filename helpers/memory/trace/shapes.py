"""What an operator returns, remembered: a model's layers ask for the same shapes again and again.

A fake mode finds out by running the operator's rule for shapes, and its own cache takes most of a trace's time to look
up. Here only operators are remembered that change nothing and return one tensor, new or a view of their first argument,
asked with plain fake tensors; and those of optimizers that do the same in each place of lists of tensors.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from functools import cache
from itertools import repeat
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


class ShapeCache:
    """Results by operator and arguments, of one fake mode."""

    def __init__(self) -> None:
        self.known: dict[Hashable, Made] = {}
        self.written: set[Hashable] = set()

    def call(self, func: Any, args: tuple, kwargs: dict) -> Any:
        """`func(*args, **kwargs)`, or a tensor like the one that it returned to such arguments before."""
        if _is_foreach(func) and (places := _places(args)):
            return self._foreach(func, args, kwargs, places)
        key = _key(func, args, kwargs) if _changes_nothing(func) else None
        if key is not None and (made := self.known.get(key)):
            return _like(made, args)
        result = func(*args, **kwargs)
        if key is not None and (made := _made(result, args)):
            self.known[key] = made
        return result

    def _foreach(self, func: Any, args: tuple, kwargs: dict, places: list[tuple]) -> Any:
        """One place of each kind is asked for: a model has hundreds of weights, of a dozen shapes.

        What writes to its arguments leaves their shapes as they are, so it is asked only for its errors.
        """
        keys = [_key(func, place, kwargs) for place in places]
        new = {key: at for at, key in enumerate(keys) if key not in self.known and key not in self.written}
        if None in new:
            return func(*args, **kwargs)
        results = func(*_only(new.values(), args), **kwargs) if new else []
        if not func._schema.returns:
            self.written.update(new)
            return None
        for (key, at), result in zip(new.items(), results, strict=True):
            if (made := _made(result, places[at])) is None:
                return func(*args, **kwargs)
            self.known[key] = made
        return [_like(self.known[key], place) for key, place in zip(keys, places, strict=True)]


def _places(args: tuple) -> list[tuple]:
    """The arguments of a `_foreach` operator place by place; none where its lists differ in length."""
    lengths = {len(one) for one in args if isinstance(one, list | tuple)}
    if len(lengths) != 1:
        return []
    return list(zip(*(one if isinstance(one, list | tuple) else repeat(one, *lengths) for one in args), strict=True))


def _only(places: Iterable[int], args: tuple) -> list:
    """The arguments of a `_foreach` operator at these places."""
    return [[one[at] for at in places] if isinstance(one, list | tuple) else one for one in args]


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
def _is_foreach(func: Any) -> bool:
    """Whether an operator does the same in each place of its lists, and returns a list or nothing."""
    schema = getattr(func, "_schema", None)
    if schema is None or not schema.name.startswith("aten::_foreach_"):
        return False
    return [str(one.type) for one in schema.returns] in ([], ["List[Tensor]"])


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
