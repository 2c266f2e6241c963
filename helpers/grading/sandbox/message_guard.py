"""What a kernel hears and speaks with, kept as it was: whoever changes a message changes what was answered.

The words of a kernel go through its own methods, its session's, and those of the thread that owns the socket. All are
Python, in the same process as the answers. So before the kernel tells anything, they are put back.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import FunctionType
from typing import Any

from ipykernel.ipkernel import IPythonKernel

_SILENT = {"builtins", "traitlets"}  # whose classes say nothing
_TRAITS = {"kernel": ("session", "iopub_socket", "iopub_thread", "log"), "kernel.session": ("pack", "unpack", "auth")}
_HANDLERS = ("shell_handlers", "control_handlers")  # a message's kind, and who is called


class MessageGuard:
    """The methods that `kernel` and what it speaks through have now."""

    def __init__(self, kernel: IPythonKernel) -> None:
        thread: Any = kernel.iopub_thread
        parts = {"kernel": kernel, "kernel.session": kernel.session, "kernel.iopub_thread": thread}
        self._parts = tuple({**parts, "kernel.iopub_socket": thread.background_socket}.items())
        self._traits = tuple(
            (f"{words}.{name}", one, name, getattr(one, name))
            for words, one in self._parts
            for name in _TRAITS.get(words, ())
        )
        self._handlers = tuple(
            (f"kernel.{name}", found, dict(found)) for name in _HANDLERS for found in [getattr(kernel, name)]
        )
        self._classes = tuple(
            (words, cls, frozenset(vars(cls)))
            for words, one in self._parts
            for cls in type(one).__mro__
            if cls.__module__.partition(".")[0] not in _SILENT
        )
        self._methods = tuple(
            (f"{words}.{name}", cls, name, value, getattr(value, "__code__", None))
            for words, cls, _ in self._classes
            for name, value in vars(cls).items()
            if isinstance(value, FunctionType | property)
        )

    def restore(self) -> list[str]:
        """Put back what was replaced; its names, in words."""
        return list(dict.fromkeys([*self._of_classes(), *self._of_objects()]))

    def _of_classes(self) -> Iterator[str]:
        for words, cls, names in self._classes:
            for name in [name for name in vars(cls) if name not in names and _inherited(cls, name)]:
                delattr(cls, name)
                yield f"{words}.{name}"
        for words, cls, name, value, code in self._methods:
            if vars(cls).get(name) is not value or getattr(value, "__code__", None) is not code:
                setattr(cls, name, value)
                if isinstance(value, FunctionType) and code is not None:
                    value.__code__ = code
                yield words

    def _of_objects(self) -> Iterator[str]:
        for words, one in self._parts:
            for name in [name for name in vars(one) if isinstance(getattr(type(one), name, None), FunctionType)]:
                del vars(one)[name]
                yield f"{words}.{name}"
        for words, now, was in self._handlers:
            if now != was:
                now.clear()
                now.update(was)
                yield words
        for words, one, name, value in self._traits:
            if getattr(one, name) is not value:
                setattr(one, name, value)
                yield words


def _inherited(cls: type, name: str) -> bool:
    return any(name in vars(base) for base in cls.__mro__[1:])
