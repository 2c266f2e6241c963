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
STACK, _CONTEXTS = "torch/utils/_python_dispatch.py", "contextlib.py"
_INFRA = "_disable_infra_mode"  # of a tracer, whose context another function made than enters it; no meter is one
_LEAVES = (STACK, "__exit__")  # of a mode that was entered: a meter looks whether it is itself


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
        if file != _CONTEXTS and word not in ("", _INFRA, *frame.f_code.co_names):
            return False
        if file not in (STACK, _CONTEXTS):
            return True
        if file == STACK:
            word = "" if name.startswith("<") else name  # a comprehension: before Python 3.12 a frame
        frame = frame.f_back
    return False


def closer(empty: bool) -> Callable[[], None]:
    """A function that closes modes left open and removes hooks of all modules that were left, as it is now.

    On a rank, where cells of a learner's have run, all of them: `empty`.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return lambda: None
    hooks = [(*one, {} if empty else dict(one[2])) for one in _hooks()]
    stacks = [_stack(torch._C, words) for words in ("dispatch", "function")]
    were = [[] if empty else [at(i) for i in range(size())] for size, at, _, _ in stacks]
    flags = sys.modules["torch.utils._python_dispatch"]
    switches = {name: not empty and value for name, value in vars(flags).items() if name.startswith("_is_in_")}
    top, pop_hooks = (
        torch._C._autograd._top_saved_tensors_default_hooks,
        torch._C._autograd._pop_saved_tensors_default_hooks,
    )

    def close() -> None:
        for (size, at, pop, push), was in zip(stacks, were, strict=True):
            if size() != len(was) or any(at(i) is not one for i, one in enumerate(was)):
                while size():
                    pop()
                for one in was:
                    push(one)
                vars(flags).update(switches)
        while top(False) is not None:
            pop_hooks()
        for module, name, now, had in hooks:
            vars(module)[name] = now
            if now != had:
                now.clear()
                now.update(had)

    return close


def _stack(core: Any, words: str) -> tuple[Callable, Callable, Callable, Callable]:
    """How many modes of a kind there are; the one at a place; the last taken away; another on top."""
    at = getattr(core, "_get_dispatch_stack_at" if words == "dispatch" else "_get_function_stack_at")
    parts = (f"_len_torch_{words}_stack", f"_pop_torch_{words}_stack", f"_push_on_torch_{words}_stack")
    size, pop, push = (getattr(core, name) for name in parts)
    return size, at, (lambda: pop(None)) if words == "dispatch" else pop, push


def _hooks() -> list[tuple[Any, str, dict]]:
    """PyTorch's dicts of hooks for every module and every optimizer."""
    modules = (sys.modules.get(name) for name in ("torch.nn.modules.module", "torch.optim.optimizer"))
    return [
        (module, name, value)
        for module in modules
        if module is not None
        for name, value in list(vars(module).items())
        if name.startswith("_global_") and isinstance(value, dict)
    ]
