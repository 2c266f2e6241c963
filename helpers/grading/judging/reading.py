"""What the text of a learner's cell says, without running it: names, definitions, imports, attributes."""

from __future__ import annotations

import ast
import re
import symtable
from collections.abc import Iterable, Iterator
from functools import lru_cache

from ...course import lab_cells
from .spelled import dotted, holder, within

_LINE_END = re.compile("\r\n?")
_MAGIC = re.compile(r"^[ \t]*[%!].*$", re.MULTILINE)  # IPython's, which is no Python
_METHOD = re.compile(r"(?!self\.|cls\.).*\.__(?!(?:name|qualname|doc|module|wrapped|annotations)__)\w+__")  # of a class
_FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_MAKERS = {"empty", "zeros", "ones", "full", "rand", "randn", "randint", "bytearray", "UntypedStorage", "Generator"}
_MAKERS |= {f"{name}_like" for name in _MAKERS} | {"new_empty", "new_zeros", "new_ones", "new_full"}
_MUCH = 20_000  # characters: what is longer is not kept
_SWITCHES = ("torch.backends.", "pd.options.", "pandas.options.", "plt.rcParams", "matplotlib.rcParams")
_FEW = 4096  # values: a table of codes, not a store
_LITERAL = (ast.Constant, ast.List, ast.Tuple, ast.Dict, ast.Set, ast.JoinedStr, ast.BinOp, ast.UnaryOp, ast.Compare)
_NO_DATA = {"partial", "type", "getattr", "Mock", "MagicMock", "wraps", "eval", "attrgetter", "methodcaller"}


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


def code(node: ast.stmt) -> str:
    """What a definition does, whatever its comments and docstrings say."""
    body = list(getattr(node, "body", []))
    words = body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)
    try:
        return ast.dump(type(node)(**{**dict(ast.iter_fields(node)), "body": body[1:] if words else body}))
    except RecursionError:
        return "nested too deeply to be told from others"


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
    return {*top, *_globals_of_functions(source)}


