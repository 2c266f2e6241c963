"""What the text of a learner's cell says, without running it: names, definitions, imports, attributes."""

from __future__ import annotations

import ast
import re
import symtable
from collections.abc import Iterator
from functools import lru_cache

from ...course import lab_cells
from .spelled import dotted

_LINE_END = re.compile("\r\n?")
_MAGIC = re.compile(r"^[ \t]*[%!].*$", re.MULTILINE)  # IPython's, which is no Python
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_MUCH = 20_000  # characters: what is longer is not kept


def tree(source: str) -> ast.Module:
    """A cell, parsed; nothing where it is no Python. Each question put to a cell asks for it: not to be changed."""
    return _kept(source) if len(source) < _MUCH else lab_cells.parse(python(source))


@lru_cache(maxsize=512)
def _kept(source: str) -> ast.Module:
    return lab_cells.parse(python(source))


def python(source: str) -> str:
    """What Python sees of a cell: as it stands, without magics, or as IPython makes Python of it; '' for none at all.

    Lines end with a newline alone, as the parser counts them.
    """
    source = _LINE_END.sub("\n", source)
    for text in (lambda: source, lambda: _MAGIC.sub("", source), lambda: _as_ipython_reads(source)):
        try:
            lab_cells.parse(found := text())
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        return found
    return ""


def _as_ipython_reads(source: str) -> str:
    """What runs: prompts and indentation gone, `out = !ls` and `x?` as calls, of which the shell's is not counted."""
    from IPython.core.inputtransformer2 import TransformerManager

    return TransformerManager().transform_cell(source).replace("get_ipython()", "_shell")


def definitions(source: str) -> dict[str, ast.stmt]:
    """The functions and classes of the top level: what others rely on."""
    return {node.name: node for node in tree(source).body if isinstance(node, lab_cells.DEFINITION)}


def imported(source: str) -> dict[str, str]:
    """The names that a cell imports, each with what it is in full: "torch.nn" for nn."""
    found: dict[str, str] = {}
    for node in ast.walk(tree(source)):
        if isinstance(node, ast.Import):
            found |= {(one.asname or one.name).partition(".")[0]: one.name for one in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {one.asname or one.name: f"{node.module}.{one.name}" for one in node.names}
    return found


def assigned(source: str) -> set[str]:
    """The names of the top level that a cell assigns, defines or deletes, also from within its functions."""
    scopes = _scopes(source)
    symbols = [one for scope in scopes[1:] for one in scope.get_symbols() if one.is_declared_global()]
    symbols += [one for scope in scopes[:1] for one in scope.get_symbols()]
    return {symbol.get_name() for symbol in symbols if symbol.is_assigned()}


def globals_read(source: str) -> set[str]:
    """The names that a cell reads and does not keep in a function of its own: there `open` may be a list of blocks."""
    top = [one.get_name() for scope in _scopes(source)[:1] for one in scope.get_symbols() if one.is_referenced()]
    return {*top, *globals_of_functions(source)}


def names_outside(statement: ast.stmt) -> set[str]:
    """The names that a statement reads or binds outside of functions, and those that its functions look up there."""
    try:
        scopes = _scopes(ast.unparse(statement))
    except RecursionError:  # a sum of thousands, or a.b.c without an end
        return {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
    return {one.get_name() for scope in scopes[:1] for one in scope.get_symbols()} | {
        one.get_name() for scope in scopes[1:] for one in scope.get_symbols() if one.is_global()
    }


def of_self(source: str) -> set[str]:
    """The attributes that a cell's objects have of their own: `self.x` of each that it sets."""
    nodes = (node for node in ast.walk(tree(source)) if isinstance(node, ast.Attribute))
    return {f"self.{node.attr}" for node in nodes if isinstance(node.ctx, ast.Store) and dotted(node.value) == "self"}


def attributes(source: str) -> set[str]:
    """The attributes that a cell reads or sets."""
    return {node.attr for node in ast.walk(tree(source)) if isinstance(node, ast.Attribute)}


def globals_of_functions(source: str) -> set[str]:
    """The names that the functions of a cell read from outside."""
    symbols = [one for scope in _scopes(source)[1:] for one in scope.get_symbols()]
    return {one.get_name() for one in symbols if one.is_global() and one.is_referenced()}


def _scopes(source: str) -> list[symtable.SymbolTable]:
    """Those of a cell and of all that it defines, its own first; none where it is no Python."""
    try:
        scopes = [symtable.symtable(python(source), "cell", "exec")]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    for scope in scopes:  # grows as it goes
        scopes += scope.get_children()
    return scopes


def at_import(source: str) -> Iterator[ast.AST]:
    """What runs when a cell does: all of it but the bodies of its functions. Their defaults do."""
    return at_import_of(tree(source))


def at_import_of(node: ast.AST) -> Iterator[ast.AST]:
    """`at_import`, of a part of a cell."""
    waiting: list[ast.AST] = [node]
    for node in waiting:  # grows as it goes
        yield node
        if isinstance(node, FUNCTION):
            waiting += [node.args, *getattr(node, "decorator_list", ())]
        else:
            waiting += ast.iter_child_nodes(node)


def private(source: str, contexts: tuple[type[ast.expr_context], ...]) -> set[str]:
    """`_x` of each `a._x` in one of these contexts, and of each `getattr(a, "_x")`. What an object reads of its own
    `self` is its own affair."""
    words = set()
    for node in ast.walk(tree(source)):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, contexts):
            words |= set() if ast.Load in contexts and dotted(node.value) == "self" else {node.attr}
        elif isinstance(node, ast.Call) and dotted(node.func) == "getattr" and ast.Load in contexts:
            words |= {one.value for one in node.args if isinstance(one, ast.Constant) and isinstance(one.value, str)}
    return {word for word in words if word.startswith("_") and not word.startswith("__")}
