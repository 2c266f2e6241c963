"""What a learner's cell gives another meaning: names that are given, attributes of modules and classes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Set

from .reading import at_import, imported, tree
from .spelled import dotted, holder, within

_METHOD = re.compile(r"(?!self\.|cls\.).*\.__(?!(?:name|qualname|doc|module|wrapped|annotations)__)\w+__")  # of a class
_SWITCHES = ("torch.backends.", "pd.options.", "pandas.options.", "plt.rcParams", "matplotlib.rcParams")
_LITERAL = (ast.Constant, ast.List, ast.Tuple, ast.Dict, ast.Set, ast.JoinedStr, ast.BinOp, ast.UnaryOp, ast.Compare)
_NO_DATA = {"partial", "type", "getattr", "Mock", "MagicMock", "wraps", "eval", "attrgetter", "methodcaller"}
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_ADDED = (ast.Expr, ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Import, ast.ImportFrom, ast.Assert)


def is_more_of(mine: ast.AST, given: ast.AST | None) -> bool:
    """Whether a definition is a copy of what is given, perhaps with lines of one's own between its lines.

    Such lines print, count or name something, or are methods; docstrings do not count.
    """
    try:
        return given is not None and _is_more_of(mine, given)
    except RecursionError:
        return False


def _is_more_of(mine: ast.AST, given: ast.AST) -> bool:
    if type(mine) is not type(given) or not _heads_alike(mine, given):
        return False
    for part in ("body", "orelse", "finalbody", "handlers"):
        left = _statements(given, part)
        for one in _statements(mine, part):
            if left and (ast.dump(one) == ast.dump(left[0]) or _is_more_of(one, left[0])):
                left.pop(0)
            elif not isinstance(one, _ADDED) and not (isinstance(mine, ast.ClassDef) and isinstance(one, _DEFINITIONS)):
                return False
        if left:
            return False
    return hasattr(given, "body")


def _heads_alike(mine: ast.AST, given: ast.AST) -> bool:
    """What stands before the colon is the same; a function may have more parameters at the end."""
    heads = [
        {name: value for name, value in ast.iter_fields(one) if name not in ("body", "orelse", "finalbody", "handlers")}
        for one in (mine, given)
    ]
    arguments = [head.pop("args", None) for head in heads]
    if [_dumped(one) for one in heads[0].values()] != [_dumped(one) for one in heads[1].values()]:
        return False
    more, less = ([_dumped(one) for one in (args.args if args else [])] for args in arguments)
    return more[: len(less)] == less


def _statements(node: ast.AST, part: str) -> list[ast.AST]:
    found = list(getattr(node, part, []))
    words = found and isinstance(found[0], ast.Expr) and isinstance(found[0].value, ast.Constant)
    return found[1:] if words else found


def _dumped(value: object) -> str:
    parts = value if isinstance(value, list) else [value]
    return " ".join(ast.dump(one) if isinstance(one, ast.AST) else repr(one) for one in parts)


def _bound(target: ast.expr | None) -> set[str]:
    """The names that a target binds."""
    return {node.id for node in ast.walk(target) if isinstance(node, ast.Name)} if target is not None else set()


def data(source: str, variables: Set[str]) -> set[str]:
    """The names that a cell gives no more than data: a number, a list, what a function returns, one of `variables` or
    what is in one; or nothing at all."""
    found: set[str] = set()
    other: set[str] = set()
    for node in at_import(source):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                told = isinstance(target, ast.Name) or isinstance(node.value, ast.Tuple | ast.List)  # what it is
                made = any(isinstance(one, ast.Lambda) for one in ast.walk(node.value))
                plain = not told or (_is_data(node.value, variables) and not made)
                (found if plain else other).update(_bound(target))
        elif isinstance(node, ast.Delete):
            found.update(name for target in node.targets for name in _bound(target))
        else:
            found |= _in_turn(node)
    return found - other


def named_again(source: str, given: Mapping[str, str]) -> set[str]:
    """The names that a cell gives what they are `given` as: `nn = torch.nn`."""
    nodes = [node for node in at_import(source) if isinstance(node, ast.Assign)]
    pairs = [
        (target.id, dotted(node.value)) for node in nodes for target in node.targets if isinstance(target, ast.Name)
    ]
    return {name for name, value in pairs if given.get(name) == value}


def _in_turn(node: ast.AST) -> set[str]:
    """The names that a loop, a `with` or a `:=` binds."""
    if isinstance(node, ast.For | ast.AsyncFor | ast.NamedExpr | ast.comprehension):
        return _bound(node.target)
    return _bound(node.optional_vars) if isinstance(node, ast.withitem) else set()


def _is_data(value: ast.expr, variables: Set[str]) -> bool:
    if isinstance(value, ast.IfExp):
        return _is_data(value.body, variables) and _is_data(value.orelse, variables)
    if isinstance(value, ast.Call):
        return dotted(value.func).rpartition(".")[2] not in _NO_DATA
    if isinstance(value, ast.Name):
        return value.id in variables
    if isinstance(value, ast.Attribute | ast.Subscript):
        return _is_data(value.value, variables)
    return isinstance(value, (*_LITERAL, ast.ListComp, ast.DictComp, ast.SetComp))


def attributes_set(source: str, known: set[str], made: set[str]) -> Iterator[str]:
    """What a cell sets or deletes within a module or class that the lab or the cell imports; and a class's `__init__`.

    `module.name = ...`, `del module.name`, `setattr(module, "name", ...)`, `object.__setattr__(module, "name", ...)`,
    `vars(module)`, `module.__dict__`: these two need no changing to be worth a look. What some cell has `made` is no
    module.
    """
    own = made | made_by(source) | {node.arg for node in ast.walk(tree(source)) if isinstance(node, ast.arg)}
    known = (known - own) | imported(source).keys()
    known |= set(_aliases(source, known))
    for node in ast.walk(tree(source)):
        name = ""
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
            name = dotted(node)
        elif isinstance(node, ast.Call) and _sets(node):
            name = within(node.args[0], node.args[1])
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
            name = within(holder(node.value), node.slice)
        elif isinstance(node, ast.Attribute) and node.attr in ("update", "setdefault", "pop", "clear"):
            name = dotted(holder(node.value))
        root = name.partition(".")[0]
        of_a_class = _METHOD.fullmatch(name) and root not in own
        if not name.startswith(_SWITCHES) and (root in known or of_a_class):
            yield name[:80]


def made_by(source: str) -> set[str]:
    """The names that a cell defines, gives to what calls return or binds in loops, and caught errors: what is set there
    is set in an object, and not where the lab keeps its own."""
    nodes = list(ast.walk(tree(source)))
    found = {node.name for node in nodes if isinstance(node, (*_DEFINITIONS, ast.ExceptHandler)) and node.name}
    assigned = [node for node in nodes if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)]
    assigned = [node for node in assigned if dotted(node.value.func) not in _NO_DATA]  # type: ignore[attr-defined]
    found |= {name for node in assigned for target in node.targets for name in _bound(target)}
    return found.union(*map(_in_turn, nodes))


def _sets(call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else dotted(call.func)
    return name.strip("_") in ("setattr", "delattr") and len(call.args) > 1


def _aliases(source: str, known: set[str]) -> Iterator[str]:
    """Other names that a cell gives to a module or class, or to what is in one: `M = Meter`."""
    for node in ast.walk(tree(source)):
        if isinstance(node, ast.Assign) and dotted(node.value).partition(".")[0] in known:
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))
