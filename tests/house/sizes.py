"""Prints the functions over 60 lines and the files over 300: information, so that growth is seen."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.house import tree

LONG_FUNCTION, LONG_FILE = 60, 300


def long_ones(name: str, source: str) -> Iterator[str]:
    lines = source.count("\n")
    if lines > LONG_FILE:
        yield f"{name}: {lines} lines"
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and node.end_lineno - node.lineno >= LONG_FUNCTION:
            yield f"{name}:{node.lineno}: {node.name} has {node.end_lineno - node.lineno + 1} lines"


def main() -> None:
    paths = [path for path in tree.files() if path.suffix == ".py"]
    found = [line for path in paths for line in long_ones(str(path), tree.text_of(path))]
    print("\n".join([f"{len(paths)} Python files, {len(found)} longer than we like", *found]))


if __name__ == "__main__":
    main()
