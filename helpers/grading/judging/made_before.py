"""Memory that is made when a cell runs, before its answer is asked: no meter counts it for whoever uses it.

It is read from the text: large tensors under a name of the top level, in a class, as a default.
"""

from __future__ import annotations

import ast
import operator
from collections import Counter
from collections.abc import Mapping
from math import inf, prod

from .reading import FUNCTION, at_import, tree
from .spelled import dotted

_MAKERS = {"empty", "zeros", "ones", "full", "rand", "randn", "randint", "bytearray", "UntypedStorage", "Generator"}
_MAKERS |= {f"{name}_like" for name in _MAKERS} | {"new_empty", "new_zeros", "new_ones", "new_full"}
_FEW, _ROUNDS = 4096, 64  # values, of a table of codes and not a store; and how many tensors
_HOW = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Pow: operator.pow}


def made_before(source: str) -> tuple[set[str], set[str]]:
    """The names, and the attributes of classes, that keep large memory from when the cell runs."""
    found: tuple[set[str], set[str]] = set(), set()
    module, sizes = tree(source), _whole_numbers(source)
    inside = {id(node) for one in ast.walk(module) if isinstance(one, ast.ClassDef) for node in ast.walk(one)}
    for node in at_import(source):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None and _makes_much(node.value, sizes):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found[id(node) in inside].update(target.id for target in targets if isinstance(target, ast.Name))
    return found


def defaults_of_much(source: str) -> bool:
    """Whether a function of a cell has large memory as a default."""
    functions, sizes = (node.args for node in at_import(source) if isinstance(node, FUNCTION)), _whole_numbers(source)
    return any(
        _makes_much(one, sizes) for args in functions for one in [*args.defaults, *filter(None, args.kw_defaults)]
    )


def _whole_numbers(source: str) -> dict[str, float]:
    """The names that a cell gives a whole number, and no other value: `GROUP = 2**6`."""
    found: dict[str, float] = {}
    names = (node for node in ast.walk(tree(source)) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    times = Counter(node.id for node in names)
    for node in tree(source).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and times[node.targets[0].id] == 1:
            found[node.targets[0].id] = _number(node.value, found)
    return found


def _makes_much(value: ast.expr, sizes: Mapping[str, float]) -> bool:
    loops = prod(_rounds(node.iter, sizes) for node in ast.walk(value) if isinstance(node, ast.comprehension))
    calls = [node for node in ast.walk(value) if isinstance(node, ast.Call)]
    return any(_called(call) in _MAKERS and (loops > _ROUNDS or loops * _values(call, sizes) > _FEW) for call in calls)


def _rounds(over: ast.expr, sizes: Mapping[str, float]) -> float:
    """How often a loop over `range(4)` or a written list goes round; else more than any number."""
    if isinstance(over, ast.Call) and dotted(over.func) == "range" and len(over.args) == 1:
        return _number(over.args[0], sizes)
    return len(over.elts) if isinstance(over, ast.List | ast.Tuple) else inf


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else dotted(call.func)


def _values(call: ast.Call, sizes: Mapping[str, float]) -> float:
    """How many values a call asks for, where it says so in numbers; else more than any."""
    given = [one.value for one in call.keywords if one.arg in ("size", "shape", "low", "high")]
    arguments = [*call.args, *given]
    name = _called(call)
    if "full" in name:  # the last one is the value
        arguments = arguments[:1]
    if "randint" in name:  # (low, high, size)
        arguments = arguments[-1:]
    parts = [one for arg in arguments for one in (arg.elts if isinstance(arg, ast.Tuple | ast.List) else [arg])]
    return prod(_number(one, sizes) for one in parts)


def _number(node: ast.expr, sizes: Mapping[str, float]) -> float:
    """The whole number that is written there, as 4096, 2**6 or GROUP * 16; else more than any."""
    match node:
        case ast.Constant(value=int(number)):
            return number
        case ast.Name(id=name):
            return sizes.get(name, inf)
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() | ast.Mult() | ast.Pow() as how, right=right):
            one, two = _number(left, sizes), _number(right, sizes)
            return _HOW[type(how)](one, two) if max(one, two) <= _FEW and two < 64 else inf
    return inf
