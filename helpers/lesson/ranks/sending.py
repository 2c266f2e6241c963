"""A function of a notebook, with all that it uses, as bytes for the ranks."""

from __future__ import annotations

import importlib
import io
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ...catalog.errors import WorkbookError


def pickled(function: Callable, args: tuple, kwargs: dict[str, Any]) -> tuple[str, bytes]:
    """The function's name, and the call. WorkbookError for what is no function, and for what cannot travel."""
    if not callable(function):
        raise WorkbookError(
            f"{function!r} is not a function",
            "something to call on every rank",
            "ranks.run(step, x), not ranks.run(step(x))",
        )
    name = getattr(function, "__name__", type(function).__name__)
    try:
        return name, _dumped((function, args, kwargs))
    except Exception as error:
        raise WorkbookError(
            f"{name} cannot be sent to the ranks: {error}",
            "functions, numbers, tensors, modules",
            "make inside the function what cannot travel",
        ) from None


def _dumped(call: tuple) -> bytes:
    import cloudpickle

    class Pickler(cloudpickle.Pickler):
        def reducer_override(self, thing: Any) -> Any:
            """cloudpickle looks for submodules by the words of a function; torch.distributed.config is of an own type,
            which it would send whole, and cannot."""
            if isinstance(thing, ModuleType) and type(thing) is not ModuleType:
                return importlib.import_module, (thing.__name__,)
            return super().reducer_override(thing)

    buffer = io.BytesIO()
    Pickler(buffer).dump(call)
    return buffer.getvalue()
