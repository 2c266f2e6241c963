"""What a lab gives, kept as it was: namespaces apart, and everything that may have been replaced put back.

Answers run in a copy of the given names, so that whatever they assign is theirs alone. What cannot be copied, because
the same module, class or function serves both sides, is looked at before every question and put back.
"""

from __future__ import annotations

import copy
import sys
from types import FunctionType, ModuleType
from typing import Any

OURS = "helpers"
_ALONE = {"builtins", "random", "gc", "json", "math", "time", "functools", "torch", "torch.nn.functional"}
_ALONE |= {"torch.autograd", "torch.autograd.graph", "torch.cuda", "torch.distributed", "torch.utils.checkpoint"}
_CLASSES = (("torch", "Tensor"), ("torch.nn", "Module"), ("torch.autograd", "Function"))
_CODE = ("__code__", "__defaults__", "__kwdefaults__")
_KINDS = (ModuleType, property, classmethod, staticmethod)
_CHANGING = ("__builtins__", "__loader__", "__spec__", "__doc__")
_PLAIN = (list, dict, set)


class Pristine:
    """The names in `namespace` as they are now, before anything of a learner's has run."""

    def __init__(self, namespace: dict[str, Any]) -> None:
        self.namespace, self._names = namespace, dict(namespace)
        self._kept: list[tuple[str, Any, str, Any]] = []  # (in words, what has it, its attribute, the value)
        self._objects: list[tuple[str, Any, dict[str, Any]]] = []  # (in words, an object, its own functions)
        self._seen: set[int] = set()
        for name, module in list(sys.modules.items()):
            if isinstance(module, ModuleType) and (name in _ALONE or name.partition(".")[0] == OURS):
                self._keep(name, module)
        for module_name, name in _CLASSES:
            if module_name in sys.modules:
                self._keep(f"{module_name}.{name}", getattr(sys.modules[module_name], name))
        for name, value in self._names.items():
            if not name.startswith("_") and not isinstance(value, ModuleType):
                self._keep_inside(name, value)

    def restore(self) -> list[str]:
        """Put back what was replaced; its names, in words."""
        replaced = []
        for words, holder, attribute, value in self._kept:
            if _now(holder, attribute) is not value:
                replaced.append(words)
                setattr(holder, attribute, value)
        for words, one, own in self._objects:
            for attribute in [key for key in vars(one) if key not in own and hasattr(type(one), key)]:
                replaced.append(f"{words}.{attribute}")
                del vars(one)[attribute]
        self.namespace.clear()
        self.namespace.update(self._names)
        sys.settrace(None)
        sys.setprofile(None)
        return list(dict.fromkeys(replaced))

    def _keep(self, words: str, holder: Any) -> None:
        """The functions, classes and modules that a module or class has; and of what is ours, its code."""
        if id(holder) in self._seen:
            return
        self._seen.add(id(holder))
        for attribute, value in list(vars(holder).items()):
            if attribute not in _CHANGING and (callable(value) or isinstance(value, _KINDS)):
                self._kept.append((f"{words}.{attribute}", holder, attribute, value))
                self._keep_inside(f"{words}.{attribute}", value)

    def _keep_inside(self, words: str, value: Any) -> None:
        """What can be replaced within a function, a class or an object, where it is ours."""
        inner = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        if not _is_ours(inner if isinstance(inner, FunctionType | type) else type(inner)):
            return
        if isinstance(inner, FunctionType):
            self._kept += [(words, inner, part, getattr(inner, part)) for part in _CODE]
        elif isinstance(inner, type):
            self._keep(words, inner)
        elif hasattr(inner, "__dict__"):
            self._keep(words, type(inner))
            self._objects.append((words, inner, dict(vars(inner))))


def copies(namespace: dict[str, Any]) -> dict[str, Any]:
    """The same names; lists, dicts and sets are copies."""
    return {name: _copied(value) for name, value in namespace.items()}


def _is_ours(value: Any) -> bool:
    """Made by helpers, or by the lab itself."""
    return str(getattr(value, "__module__", "")).partition(".")[0] in (OURS, "__main__")


def _now(holder: Any, attribute: str) -> Any:
    return getattr(holder, attribute) if attribute in _CODE else vars(holder).get(attribute)


def _copied(value: Any) -> Any:
    if type(value) not in _PLAIN:
        return value
    try:
        return copy.deepcopy(value)
    except Exception:  # it holds what cannot be copied
        return value
