"""What leaves PyTorch is no longer metered: here it is refused where it is more than a few values."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import wraps
from typing import Any
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from ...catalog.errors import WorkbookError
from .leaves import leaves
from .meter import wraps_others

MOST_VALUES = 4096  # shapes, places, norms, what is printed
_ARRAYS: list[tuple[type, str]] = [(torch.Tensor, "numpy"), (torch.Tensor, "__dlpack__")]
_LISTS: list[tuple[type, str]] = [
    *((owner, "tolist") for owner in (torch.Tensor, torch.UntypedStorage, torch.TypedStorage)),
    *((torch.Tensor, name) for name in ("apply_", "map_", "map2_", "__reduce_ex__")),
    *((owner, "__reduce__") for owner in (torch.UntypedStorage, torch.TypedStorage)),
]


class TorchAlone(TorchDispatchMode):
    """While it is open, `most_values` values in all leave PyTorch: as arrays, as lists of Python, as single numbers.

    With `lists` as many lists and numbers may be made as somebody likes: slow, and honest where no traffic is counted.
    A Meter and Traffic see PyTorch's operators alone, so what is computed elsewhere is not counted. WorkbookError for
    the first value too many.

    >>> with TorchAlone():
    ...     torch.ones(3).tolist()
    [1.0, 1.0, 1.0]
    """

    def __init__(self, most_values: int = MOST_VALUES, lists: bool = False) -> None:
        super().__init__()
        self.left, self.lists, self._open, self._leaving = most_values, lists, ExitStack(), False
        self._doors = _ARRAYS if lists else _ARRAYS + _LISTS

    def __enter__(self) -> TorchAlone:
        for owner, name in self._doors:
            self._open.enter_context(mock.patch.object(owner, name, self._counted(getattr(owner, name))))
        self._open.enter_context(_TakenBefore(self, {name for owner, name in self._doors if owner is torch.Tensor}))
        return super().__enter__()

    def __exit__(self, *problem: Any) -> None:
        super().__exit__(*problem)
        self._open.close()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if wraps_others(types):
            return NotImplemented
        if not self.lists and func is torch.ops.aten._local_scalar_dense.default:
            self._leave(1)
        result = func(*args, **(kwargs or {}))
        for written in _written(func, args, kwargs or {}):
            if not written.untyped_storage().resizable():  # memory of an array: `from_numpy(array).copy_(tensor)`
                self._leave(written.numel())
        return result

    def _counted(self, leave: Any) -> Any:
        @wraps(leave)
        def counted(values: Any, *arguments: Any, **options: Any) -> Any:
            return self.through(leave, values, *arguments, **options)

        return counted

    def through(self, leave: Any, values: Any, *arguments: Any, **options: Any) -> Any:
        """What `leave` gives, its values counted once, whichever doors it goes through."""
        if self._leaving:
            return leave(values, *arguments, **options)
        self._leave(values.numel() if isinstance(values, torch.Tensor) else len(values))
        self._leaving = True
        try:
            return leave(values, *arguments, **options)
        finally:
            self._leaving = False

    def _leave(self, values: int) -> None:
        self.left -= values
        if self.left < 0:
            what, expected = "many values leave PyTorch, for NumPy or for Python's lists", "PyTorch's operators alone"
            raise WorkbookError(what, expected, "what is done elsewhere is not counted: do it with tensors")


class _TakenBefore(TorchFunctionMode):
    """Sees a tensor's own methods, too, that somebody had in a variable before they were replaced."""

    def __init__(self, alone: TorchAlone, names: set[str]) -> None:
        super().__init__()
        self.alone, self.names = alone, names

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in self.names:
            return self.alone.through(func, *args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _written(func: Any, args: tuple, kwargs: dict) -> Iterator[torch.Tensor]:
    """The tensors that an operator writes into, of what it is given."""
    if func._schema.is_mutable:
        for place, declared in enumerate(func._schema.arguments):
            given = args[place] if place < len(args) else kwargs.get(declared.name)
            if declared.alias_info is not None and declared.alias_info.is_write:
                yield from (one for one in leaves(given) if isinstance(one, torch.Tensor))
