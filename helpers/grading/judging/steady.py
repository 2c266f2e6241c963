"""A learner's functions and classes that keep nothing of what they are given: a call of one leaves no trace.

So a cell that writes down what an answer returned, or times it, is nothing that the answer comes back to.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence, Set

from ...course import lab_cells
from .reading import names_outside
from .spelled import dotted

_DECORATORS = {"staticmethod", "classmethod", "property", "dataclass", "dataclasses.dataclass"}
_DECORATORS |= {"torch.no_grad", "torch.enable_grad", "torch.inference_mode"}
_PLAIN = (ast.Constant, ast.Tuple, ast.UnaryOp, ast.BinOp, ast.Name, ast.Attribute)  # nothing grows in it
_TABLES = {"tensor", "arange", "linspace", "array", "asarray", "zeros", "ones", "full", "exp2", "cat", "stack"}
_CHANGING = {"append", "extend", "insert", "add", "update", "setdefault", "pop", "popitem", "appendleft", "push", "put"}
_CHANGING |= {"remove", "discard", "clear", "__setitem__", "__setattr__"}
_BY_TEXT = {"exec", "eval", "globals", "locals", "vars", "setattr", "delattr", "get_ipython"}
_REACHING = {"setattr", "delattr", "vars", "getattr", "partial", "__setattr__", "__getattribute__"}
_WORDS = {"__name__", "__doc__", "__annotations__"}  # of a function, which one may look at
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def steady(said: Mapping[str, Sequence[ast.stmt]], known: Set[str]) -> set[str]:
    """Of the names that the statements in `said` bind, those of such functions and classes, and of plain numbers.

    One reads only what is `known` and what is steady, and changes nothing that outlives a call.
    """
    imports = {name for name, some in said.items() if all(isinstance(one, ast.Import | ast.ImportFrom) for one in some)}
    found = {name for name, some in said.items() if all(_is_plain(one) or _is_quiet(one) for one in some)}
    while loose := {name for name in found if any(names_outside(one) - known - imports - found for one in said[name])}:
        found -= loose
    return found


def used_but_as_told(statement: ast.stmt) -> set[str]:
    """The names that a statement uses otherwise than by calling them, handing them to a function, reading of them."""
    fine = {id(one) for node in ast.walk(statement) for one in _handed(node)}
    names = [node for node in ast.walk(statement) if isinstance(node, ast.Name)]
    return {node.id for node in names if isinstance(node.ctx, ast.Store | ast.Del) or id(node) not in fine}


def _handed(node: ast.AST) -> Iterator[ast.expr]:
    if isinstance(node, ast.Call):
        yield node.func
        if dotted(node.func).rpartition(".")[2] not in _REACHING:
            yield from (*node.args, *(one.value for one in node.keywords))
    elif isinstance(node, ast.Attribute) and node.attr in _WORDS and isinstance(node.ctx, ast.Load):
        yield node.value


def _is_plain(statement: ast.stmt) -> bool:
    """Whether it gives a name a number, a text, a tuple of these, or a table of numbers."""
    value = statement.value if isinstance(statement, ast.Assign | ast.AnnAssign) else None
    if isinstance(value, ast.Call):
        root, _, name = dotted(value.func).rpartition(".")
        return root in ("torch", "np", "numpy") and name in _TABLES
    return value is not None and _nothing_grows_in(value)


def _nothing_grows_in(value: ast.expr) -> bool:
    return all(isinstance(one, (*_PLAIN, ast.expr_context, ast.operator, ast.unaryop)) for one in ast.walk(value))


def _is_quiet(definition: ast.stmt) -> bool:
    if not isinstance(definition, lab_cells.DEFINITION):
        return False
    outside = names_outside(definition) | {"cls", ""}
    return not any(_keeps(node) or _changes(node, outside) for node in ast.walk(definition))


def _keeps(node: ast.AST) -> bool:
    """Whether a function or class has a value in which something can be kept, or is more than what is written there."""
    decorators = [one.func if isinstance(one, ast.Call) else one for one in getattr(node, "decorator_list", ())]
    values: list[ast.expr] = []
    if isinstance(node, ast.ClassDef):
        values = [one.value for one in node.body if isinstance(one, ast.Assign | ast.AnnAssign) and one.value]
    elif isinstance(node, _FUNCTIONS):
        values = [one for one in (*node.args.defaults, *node.args.kw_defaults) if one is not None]
    return any(dotted(one) not in _DECORATORS for one in decorators) or not all(map(_nothing_grows_in, values))


def _changes(node: ast.AST, outside: Set[str]) -> bool:
    """Whether it sets, deletes or fills what is not its function's own, or may do so by text."""
    if isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
        return _root(node) in outside or "__" in dotted(node)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _CHANGING:
        return _root(node.func) in outside - {"torch", "np", "numpy", "dist", ""} or "__" in dotted(node.func)
    return isinstance(node, ast.Global) or (isinstance(node, ast.Name) and node.id in _BY_TEXT)


def _root(node: ast.expr) -> str:
    """The name that a chain of attributes and items begins with; '' where it begins with anything else."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""
