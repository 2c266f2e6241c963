"""Who imports whom: a graph of files, and the circles in it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

Graph = Mapping[str, set[str]]


def module_of(path: Path) -> str:
    """The dotted name of a file; a face has its package's."""
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def imported(path: Path, source: str) -> Iterator[str]:
    """Dotted names that a module imports, at its top or inside functions, relative ones resolved."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(path.parts[: -node.level]) if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            yield from (f"{module}.{alias.name}" for alias in node.names)


def graph(sources: Mapping[Path, str]) -> Graph:
    """From each module to those that it names in an import, wherever the import stands."""
    modules = {module_of(path) for path in sources}

    def target(name: str) -> str | None:
        owner = name.rpartition(".")[0]
        return next((module for module in (name, owner) if module in modules), None)

    found: dict[str, set[str]] = {}
    for path, source in sources.items():
        here = module_of(path)
        found[here] = {module for name in imported(path, source) if (module := target(name)) and module != here}
    return found


def nowhere(sources: Mapping[Path, str]) -> list[str]:
    """Imports of `helpers` that lead to no module: the owner of each name must be a file."""
    modules = {module_of(path) for path in sources}
    return [
        f"{path}: {name}"
        for path, source in sources.items()
        for name in imported(path, source)
        if name.startswith("helpers.") and not {name, name.rpartition(".")[0]} & modules
    ]


def circles(of: Graph) -> list[list[str]]:
    """Every set of modules that can reach one another, sorted: Tarjan's strongly connected components."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        number[module] = lowest[module] = len(number)
        path.append(module)
        for other in sorted(of[module]):
            if other not in number:
                visit(other)
            if other in path:
                lowest[module] = min(lowest[module], lowest[other])
        if lowest[module] == number[module]:
            start = path.index(module)
            if len(path) - start > 1:
                found.append(sorted(path[start:]))
            del path[start:]

    for module in sorted(of):
        if module not in number:
            visit(module)
    return found


def told(found: Iterable[list[str]]) -> str:
    return "\n".join("a circle: " + ", ".join(names) for names in found)
