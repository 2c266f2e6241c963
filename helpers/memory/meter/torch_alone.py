"""What leaves PyTorch is no longer metered: here it is refused where it is more than a few values."""

from __future__ import annotations

from contextlib import ExitStack
from functools import wraps
from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ...catalog.errors import WorkbookError

MOST_VALUES = 4096  # shapes, places, norms, what is printed
_ARRAYS: list[tuple[type, str]] = [(torch.Tensor, "numpy"), (torch.Tensor, "__dlpack__")]
_LISTS: list[tuple[type, str]] = [
    (owner, "tolist") for owner in (torch.Tensor, torch.UntypedStorage, torch.TypedStorage)
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
        self.left, self.lists, self._open = most_values, lists, ExitStack()

    def __enter__(self) -> TorchAlone:
        for owner, name in _ARRAYS if self.lists else _ARRAYS + _LISTS:
            self._open.enter_context(mock.patch.object(owner, name, self._counted(getattr(owner, name))))
        return super().__enter__()

    def __exit__(self, *problem: Any) -> None:
        super().__exit__(*problem)
        self._open.close()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self.lists and func is torch.ops.aten._local_scalar_dense.default:
            self._leave(1)
        return func(*args, **(kwargs or {}))

    def _counted(self, leave: Any) -> Any:
        @wraps(leave)
        def counted(values: Any, *arguments: Any, **options: Any) -> Any:
            self._leave(values.numel() if isinstance(values, torch.Tensor) else len(values))
            return leave(values, *arguments, **options)

        return counted

    def _leave(self, values: int) -> None:
        self.left -= values
        if self.left < 0:
            what, expected = "many values leave PyTorch, for NumPy or for Python's lists", "PyTorch's operators alone"
            raise WorkbookError(what, expected, "what is done elsewhere is not counted: do it with tensors")