def names_outside(statement: ast.stmt) -> set[str]:
    """The names that a statement reads or binds outside of functions, and those that its functions look up there."""
    try:
        scopes = _scopes(ast.unparse(statement))
    except RecursionError:  # a sum of thousands, or a.b.c without an end
        return {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
    return {one.get_name() for scope in scopes[:1] for one in scope.get_symbols()} | {
        one.get_name() for scope in scopes[1:] for one in scope.get_symbols() if one.is_global()
    }


def used_later(source: str) -> set[str]:
    """The names that the functions of a cell read from outside, and the attributes that it reads anywhere."""
    attributes = {node.attr for node in ast.walk(tree(source)) if isinstance(node, ast.Attribute)}
    return attributes | _globals_of_functions(source)


def _globals_of_functions(source: str) -> set[str]:
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


def _bound(target: ast.expr | None) -> set[str]:
    """The names that a target binds."""
    return {node.id for node in ast.walk(target) if isinstance(node, ast.Name)} if target is not None else set()


def at_import(source: str) -> Iterator[ast.AST]:
    """What runs when a cell does: all of it but the bodies of its functions. Their defaults do."""
    return at_import_of(tree(source))


def at_import_of(node: ast.AST) -> Iterator[ast.AST]:
    """`at_import`, of a part of a cell."""
    waiting: list[ast.AST] = [node]
    for node in waiting:  # grows as it goes
        yield node
        if isinstance(node, _FUNCTION):
            waiting += [node.args, *getattr(node, "decorator_list", ())]
        else:
            waiting += ast.iter_child_nodes(node)


def data(source: str, variables: Iterable[str]) -> set[str]:
    """The names that a cell gives no more than data: a number, a list, what a function returns, one of `variables`."""
    found: set[str] = set()
    other: set[str] = set()
    for node in at_import(source):
        if isinstance(node, ast.Assign):
            same = isinstance(node.value, ast.Name) and node.value.id in variables
            for target in node.targets:
                told = isinstance(target, ast.Name) or isinstance(node.value, ast.Tuple | ast.List)  # what it is
                made = any(isinstance(one, ast.Lambda) for one in ast.walk(node.value))
                plain = same or not told or (_is_data(node.value) and not made)
                (found if plain else other).update(_bound(target))
        elif isinstance(node, ast.For | ast.AsyncFor | ast.NamedExpr):
            found.update(_bound(node.target))
        elif isinstance(node, ast.withitem):
            found.update(_bound(node.optional_vars))
    return found - other


def _is_data(value: ast.expr) -> bool:
    if isinstance(value, ast.IfExp):
        return _is_data(value.body) and _is_data(value.orelse)
    if isinstance(value, ast.Call):
        return dotted(value.func).rpartition(".")[2] not in _NO_DATA
    return isinstance(value, (*_LITERAL, ast.ListComp, ast.DictComp, ast.SetComp))


def made_before(source: str) -> set[str]:
    """The names, and attributes of classes, that keep large memory from when the cell runs; and such defaults."""
    found = set()
    for node in at_import(source):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None and _makes_much(node.value):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


def defaults_of_much(source: str) -> bool:
    """Whether a function of a cell has large memory as a default."""
    functions = (node.args for node in at_import(source) if isinstance(node, _FUNCTION))
    return any(_makes_much(one) for args in functions for one in [*args.defaults, *filter(None, args.kw_defaults)])


def _makes_much(value: ast.expr) -> bool:
    loops = any(isinstance(node, ast.comprehension) for node in ast.walk(value))
    calls = [node for node in ast.walk(value) if isinstance(node, ast.Call)]
    return any(_maker(call) and (loops or _values(call) > _FEW) for call in calls)


def _maker(call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else dotted(call.func)
    return name in _MAKERS


def _values(call: ast.Call) -> float:
    """How many values a call asks for, where it says so in plain numbers; else more than any."""
    sizes = [one for arg in call.args for one in (arg.elts if isinstance(arg, ast.Tuple | ast.List) else [arg])]
    count = 1.0
    for size in sizes:
        count *= size.value if isinstance(size, ast.Constant) and isinstance(size.value, int) else float("inf")
    return count


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


def attributes_set(source: str, known: set[str]) -> Iterator[str]:
    """What a cell sets or deletes within a module or class that the lab or the cell imports; and a class's `__init__`.

    `module.name = ...`, `del module.name`, `setattr(module, "name", ...)`, `object.__setattr__(module, "name", ...)`,
    `vars(module)`, `module.__dict__`: these two need no changing to be worth a look.
    """
    own = {node.name for node in ast.walk(tree(source)) if isinstance(node, lab_cells.DEFINITION)} | _made(source)
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


def _made(source: str) -> set[str]:
    """The names that a cell gives to what calls return, that are arguments of its functions, or caught errors: what is
    set there is set in an object, and not where the lab keeps its own."""
    nodes = list(ast.walk(tree(source)))
    found = {node.arg for node in nodes if isinstance(node, ast.arg)}
    found |= {node.name for node in nodes if isinstance(node, ast.ExceptHandler) and node.name}
    assigned = [node for node in nodes if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)]
    assigned = [node for node in assigned if dotted(node.value.func) not in _NO_DATA]  # type: ignore[attr-defined]
    return found | {name for node in assigned for target in node.targets for name in _bound(target)}


def _sets(call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else dotted(call.func)
    return name.strip("_") in ("setattr", "delattr") and len(call.args) > 1


def _aliases(source: str, known: set[str]) -> Iterator[str]:
    """Other names that a cell gives to a module or class, or to what is in one: `M = Meter`."""
    for node in ast.walk(tree(source)):
        if isinstance(node, ast.Assign) and dotted(node.value).partition(".")[0] in known:
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))
