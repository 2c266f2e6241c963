"""Answers that reach for what measures them: no proof of anything, and worth an instructor's look.

In the learner's own kernel nothing can be hidden from the learner's code, so an answer could replace the function that
counts its bytes. What it prints must still be right for the secret seed; here it is seen to have tried.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from nbformat import NotebookNode

from ...course import lab_cells
from ...course.release import DEFINITION

_REACHES = {
    "get_ipython": "the notebook's own machinery",
    "__subclasses__": "every class there is",
    "_getframe": "its caller's variables",
    "f_back": "its caller's variables",
    "currentframe": "its caller's variables",
    "get_objects": "every object there is",
    "sys.modules": "loaded modules",
    "ctypes": "memory itself",
    "builtins": "Python's own functions",
    "__builtins__": "Python's own functions",
    "settrace": "running code",
    "setprofile": "running code",
}
_MAGIC = re.compile(r"^\s*[%!].*$", re.MULTILINE)  # IPython's, which is no Python


def signs_of_tampering(reference: NotebookNode, assembled: NotebookNode) -> tuple[str, ...]:
    """A sentence for each thing that a learner's cell replaces or reaches for and the worked lab does not."""
    given = {cell.source for cell in reference.cells}
    given_code = (cell for cell in reference.cells if cell.cell_type == "code" and not lab_cells.is_answer(cell))
    known = _names("\n".join(cell.source for cell in given_code))
    worked = {name for cell in reference.cells for name in _reached(cell.source)}
    imported = {name for cell in reference.cells if cell.cell_type == "code" for name in _imported(cell.source)}
    found = []
    for cell in assembled.cells:
        if cell.cell_type == "code" and cell.source not in given:
            where = _where(cell)
            found += [f"{where} replaces {name}, which is given" for name in sorted(_names(cell.source) & known)]
            found += [f"{where} replaces {name}" for name in sorted(_attributes_set(cell.source, imported))]
            reached = sorted({_REACHES[name] for name in _reached(cell.source) - worked})
            found += [f"{where} reaches for {what}" for what in reached]
    return tuple(dict.fromkeys(found))


def _where(cell: NotebookNode) -> str:
    return f"answer {lab_cells.grade_id(cell)!r}" if lab_cells.is_answer(cell) else "a cell of the learner's own"


def _tree(source: str) -> ast.Module:
    for text in (source, _MAGIC.sub("", source)):
        try:
            return lab_cells.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
    return ast.Module([], [])


def _names(source: str) -> set[str]:
    """Functions and classes of the top level: what others rely on. Variables come and go, and do not count."""
    return {node.name for node in _tree(source).body if isinstance(node, DEFINITION)}


def _reached(source: str) -> set[str]:
    words = set()
    for node in ast.walk(_tree(source)):
        if isinstance(node, ast.Name):
            words.add(node.id)
        elif isinstance(node, ast.Attribute):
            words |= {node.attr, _dotted(node)}
        elif isinstance(node, ast.Import):
            words |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            words |= {node.module.partition(".")[0]}
            words |= {word for alias in node.names for word in (alias.name, f"{node.module}.{alias.name}")}
    return words & _REACHES.keys()


def _attributes_set(source: str, imported: set[str]) -> Iterator[str]:
    """`module.name = ...` for a module or class that the lab or the cell imports, and `del module.name`."""
    imported = imported | _imported(source)
    for node in ast.walk(_tree(source)):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
            name = _dotted(node)
            if name.partition(".")[0] in imported:
                yield name[:80]


def _dotted(node: ast.expr) -> str:
    """`a.b.c` for a name and its attributes, '' for attributes of anything else. ast.unparse would recurse."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def _imported(source: str) -> set[str]:
    nodes = [node for node in ast.walk(_tree(source)) if isinstance(node, ast.Import | ast.ImportFrom)]
    return {(alias.asname or alias.name).partition(".")[0] for node in nodes for alias in node.names}
