"""PyTorch's stack of modes, on which the meters lie that count what an answer does: who asks for it is heard.

A library's function that asks for a mode does so by its name; who is handed the way to them, or calls it from a cell,
would read the meter of what it is asked, write its peak, or work where it does not look.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from sys import audit
from types import FrameType
from typing import Any

MODES = "torch modes"
_READS = ("_get_dispatch_stack_at", "_pop_torch_dispatch_stack", "_get_dispatch_mode", "_unset_dispatch_mode")
_STOPS = ("_DisableTorchDispatch", "_EnableTorchDispatch")
_STACK, _CONTEXTS = "torch/utils/_python_dispatch.py", "contextlib.py"
_LEAVES = (_STACK, "__exit__")  # of a mode that was entered: a meter looks whether it is itself


def make_modes_loud() -> None:
    """Raise an event where PyTorch gives a mode, takes one away, or looks at none: PyTorch raises none."""
    for module in ("torch._C", "torch.utils._python_dispatch", "torch._ops"):
        for name in _READS + _STOPS:
            if (function := getattr(sys.modules.get(module), name, None)) is not None:
                setattr(sys.modules[module], name, _raising(name, function))


def _raising(name: str, function: Callable) -> Callable:
    def heard(*arguments: Any, **named: Any) -> Any:
        audit(MODES, name)
        return function(*arguments, **named)

    heard.__name__, heard.__doc__ = function.__name__, function.__doc__
    return heard


def may_ask(
    word: str, frame: FrameType | None, genuine: Callable[[FrameType], bool], place: Callable[[FrameType], tuple]
) -> bool:
    """Whether a library's own function asks for modes by the name `word`, in its own code and for itself."""
    while frame is not None and genuine(frame):
        file, name = place(frame)
        if (file, name) == _LEAVES:
            return True
        if file != _CONTEXTS and word not in frame.f_code.co_names:
            return False
        if file not in (_STACK, _CONTEXTS):
            return True
        word, frame = name if file == _STACK else word, frame.f_back
    return False
