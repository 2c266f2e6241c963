"""What a lab gives, kept as it was: namespaces apart, and everything that may have been replaced put back.

Answers run in a copy of the given names, so that whatever they assign is theirs alone. What cannot be copied, because
the same module, class or function serves both sides, is looked at before every question and put back.
"""

from __future__ import annotations

import builtins
import copy
import sys
from types import CellType, FunctionType, ModuleType
from typing import Any

OURS = "helpers"
_ALONE = {"builtins", "random", "gc", "json", "math", "time", "functools", "torch", "torch.nn.functional"}
_ALONE |= {
    "tracemalloc",
    "weakref",
    "torch.autograd",
    "torch.autograd.graph",
    "torch.cuda",
    "torch.distributed",
    "torch.utils.checkpoint",
}
_CLASSES = [("torch", "Tensor"), ("torch.nn", "Module"), ("torch.autograd", "Function")]
_CLASSES += [("torch", "UntypedStorage"), ("tracemalloc", "Snapshot"), ("weakref", "finalize")]  # which meters ask
_CLASSES += [("logging", "Logger"), ("zmq", "Socket"), ("zmq.eventloop.zmqstream", "ZMQStream")]  # by which it hears
_CODE, _CELL = ("__code__", "__defaults__", "__kwdefaults__"), "cell_contents"
_KINDS = (ModuleType, property, classmethod, staticmethod)
_CHANGING = ("__builtins__", "__loader__", "__spec__", "__doc__")
_PLAIN = (list, dict, set)
_LATE = {"torch.manual_seed"}  # replaced by PyTorch itself, when torch._dynamo is first imported; and by torch.compile:
_LATE |= {f"torch.nn.Module.__{name}__" for name in ("init", "setstate")}


class Pristine:
    """The names in `namespace` as they are now, before anything of a learner's has run."""

    def __init__(self, namespace: dict[str, Any]) -> None:
        self.namespace, self._names = namespace, dict(namespace)
        self._kept: list[tuple[str, Any, str, Any]] = []  # (in words, what has it, its attribute, the value)
        self._objects: list[tuple[str, Any, dict[str, Any]]] = []  # (in words, an object, what it had of its own)
        self._holders: list[tuple[str, Any, set[str]]] = []  # (in words, a module or class, the names it had)
        self._data: list[tuple[str, Any, list[Any]]] = []  # (in words, a list, dict or set of ours, what it held)
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
        """The namespace as it was, and what was replaced put back; its names, in words."""
        replaced = self.put_back()
        self.namespace.clear()
        self.namespace.update(self._names)
        sys.settrace(None)
        sys.setprofile(None)
        return replaced

    def put_back(self) -> list[str]:
        """What was replaced in modules, classes, functions and objects, as it was; its names, in words."""
        replaced = []
        for words, holder, attribute, value in self._kept:
            if _now(holder, attribute) is not value:
                replaced.append(words)
                _put(holder, attribute, value)
        for words, holder, had in self._holders:
            for name in [name for name in vars(holder) if name not in had and _shadows(holder, name)]:
                replaced.append(f"{words}.{name}")
                delattr(holder, name)
        replaced += [name for words, one, own in self._objects for name in _put_back(words, one, own)]
        for words, value, held in self._data:
            now = _contents(value)
            if len(now) != len(held) or any(one is not other for one, other in zip(now, held, strict=True)):
                replaced.append(words)
                _refill(value, held)
        return [name for name in dict.fromkeys(replaced) if name not in _LATE]

    def _keep(self, words: str, holder: Any) -> None:
        """The functions, classes and modules that a module or class has; of what is ours its code and constants."""
        if id(holder) in self._seen:
            return
        self._seen.add(id(holder))
        self._holders.append((words, holder, set(vars(holder))))
        for attribute, value in list(vars(holder).items()):
            if attribute not in _CHANGING and (callable(value) or issubclass(type(value), _KINDS)):
                self._kept.append((f"{words}.{attribute}", holder, attribute, value))
                self._keep_inside(f"{words}.{attribute}", value)
            elif attribute.strip("_").isupper() and isinstance(holder, ModuleType) and words.startswith(OURS):
                self._kept.append((f"{words}.{attribute}", holder, attribute, value))
                if type(value) in _PLAIN:
                    self._data.append((f"{words}.{attribute}", value, _contents(value)))

    def _keep_inside(self, words: str, value: Any) -> None:
        """What can be replaced within a function, a class or an object, where it is ours."""
        for inner in _layers(value):
            if not _is_ours(inner if isinstance(inner, FunctionType | type) else type(inner)):
                continue
            if isinstance(inner, FunctionType):
                self._kept += [(words, inner, part, getattr(inner, part)) for part in _CODE]
                self._kept += [(words, inner.__kwdefaults__, *one) for one in (inner.__kwdefaults__ or {}).items()]
                cells = inner.__closure__ or ()
                self._kept += [(words, cell, _CELL, value) for cell in cells if callable(value := _in(cell))]
            elif isinstance(inner, type):
                self._keep(words, inner)
            elif hasattr(inner, "__dict__"):
                self._keep(words, type(inner))
                self._objects.append((words, inner, dict(vars(inner))))


