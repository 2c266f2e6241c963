"""Faces that would load torch: their names are imported when somebody asks for them."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path


def lazy(package: str) -> Callable[[str], object]:
    """`__getattr__` for a package that lists its imports under `if TYPE_CHECKING:`, where every tool can read them.

    >>> __getattr__ = lazy("helpers.memory.meter")
    >>> __getattr__("Meter").__module__
    'helpers.memory.meter.meter'
    """

    def attribute(name: str) -> object:
        home = _homes(package).get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        own = not home.strip(".")  # a module of the package itself
        module = None if own else import_module(home, package)
        value = getattr(module, name) if hasattr(module, name) else import_module(f"{home.rstrip('.')}.{name}", package)
        setattr(sys.modules[package], name, value)
        return value

    return attribute


@cache
def _homes(package: str) -> dict[str, str]:
    """The module of each name that stands in the face's TYPE_CHECKING block."""
    spec = find_spec(package)
    source = Path(spec.origin).read_text(encoding="utf-8") if spec and spec.origin else ""
    blocks = (node for node in ast.parse(source).body if isinstance(node, ast.If))
    return {
        alias.asname or alias.name: "." * node.level + (node.module or "")
        for block in blocks
        if isinstance(block.test, ast.Name) and block.test.id == "TYPE_CHECKING"
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