def copies(namespace: dict[str, Any]) -> dict[str, Any]:
    """The same names; lists, dicts and sets are copies."""
    return {name: _copied(value) for name, value in namespace.items()}


def _layers(value: Any) -> list[Any]:
    """A value, or the functions that a method, a property or a decorated function is made of."""
    found = [value.fget, value.fset, value.fdel] if isinstance(value, property) else [getattr(value, "__func__", value)]
    for one in found:
        found += [vars(one)["__wrapped__"]] if "__wrapped__" in getattr(one, "__dict__", ()) else []
    return found


def _is_ours(value: Any) -> bool:
    """Made by helpers, or by the lab itself."""
    return str(getattr(value, "__module__", "")).partition(".")[0] in (OURS, "__main__")


def _put_back(words: str, one: Any, own: dict[str, Any]) -> list[str]:
    """The functions of its own that an object had, and none in the place of its class's; their names."""
    now = vars(one)
    new = [name for name, value in now.items() if name not in own and callable(value) and hasattr(type(one), name)]
    changed = [name for name, value in own.items() if callable(value) and now.get(name) is not value]
    for name in new:
        del now[name]
    now.update({name: own[name] for name in changed})
    return [f"{words}.{name}" for name in new + changed]


def _shadows(holder: Any, name: str) -> bool:
    """A new name that changes what old code does: a built-in function's in a module; in a class, one it inherits, or
    what stands between an object and its own values."""
    if isinstance(holder, ModuleType):
        return holder is not builtins and hasattr(builtins, name)
    value = vars(holder)[name]
    inherited = any(name in vars(base) for base in holder.__mro__[1:])
    return inherited or hasattr(type(value), "__set__") or (name.startswith("__") and callable(value))


def _now(holder: Any, attribute: str) -> Any:
    if isinstance(holder, CellType):
        return _in(holder)
    found = holder if isinstance(holder, dict) else vars(holder)
    return getattr(holder, attribute) if attribute in _CODE else found.get(attribute)


def _put(holder: Any, attribute: str, value: Any) -> None:
    if isinstance(holder, dict):
        holder[attribute] = value
    else:
        setattr(holder, attribute, value)


def _in(cell: CellType) -> Any:
    """What a function has of the one that it was made in; None where that never came."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _contents(value: list | dict | set) -> list[Any]:
    """What it holds, one by one; of a dict keys, then values."""
    if isinstance(value, dict):
        return [*value, *value.values()]
    return sorted(value, key=id) if isinstance(value, set) else list(value)


def _refill(value: list | dict | set, held: list[Any]) -> None:
    """Make it hold that again, as `_contents` had it."""
    value.clear()
    if isinstance(value, dict):
        value.update(zip(held[: len(held) // 2], held[len(held) // 2 :], strict=True))
    elif isinstance(value, set):
        value.update(held)
    else:
        value.extend(held)


def _copied(value: Any) -> Any:
    if type(value) not in _PLAIN:
        return value
    try:
        return copy.deepcopy(value)
    except Exception:  # it holds what cannot be copied
        return value
